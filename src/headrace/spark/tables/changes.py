"""The `changes` table: every version that was streamed, every withdrawal, and where it all stands.

Append-only history. A row is a change as in `headrace.spark.rows`, with the turn that published it.
Nothing is ever edited: a rollback adds a row with event ``rollback``, and a row is dead when a
rollback of a later epoch reaches below it. Retention is the only thing that forgets.

The published vector lives in the same commit as the rows it is true for: as rows of event
``position`` in the part ``POSITIONS_PART``, one file per turn that replaces the one before. Every
engine that reads the table sees rows and positions of the same instant, the positions survive log
clean-up, and a second writer cannot replace a file that is no longer there.

Rules.
- part = vbucket // (vbuckets / parts): a key lives in one vbucket, a vbucket in one part, so what
  concerns one key is in one part.
- Turn n+1 starts from the vector of turn n. Files of a turn that is refused are removed.
- The table belongs to one bucket: its settings name it, and a turn for another is refused.

Imports: errors, history, spark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import ConfigError, CorruptRecord, StoreLocked
from headrace.history import VBucketId
from headrace.spark.landing import FILE_SCHEMA, LandedFile, RowFile
from headrace.spark.positions import START, Position, Vector
from headrace.spark.rows import ROW_SCHEMA, signed
from headrace.spark.tables.delta import PART, Table, TableFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.spark.landing import Landed

POSITION: Final = "position"
POSITIONS_PART: Final = -1
PARTS_DEFAULT: Final = 8
PARTS_MAX: Final = 1024
TABLE_SCHEMA: Final = pa.schema([pa.field(PART, pa.int32(), nullable=False), *FILE_SCHEMA])


@dataclass(frozen=True, slots=True)
class Published:
    """What the table's newest commit says: its turn, and where every vbucket stands."""

    version: int
    turn: int
    vector: Vector = field(default_factory=dict)

    def position(self, vbucket: VBucketId) -> Position:
        """Where a vbucket stands; at the start if it was never read."""
        return self.vector.get(vbucket, START)


@dataclass(frozen=True, slots=True)
class Shape:
    """How vbuckets are spread over parts."""

    vbuckets: int
    parts: int

    def part_of(self, vbucket: int) -> int:
        """The part a vbucket's rows are in."""
        return vbucket * self.parts // self.vbuckets

    def vbuckets_of(self, part: int) -> list[VBucketId]:
        """The vbuckets of a part."""
        return [VBucketId(vb) for vb in range(self.vbuckets) if self.part_of(vb) == part]


class ChangesTable:
    """The history of one bucket."""

    def __init__(self, path: Path | str) -> None:
        """Name the table; see `create` and `published`."""
        self.table = Table(Path(path), TABLE_SCHEMA, "changes")
        self._published: Published | None = None

    @property
    def path(self) -> Path:
        """The table's directory."""
        return self.table.path

    def create(self, *, vbuckets: int, parts: int = PARTS_DEFAULT, source: str = "") -> None:
        """Make the table if it is not there; a bucket of another size is refused."""
        if not 1 <= parts <= min(PARTS_MAX, max(1, vbuckets)):
            raise ConfigError(f"parts is {parts}, allowed 1..{min(PARTS_MAX, max(1, vbuckets))}")
        self.table.create({"vbuckets": vbuckets, "parts": parts, "source": source})
        found = self.shape()
        if found.vbuckets != vbuckets:
            raise ConfigError(
                f"{self.path} holds a bucket of {found.vbuckets} vbuckets, this one has {vbuckets}"
            )

    def shape(self) -> Shape:
        """How the table is divided."""
        settings = self.table.settings()
        return Shape(int(str(settings["vbuckets"])), int(str(settings["parts"])))

    def published(self) -> Published:
        """The vector of the newest commit."""
        version = self.table.version
        if self._published is not None and self._published.version == version:
            # A version never changes: to read a thousand positions again would tell nothing new.
            return self._published
        vector: Vector = {}
        for file in self.files():
            if file.part == POSITIONS_PART:
                vector.update(self._positions_in(file))
        self._published = Published(version, self.table.turn, vector)
        return self._published

    def files(self) -> list[TableFile]:
        """Every file, positions too."""
        return self.table.files()

    def row_files(self, parts: Iterable[int] | None = None) -> list[TableFile]:
        """The files that hold changes, of some parts or of all."""
        wanted = None if parts is None else set(parts)
        return [
            file
            for file in self.files()
            if file.part >= 0 and (wanted is None or file.part in wanted)
        ]

    def commit(self, turn: int, landed: Landed, vector: Mapping[VBucketId, Position]) -> bool:
        """Publish a turn: its files, its withdrawals and the vector that is true after it.

        False if the turn was published before. Files of a refused or repeated turn are removed.
        """
        return self.replace_files(turn, landed, vector, ())

    def replace_files(
        self,
        turn: int,
        landed: Landed,
        vector: Mapping[VBucketId, Position],
        removed: Sequence[TableFile],
    ) -> bool:
        """Publish a turn that puts its files in the place of others."""
        before = [file for file in self.files() if file.part == POSITIONS_PART]
        positions = self._write_positions(turn, vector)
        summary = {
            "turn": turn,
            "rows": landed.rows,
            "files": len(landed.files),
            "withdrawals": len(landed.withdrawals),
            "seqnos": str(sum(position.seqno for position in vector.values())),
        }
        try:
            done = self.table.commit(
                turn, added=[*landed.files, positions], removed=[*before, *removed], summary=summary
            )
        except StoreLocked:
            self.table.discard([*landed.files, positions])
            raise
        if not done:
            self.table.discard([*landed.files, positions])
            return False
        if self.table.turn == turn:
            self._published = Published(self.table.version, turn, dict(vector))
        return True

    def _write_positions(self, turn: int, vector: Mapping[VBucketId, Position]) -> LandedFile:
        rows = [
            {
                "vbucket": vbucket,
                "epoch": position.epoch,
                "seqno": signed(position.seqno),
                "branch": signed(position.branch),
                "event": POSITION,
                "key": "",
                "value": position.to_text().encode(),
            }
            for vbucket, position in sorted(vector.items())
        ]
        file = RowFile(self.path, POSITIONS_PART, turn)
        file.write(pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA))
        landed = file.finish()
        assert landed is not None, "a vector has at least its file"
        return landed

    def _positions_in(self, file: TableFile) -> Vector:
        path = self.path / file.path
        rows = pq.read_table(path, columns=["vbucket", "seqno", "value"], partitioning=None)
        vector: Vector = {}
        for row in rows.to_pylist():
            try:
                position = Position.from_json(json.loads(row["value"]))
            except (TypeError, ValueError) as error:
                raise CorruptRecord(
                    f"{path}: the position of vbucket {row['vbucket']} cannot be read: {error}",
                    path=str(path),
                ) from error
            vector[VBucketId(row["vbucket"])] = position
        return vector
