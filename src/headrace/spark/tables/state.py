"""The `state` table: the latest living version of each key, as base files and a short tail.

To rewrite every file for every small turn costs seconds; to append costs milliseconds. So a turn
appends a tail file per part with the latest version of each key it touched, deletions included, and
every few turns a part's base and tails are merged into a new base. A reader takes the row with the
greatest (epoch, seqno) of each key and drops what is deleted (`headrace.spark.tables.views`); with
``rebuild_turns=1`` there is never a tail and the table reads as it is.

`state` is a function of `changes`: turn n of `state` is what `changes` says at its turn n. Its
commit names the version of `changes` it stands on. One that was lost is made up for by the next.

Rules.
- A key lives in one part, so merging needs no exchange between tasks.
- A rollback or a dropped collection in a turn rebuilds the part from the living rows of `changes`:
  nothing of a dead branch stays, not even under a newer row.
- Dropped keys leave the base unless ``soft_deletes``: then they stay as rows with ``deleted`` true.

Imports: errors, spark.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.errors import ConfigError
from headrace.spark.durable import sync_file
from headrace.spark.flatten import Flattening
from headrace.spark.landing import COMPRESSION, DICTIONARY_COLUMNS, ROW_GROUP_ROWS, LandedFile
from headrace.spark.rows import DELETION, EXPIRATION, MUTATION, ROLLBACK, ROW_SCHEMA, SYSTEM
from headrace.spark.tables.delta import PART, Table, TableFile
from headrace.wire.opcodes import SystemEventId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.spark.jobs import Runner
    from headrace.spark.tables.changes import ChangesTable

REBUILD_TURNS: Final = 32
TAIL_ROWS_RATIO: Final = 0.5
"""A part is merged early when its tail has grown to this part of its base."""
DOCUMENT_EVENTS: Final = (MUTATION, DELETION, EXPIRATION)
LEFT_OUT: Final = frozenset(
    {"lock_time", "system_event", "snapshot_start", "snapshot_end", "snapshot_flags"}
)
BASE, TAIL = "base", "tail"

STATE_COLUMNS: Final = (
    pa.field("turn", pa.int64(), nullable=False),
    *(column for column in ROW_SCHEMA if column.name not in LEFT_OUT),
    pa.field("deleted", pa.bool_(), nullable=False),
)
READ_COLUMNS: Final = [
    "turn",
    *(column.name for column in ROW_SCHEMA if column.name not in LEFT_OUT),
    "system_event",
]

READ_SCHEMA: Final = pa.schema(
    [
        STATE_COLUMNS[0],
        *(ROW_SCHEMA.field(name) for name in READ_COLUMNS[1:]),
    ]
)


@dataclass(frozen=True, slots=True)
class StateOptions:
    """How the table is kept; ``soft_deletes`` and ``flatten`` count only when it is made."""

    rebuild_turns: int = REBUILD_TURNS
    soft_deletes: bool = False
    flatten: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a number of turns that is none."""
        if self.rebuild_turns < 1:
            raise ConfigError(f"rebuild_turns is {self.rebuild_turns}, allowed from 1")


@dataclass(frozen=True, slots=True)
class Merged:
    """What a task made of one part: new files, and the names of those they replace."""

    files: tuple[LandedFile, ...]
    replaced: tuple[str, ...]

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps({"files": [asdict(f) for f in self.files], "replaced": self.replaced})

    @classmethod
    def from_text(cls, text: str) -> Merged:
        """What `to_text` wrote."""
        found = json.loads(text)
        return cls(tuple(LandedFile(**f) for f in found["files"]), tuple(found["replaced"]))


class StateTable:
    """The living documents of one bucket."""

    def __init__(self, path: Path | str) -> None:
        """Name the table; the schema is known when it is made or opened."""
        self.path = Path(path)
        self._table: Table | None = None

    @property
    def table(self) -> Table:
        """The table, with the columns it was made with."""
        if self._table is None:
            table = Table(self.path, state_schema(Flattening.of({})), "state")
            flattening = Flattening.of(dict(_mapping(table.settings().get("flatten"))))
            self._table = Table(self.path, state_schema(flattening), "state")
        return self._table

    @property
    def exists(self) -> bool:
        """Whether the table has been made."""
        return Table(self.path, state_schema(Flattening.of({})), "state").exists

    def heal(self) -> Path | None:
        """Put a newest commit aside that a loss of power has torn."""
        return Table(self.path, state_schema(Flattening.of({})), "state").heal()

    def create(self, options: StateOptions) -> None:
        """Make the table if it is not there."""
        flattening = Flattening.of(options.flatten)
        Table(self.path, state_schema(flattening), "state").create(
            {"soft_deletes": options.soft_deletes, "flatten": dict(options.flatten)}
        )

    @property
    def turn(self) -> int:
        """The turn of `changes` the table stands on."""
        return self.table.turn

    def follow(
        self,
        changes: ChangesTable,
        runner: Runner,
        options: StateOptions,
        *,
        merge_all: bool = False,
    ) -> bool:
        """Take up every turn of `changes` that is not in yet; False if there was none.

        ``merge_all`` also merges the tails of parts that nothing new has come for.
        """
        if not self.exists:
            self.create(options)
        settings = self.table.settings()
        done, target, version = self.turn, changes.table.turn, changes.table.version
        if target <= done:
            return False
        tasks = self._tasks(changes, done, options, settings, merge_all=merge_all)
        merged = [Merged.from_text(text) for text in runner.run(tasks)]
        files = {file.path: file for file in self.table.files()}
        added = [file for one in merged for file in one.files]
        self.table.commit(
            target,
            added=added,
            removed=[files[path] for one in merged for path in one.replaced],
            summary={"turn": target, "changes_turn": target, "changes_version": version},
        )
        return True

    def _tasks(
        self,
        changes: ChangesTable,
        done: int,
        options: StateOptions,
        settings: Mapping[str, object],
        *,
        merge_all: bool,
    ) -> list[MergeTask]:
        rows = changes.row_files()
        ours: dict[int, list[TableFile]] = {}
        for file in self.table.files():
            ours.setdefault(file.part, []).append(file)
        fresh = {file.part for file in rows if file.turn_high > done}
        if merge_all:
            fresh |= {part for part, held in ours.items() if any(map(is_tail, held))}
        tasks = []
        for part in sorted(fresh):
            held = ours.get(part, [])
            tails = [file for file in held if is_tail(file)]
            base_rows = sum(file.rows for file in held) - sum(file.rows for file in tails)
            new_rows = sum(f.rows for f in rows if f.part == part and f.turn_high > done)
            tail_rows = sum(file.rows for file in tails) + new_rows
            merge = (
                merge_all
                or len(tails) + 1 >= options.rebuild_turns
                or tail_rows > TAIL_ROWS_RATIO * base_rows
            )
            tasks.append(
                MergeTask(
                    changes=str(changes.path.resolve()),
                    state=str(self.path.resolve()),
                    part=part,
                    done=done,
                    turn=changes.table.turn,
                    rows=tuple(
                        (file.path, file.turn_high > done) for file in rows if file.part == part
                    ),
                    held=tuple(file.path for file in held),
                    merge=merge,
                    soft_deletes=bool(settings.get("soft_deletes")),
                    flatten=tuple(_mapping(settings.get("flatten")).items()),
                )
            )
        return tasks


@dataclass(frozen=True)
class MergeTask:
    """Bring one part of `state` up to a turn of `changes`."""

    changes: str
    state: str
    part: int
    done: int
    turn: int
    rows: tuple[tuple[str, bool], ...]
    held: tuple[str, ...]
    merge: bool
    soft_deletes: bool
    flatten: tuple[tuple[str, str], ...]

    def __call__(self) -> str:
        """Read what is new, decide between a tail and a new base, write it."""
        fresh = self._changes([path for path, is_new in self.rows if is_new])
        fresh = fresh.filter(pc.greater(fresh["turn"], self.done))
        if needs_rebuild(fresh):
            every = self._changes([path for path, _ in self.rows])
            base = documents(living_rows(every), Flattening.of(dict(self.flatten)))
            return self._written(base, BASE, replaced=self.held)
        tail = documents(fresh, Flattening.of(dict(self.flatten)))
        if not self.merge:
            return self._written(tail, TAIL, replaced=())
        held = [
            pq.read_table(Path(self.state) / path, schema=tail.schema, partitioning=None)
            for path in self.held
        ]
        base = latest(pa.concat_tables([*held, tail]))
        return self._written(base, BASE, replaced=self.held)

    def _changes(self, paths: Sequence[str]) -> pa.Table:
        tables = [
            pq.read_table(Path(self.changes) / path, columns=READ_COLUMNS, partitioning=None)
            for path in paths
        ]
        return pa.concat_tables(tables) if tables else READ_SCHEMA.empty_table()

    def _written(self, rows: pa.Table, kind: str, *, replaced: Sequence[str]) -> str:
        if kind == BASE and not self.soft_deletes:
            rows = rows.filter(pc.invert(rows["deleted"]))
        if rows.num_rows == 0:
            return Merged((), tuple(replaced)).to_text()
        name = f"part={self.part}/{kind}-{self.turn:010d}-{uuid.uuid4().hex}.parquet"
        path = Path(self.state) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            rows,
            path,
            compression=COMPRESSION,
            use_dictionary=[name for name in DICTIONARY_COLUMNS if name in rows.column_names],
            row_group_size=ROW_GROUP_ROWS,
        )
        sync_file(path, Path(self.state))
        stats = json.dumps(
            {
                "numRecords": rows.num_rows,
                "minValues": {"turn": pc.min(rows["turn"]).as_py()},
                "maxValues": {"turn": pc.max(rows["turn"]).as_py()},
                "nullCount": {"turn": 0},
            }
        )
        file = LandedFile(name, self.part, path.stat().st_size, rows.num_rows, stats)
        return Merged((file,), tuple(replaced)).to_text()


# -- rules on rows ---------------------------------------------------------------------------------


def state_schema(flattening: Flattening) -> pa.Schema:
    """The columns of the table, those asked for from JSON last."""
    part = pa.field(PART, pa.int32(), nullable=False)
    return pa.schema([part, *STATE_COLUMNS, *flattening.fields])


def needs_rebuild(rows: pa.Table) -> bool:
    """Whether these changes reach back: a rollback, or a collection that was dropped."""
    reaching = pc.or_kleene(pc.equal(rows["event"], ROLLBACK), _is_drop(rows))
    return bool(pc.any(reaching).as_py())


def _is_drop(rows: pa.Table) -> pa.ChunkedArray:
    return pc.and_kleene(
        pc.equal(rows["event"], SYSTEM),
        pc.equal(rows["system_event"], int(SystemEventId.END_COLLECTION)),
    )


def living_rows(rows: pa.Table) -> pa.Table:
    """The rows that no rollback and no drop of their collection has ended."""
    vbuckets, epochs, seqnos = (rows[name].to_numpy() for name in ("vbucket", "epoch", "seqno"))
    dead = np.zeros(rows.num_rows, np.bool_)
    for one in rows.filter(pc.equal(rows["event"], ROLLBACK)).select(_PLACE).to_pylist():
        here = vbuckets == one["vbucket"]
        dead |= here & (epochs < one["epoch"]) & (seqnos > one["seqno"])
    # A drop counts only where it lives itself.
    dropping = pc.fill_null(_is_drop(rows), False).to_numpy()
    drops = rows.filter(pa.array(dropping & ~dead))
    collections = pc.fill_null(rows["collection_id"], 0).to_numpy()
    for one in drops.select([*_PLACE, "collection_id"]).to_pylist():
        here = (vbuckets == one["vbucket"]) & (collections == one["collection_id"])
        earlier = (epochs < one["epoch"]) | ((epochs == one["epoch"]) & (seqnos < one["seqno"]))
        dead |= here & earlier
    return rows.filter(pa.array(~dead))


_PLACE: Final = ["vbucket", "epoch", "seqno"]
_KEY: Final = ["vbucket", "collection_id", "key"]


def documents(rows: pa.Table, flattening: Flattening) -> pa.Table:
    """The latest version of each document among the rows, with the columns of `state`."""
    rows = rows.filter(pc.is_in(rows["event"], pa.array(DOCUMENT_EVENTS)))
    rows = latest(rows)
    deleted = pc.not_equal(rows["event"], MUTATION)
    found = rows.drop_columns(["system_event"]).append_column(
        pa.field("deleted", pa.bool_(), nullable=False), deleted
    )
    for column, values in flattening.columns(found["value"], found["deleted"]):
        found = found.append_column(column, values)
    return found.cast(pa.schema([*STATE_COLUMNS, *flattening.fields]))


def latest(rows: pa.Table) -> pa.Table:
    """The row with the greatest (epoch, seqno) of each key."""
    if rows.num_rows == 0:
        return rows
    order = pc.sort_indices(rows, sort_keys=[("epoch", "ascending"), ("seqno", "ascending")])
    rank = np.empty(rows.num_rows, np.int64)
    places = order.to_numpy()
    rank[places] = np.arange(rows.num_rows)
    keys = rows.select(_KEY).append_column("rank", pa.array(rank))
    newest = keys.group_by(_KEY, use_threads=False).aggregate([("rank", "max")])
    chosen = np.sort(places[newest["rank_max"].to_numpy()])
    return rows.take(pa.array(chosen))


def is_tail(file: TableFile) -> bool:
    """Whether a file of `state` is a tail, not a base."""
    return Path(file.path).name.startswith(f"{TAIL}-")


def _mapping(value: object) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}
