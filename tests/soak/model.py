"""The dumbest application: a list of rows per vbucket, committed together with tokens.

It does what `headrace.client.reader` tells an application to do and nothing more: it keeps rows
until the reader says that its tokens cover them, then commits both; what was not committed when it
died is gone. It never removes a repeated row: a seqno that does not rise within its vbucket, unless
a Rollback withdrew it, is a failure.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from headrace.client.changes import Change, Kind, Rollback
from headrace.columns.schema import Event

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.client.tokens import TokenSet

PAD: Final = b"x" * 128
COLUMNS: Final = ("vbucket", "seqno", "event", "key", "value")
KINDS: Final = {
    Kind.MUTATION: Event.MUTATION,
    Kind.DELETION: Event.DELETION,
    Kind.EXPIRATION: Event.EXPIRATION,
}


def value_of(key: bytes, version: int) -> bytes:
    """The document of a key's version."""
    return b'{"v":%010d,"k":"%s","p":"%s"}' % (version, key, PAD[: version * 7919 % 128])


def version_of(key: bytes, value: bytes) -> int:
    """The version a document is; any byte that is not as written is a failure."""
    version = int(value[5:15])
    assert value == value_of(key, version), f"key {key!r} has {value!r}"
    return version


class Row(NamedTuple):
    """One change; no key: something else that took the seqno; no version: a deletion."""

    vbucket: int
    seqno: int
    key: bytes
    version: int | None


State: TypeAlias = dict[bytes, tuple[int, int | None]]
"""Key -> seqno and version of its last change."""


class Model:
    """Rows by vbucket, and the tokens that cover them."""

    def __init__(self, vbuckets: int) -> None:
        """Hold nothing."""
        self.rows: list[list[Row]] = [[] for _ in range(vbuckets)]
        self.tokens: TokenSet | None = None
        self.counts: Counter[str] = Counter()
        self._ends = [0] * vbuckets
        """The last seqno committed; `_handed`: handed out."""
        self._handed = [0] * vbuckets
        self._pending: list[Row | Rollback] = []
        self._dropped: dict[tuple[int, int], Row] = {}

    # -- from the reader -------------------------------------------------------------------------

    def take(self, given: pa.RecordBatch | Change | Rollback) -> None:
        """Take what a reader handed out; nothing of it is kept before `commit`."""
        if isinstance(given, Rollback):
            self._roll_back(given)
        elif isinstance(given, Change):
            kind = KINDS.get(given.kind)
            self._row(given.vbucket, given.seqno, kind, given.key, given.value)
        else:
            columns = (given.column(name).to_pylist() for name in COLUMNS)
            for row in zip(*columns, strict=True):
                self._row(*row)

    def _row(self, vbucket: int, seqno: int, event: int | None, key: bytes, value: bytes) -> None:
        handed = self._handed[vbucket]
        assert seqno > handed, f"vbucket {vbucket}: seqno {seqno} after {handed}: twice, or back"
        self._handed[vbucket] = seqno
        self.counts["rows"] += 1
        if event == Event.MUTATION:
            row = Row(vbucket, seqno, key, version_of(key, value))
        elif event in (Event.DELETION, Event.EXPIRATION):
            row = Row(vbucket, seqno, key, None)
        else:
            row = Row(vbucket, seqno, b"", None)
        self._pending.append(row)
        if self._dropped:
            before = self._dropped.pop((vbucket, seqno), row)
            assert before == row, f"vbucket {vbucket}: seqno {seqno} was {before} and is {row}"

    def _roll_back(self, rollback: Rollback) -> None:
        vbucket, to = rollback.vbucket, rollback.to_seqno
        handed = self._handed[vbucket]
        assert to < rollback.from_seqno == handed, f"{rollback}; {handed} was handed out"
        self._handed[vbucket] = to
        self._dropped = {place: row for place, row in self._dropped.items() if place[0] != vbucket}
        self.counts["rollbacks"] += 1
        self.counts["rollbacks to 0"] += to == 0
        self._pending.append(rollback)

    # -- the application -------------------------------------------------------------------------

    def commit(self, tokens: TokenSet) -> None:
        """Keep everything taken so far, and the tokens that cover it."""
        for one in self._pending:
            if isinstance(one, Rollback):
                rows = self.rows[one.vbucket]
                while rows and rows[-1].seqno > one.to_seqno:
                    rows.pop()
                    self.counts["withdrawn"] += 1
                self._ends[one.vbucket] = one.to_seqno
            else:
                self.rows[one.vbucket].append(one)
                self._ends[one.vbucket] = one.seqno
        self._pending.clear()
        self.tokens = tokens

    def die(self, *, same_history: bool) -> None:
        """Lose what was not committed.

        ``same_history``: no failover may have come in between, so whatever comes again at a seqno
        must be what was there before.
        """
        self.counts["rows lost by dying"] += len(self._pending)
        rows = [one for one in self._pending if isinstance(one, Row)]
        self._dropped = {(row.vbucket, row.seqno): row for row in rows} if same_history else {}
        self._pending.clear()
        self._handed = list(self._ends)

    def copied(self) -> Model:
        """A model that goes its own way from what is committed here."""
        other = Model(len(self.rows))
        other.rows = [list(rows) for rows in self.rows]
        other.tokens = self.tokens
        other._ends, other._handed = list(self._ends), list(self._ends)
        return other

    def seqno(self, vbucket: int) -> int:
        """The last seqno held."""
        return self._ends[vbucket]

    def state(self) -> State:
        """Each key's last change."""
        return {row.key: (row.seqno, row.version) for rows in self.rows for row in rows if row.key}
