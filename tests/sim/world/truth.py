"""What really happened: every change that a node accepted as a vbucket's owner, by branch.

A position is (branch, seqno). The failover log of a branch says which changes of which older
branches belong to its past; replaying them up to a seqno is the state everybody at that position
must have. Nothing here is taken from a stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.sim.world.core import Violation

if TYPE_CHECKING:
    from headrace.history import FailoverLog

State = dict[bytes, bytes]


@dataclass
class VBucketTruth:
    """One vbucket's history."""

    number: int
    changes: dict[int, dict[int, tuple[bytes, bytes | None]]] = field(default_factory=dict)
    """Branch -> seqno -> key and value; None deletes."""
    logs: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Branch -> its failover log, newest first."""
    persisted: set[tuple[int, int]] = field(default_factory=set)
    """Branch and seqno of changes that an owner had on its disk."""
    failovers: int = 0
    """Failovers somebody declared, and with them losses."""

    def learn(self, log: FailoverLog) -> None:
        """A node has this log: it is the past of its newest branch."""
        entries = tuple((int(entry.uuid), int(entry.seqno)) for entry in log)
        known = self.logs.get(entries[0][0])
        if known is not None and known != entries:
            shared = min(len(known), len(entries))
            if known[:shared] != entries[:shared]:
                raise Violation(
                    f"vbucket {self.number}: branch {entries[0][0]:x} has two pasts, {known} and "
                    f"{entries}"
                )
            entries = max(known, entries, key=len)
        self.logs[entries[0][0]] = entries

    def accept(self, branch: int, seqno: int, key: bytes, value: bytes | None) -> None:
        """An owner accepted a change."""
        there = self.changes.setdefault(branch, {})
        before = there.get(seqno)
        if before is not None and before != (key, value):
            raise Violation(
                f"vbucket {self.number}: seqno {seqno} of branch {branch:x} was given twice, to "
                f"{before} and to {(key, value)}"
            )
        if before is None and there and seqno <= max(there):
            raise Violation(
                f"vbucket {self.number}: seqno {seqno} of branch {branch:x} does not rise above "
                f"{max(there)}"
            )
        there[seqno] = (key, value)

    def branch_of(self, branch: int, seqno: int) -> int:
        """The branch a seqno belongs to, seen from a newer one; 0 if that is not known."""
        for uuid, start in self.logs.get(branch, ()):
            if seqno > start:
                return uuid
        return 0

    def state(self, branch: int, seqno: int) -> State:
        """What everybody has who stands there."""
        state: State = {}
        for _, (key, value) in self._history(branch, seqno):
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        return state

    def _history(self, branch: int, last: int) -> list[tuple[int, tuple[bytes, bytes | None]]]:
        """Every change of a branch and its past up to ``last``, in order."""
        found: dict[int, tuple[bytes, bytes | None]] = {}
        end = last
        for uuid, start in self.logs.get(branch, ()):
            there = self.changes.get(uuid, {}).items()
            found |= {number: change for number, change in there if start < number <= end}
            end = min(end, start)
        return sorted(found.items())

    def deletions(self, branch: int, last: int) -> dict[bytes, int]:
        """Key -> seqno of its last deletion in the history of a branch, up to ``last``."""
        found: dict[bytes, int] = {}
        for seqno, (key, value) in self._history(branch, last):
            if value is None:
                found[key] = seqno
        return found

    def expect(self, branch: int, seqno: int, found: State, who: str) -> None:
        """Compare a state that somebody claims for a position."""
        if seqno and branch not in self.logs:
            raise Violation(f"{who}: branch {branch:x} of vbucket {self.number} is unknown")
        wanted = self.state(branch, seqno)
        if found != wanted:
            keys = sorted(set(found) | set(wanted))
            wrong = [key for key in keys if found.get(key) != wanted.get(key)]
            said = [(key, found.get(key), wanted.get(key)) for key in wrong]
            raise Violation(
                f"{who}: vbucket {self.number} at seqno {seqno} of branch {branch:x} "
                f"(key, found, true): {said}"
            )

    def check_kept(self, branch: int, high: int) -> None:
        """Every change an owner had persisted is in the history, unless a failover was declared."""
        if self.failovers:
            return
        for was, seqno in sorted(self.persisted):
            if seqno > high or self.branch_of(branch, seqno) != was:
                raise Violation(
                    f"vbucket {self.number}: seqno {seqno} of branch {was:x} was persisted and is "
                    f"gone from branch {branch:x} at {high}, and no failover was declared"
                )


class Truth:
    """All vbuckets."""

    def __init__(self, vbuckets: int) -> None:
        self.vbuckets = [VBucketTruth(number) for number in range(vbuckets)]

    def __getitem__(self, number: int) -> VBucketTruth:
        return self.vbuckets[number]
