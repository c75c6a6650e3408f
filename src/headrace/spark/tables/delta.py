"""One Delta commit per turn, of files that tasks wrote: the only door to the table's log.

Rules.
- A commit carries the files added and removed, an application transaction with the turn's number,
  and a small summary for people. It is there as a whole or not at all.
- A table has one writer. A second one that started from the same version is refused: both commits
  name the same application transaction, and delta-rs lets only the first through. The refusal is
  StoreLocked, and nothing of it is visible.
- A turn that is already in the table is not committed again: a replay changes nothing.
- Files are named relative to the table; a table is a directory that every executor can reach.
- A commit is on the disk before anything is built on it (`headrace.spark.durable`).

Imports: errors, spark.durable.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import StoreError, StoreLocked, StoreVersion
from headrace.spark.durable import put_aside, sync_commit, sync_path, torn_commit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from deltalake import DeltaTable

    from headrace.spark.landing import LandedFile

APPLICATION: Final = "headrace"
PART: Final = "part"
TABLE_FORMAT: Final = 1
VACUUM_HOURS_DEFAULT: Final = 168


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that is part of the table; ``path`` is relative to it."""

    path: str
    part: int
    size: int
    rows: int
    turn_low: int
    turn_high: int


class Table:
    """A Delta table partitioned by ``part``, opened at its newest version."""

    def __init__(self, path: Path, schema: pa.Schema, kind: str) -> None:
        """Name the table; nothing is opened or made yet."""
        self.path = path
        self.schema = schema
        self.kind = kind
        self._table: DeltaTable | None = None

    # -- opening ---------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether the table has a first version."""
        from deltalake import DeltaTable

        return bool(DeltaTable.is_deltatable(str(self.path)))

    def create(self, settings: Mapping[str, object]) -> None:
        """Make the table, empty, with its settings; one that is there already is left alone."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        if self.exists:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        sync_path(self.path.parent)
        told = {"headrace": self.kind, "format": TABLE_FORMAT, **settings}
        try:
            DeltaTable.create(
                str(self.path),
                Schema.from_arrow(self.schema),
                mode="error",
                partition_by=[PART],
                name=f"headrace_{self.kind}",
                description=json.dumps(told, sort_keys=True),
            )
        except DeltaError as error:
            if not self.exists:
                raise StoreError(f"table {self.path} cannot be made: {error}") from error
        sync_path(self.path)
        sync_commit(self.path, 0)

    def heal(self) -> Path | None:
        """Put a newest commit aside that a loss of power has torn; for the writer alone.

        Nothing was built on it: a commit is told to nobody before it is on the disk.
        """
        torn = torn_commit(self.path)
        if torn is not None:
            put_aside(torn)
            self._table = None
        return torn

    def open(self) -> DeltaTable:
        """The table at its newest version; StoreError if it is none of ours."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            if self._table is None:
                self._table = DeltaTable(str(self.path))
            else:
                self._table.update_incremental()
        except DeltaError as error:
            raise StoreError(f"{self.path} is not a table that can be read: {error}") from error
        return self._table

    def settings(self) -> dict[str, object]:
        """What the table was made with; StoreError if someone else made it."""
        text = self.open().metadata().description or ""
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("headrace") != self.kind:
            raise StoreError(
                f"{self.path} is a Delta table but not a {self.kind} table of headrace"
            )
        if found.get("format") != TABLE_FORMAT:
            raise StoreVersion(
                f"{self.path} has format {found.get('format')}, this release reads {TABLE_FORMAT}"
            )
        return found

    @property
    def version(self) -> int:
        """The version that was opened."""
        return int(self.open().version())

    @property
    def turn(self) -> int:
        """The last turn committed; 0 before the first."""
        return int(self.open().transaction_version(APPLICATION) or 0)

    # -- files -----------------------------------------------------------------------------------

    def files(self) -> list[TableFile]:
        """Every file of the version that is open."""
        import pyarrow as pa

        actions = pa.table(self.open().get_add_actions(flatten=True)).to_pylist()
        return [
            TableFile(
                action["path"],
                int(action[f"partition.{PART}"]),
                int(action["size_bytes"]),
                int(action["num_records"] or 0),
                int(action.get("min.turn") or 0),
                int(action.get("max.turn") or 0),
            )
            for action in actions
        ]

    def summary(self) -> dict[str, object]:
        """What the newest commit of ours said about itself; empty if the log no longer has it."""
        for entry in self.open().history():
            if APPLICATION in entry:
                found = entry[APPLICATION]
                return dict(found) if isinstance(found, dict) else {}
        return {}

    # -- committing ------------------------------------------------------------------------------

    def commit(
        self,
        turn: int,
        *,
        added: Sequence[LandedFile],
        removed: Sequence[TableFile],
        summary: Mapping[str, object],
    ) -> bool:
        """Publish a turn; False if it was in the table already.

        StoreLocked if another writer came first: nothing of this turn is visible then.
        """
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import AddAction, RemoveAction

        table = self.open()
        before = int(table.version())
        if self.turn >= turn:
            return False
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, {PART: str(file.part)}, now, True, file.stats)
            for file in added
        ]
        actions += [
            RemoveAction(file.path, True, now, file.size, {PART: str(file.part)})
            for file in removed
        ]
        try:
            table.create_write_transaction(
                actions,
                "append",
                Schema.from_arrow(self.schema),
                [PART],
                commit_properties=CommitProperties(
                    custom_metadata={APPLICATION: dict(summary)},
                    app_transactions=[Transaction(APPLICATION, turn)],
                ),
            )
        except CommitFailedError as error:
            raise StoreLocked(
                f"{self.path}: turn {turn} was not committed, another writer was first ({error})"
            ) from error
        except DeltaError as error:
            raise StoreError(f"{self.path}: turn {turn} was not committed: {error}") from error
        # Ours is among these, whoever else has committed meanwhile.
        for version in range(before + 1, self.version + 1):
            sync_commit(self.path, version)
        return True

    # -- upkeep ----------------------------------------------------------------------------------

    def vacuum(self, *, hours: int = VACUUM_HOURS_DEFAULT, dry_run: bool = False) -> list[str]:
        """Remove files no version of the last hours needs, and those no turn ever committed."""
        return list(
            self.open().vacuum(
                retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False, full=True
            )
        )

    def checkpoint(self) -> None:
        """Write a Delta checkpoint, so that readers need not replay the log."""
        self.open().create_checkpoint()

    def discard(self, files: Sequence[LandedFile]) -> None:
        """Remove files of a turn that will not be committed; one that is gone is no matter."""
        for file in files:
            (self.path / file.path).unlink(missing_ok=True)
