"""What a node says of its copy of a vbucket, and how two copies compare.

Histories may fork (`headrace.history`): copy A covers copy B when B holds nothing A does not have,
that is when B's last seqno lies at or below the place where their branches part.

Imports: errors, history, wire.opcodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.history import BranchId, FailoverEntry, FailoverLog, Seqno
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One copy of a vbucket; ``state`` is None when the node has no copy."""

    node: str
    vbucket: int
    state: VBucketState | None = None
    high_seqno: int = 0
    snapshot_end: int = 0
    """End of the snapshot being received; above ``high_seqno`` while it is incomplete."""
    boundary: int = 0
    """End of the last complete snapshot, as the node tells it."""
    persisted_seqno: int = 0
    log: FailoverLog | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the last snapshot was received whole."""
        return self.high_seqno >= self.snapshot_end

    @property
    def complete_seqno(self) -> int:
        """The end of the last snapshot it has whole: where a new branch would begin."""
        return self.high_seqno if self.is_complete else self.boundary

    @property
    def word(self) -> str:
        """The state as people read it."""
        return self.state.name.lower() if self.state is not None else "absent"


def covers(one: Copy, other: Copy) -> bool:
    """Whether ``one`` has everything that ``other`` has."""
    if other.high_seqno == 0 or other.state is None:
        return True
    if one.log is None or other.log is None:
        return False
    return other.high_seqno <= _parting(one, other)


def _parting(one: Copy, other: Copy) -> int:
    """The last seqno both histories share; 0 when they share no branch."""
    assert one.log is not None
    assert other.log is not None
    ours = _ends(one.log, one.high_seqno)
    theirs = _ends(other.log, other.high_seqno)
    for entry in one.log:  # newest first: the newest branch both know
        if entry.uuid in theirs:
            return min(ours[entry.uuid], theirs[entry.uuid])
    return 0


def _ends(log: FailoverLog, high_seqno: int) -> dict[int, int]:
    """Branch -> the last seqno that belongs to it."""
    ends: dict[int, int] = {}
    end = high_seqno
    for entry in log:
        ends[entry.uuid] = end
        end = entry.seqno
    return ends


def read_copy(node: str, vbucket: int, stats: Mapping[str, str]) -> Copy:
    """Read a copy from the node's statistics vbucket-details, vbucket-seqno and failovers."""
    word = stats.get(f"vb_{vbucket}")
    if word is None:
        return Copy(node=node, vbucket=vbucket)
    high = _number(stats, f"vb_{vbucket}:abs_high_seqno", f"vb_{vbucket}:high_seqno")
    return Copy(
        node=node,
        vbucket=vbucket,
        state=VBucketState[word.upper()],
        high_seqno=high,
        snapshot_end=_number(stats, f"vb_{vbucket}:high_seqno"),
        boundary=_number(stats, f"vb_{vbucket}:complete_seqno"),
        persisted_seqno=_number(stats, f"vb_{vbucket}:last_persisted_seqno"),
        log=_log(stats, vbucket),
    )


def _number(stats: Mapping[str, str], *names: str) -> int:
    for name in names:
        value = stats.get(name, "")
        if value.isdecimal():
            return int(value)
    return 0


def _log(stats: Mapping[str, str], vbucket: int) -> FailoverLog | None:
    count = _number(stats, f"vb_{vbucket}:num_entries")
    entries = tuple(
        FailoverEntry(
            BranchId(_number(stats, f"vb_{vbucket}:{place}:id")),
            Seqno(_number(stats, f"vb_{vbucket}:{place}:seq")),
        )
        for place in range(count)
    )
    return FailoverLog(entries) if entries else None
