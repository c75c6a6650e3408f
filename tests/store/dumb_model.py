"""A vbucket a child could have written: every change in a list, every answer a fold over it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fact:
    """One change: what it was, to which key, with which value."""

    seqno: int
    kind: str  # set, delete, expire, prepare, commit, abort, begin, end
    key: bytes
    value: bytes = b""
    prepared: int = 0


@dataclass
class DumbVBucket:
    """All changes of one vbucket on its current branch, oldest first."""

    facts: list[Fact] = field(default_factory=list)
    purged: int = 0

    @property
    def high(self) -> int:
        """The last seqno."""
        return self.facts[-1].seqno if self.facts else 0

    def add(self, fact: Fact) -> None:
        """Something happened."""
        assert fact.seqno == self.high + 1
        self.facts.append(fact)

    def cut(self, to: int) -> None:
        """Everything above ``to`` never happened."""
        self.facts = [fact for fact in self.facts if fact.seqno <= to]

    def state(self, at: int) -> dict[bytes, tuple[int, bytes]]:
        """Living keys with seqno and value, as they were at a seqno."""
        living: dict[bytes, tuple[int, bytes]] = {}
        pending: dict[bytes, bytes] = {}
        for fact in self.facts:
            if fact.seqno > at:
                break
            if fact.kind == "set":
                living[fact.key] = (fact.seqno, fact.value)
            elif fact.kind in ("delete", "expire"):
                living.pop(fact.key, None)
            elif fact.kind == "prepare":
                pending[fact.key] = fact.value
            elif fact.kind == "abort":
                pending.pop(fact.key)
            elif fact.kind == "commit":
                living[fact.key] = (fact.seqno, pending.pop(fact.key))
            elif fact.kind in ("begin", "end"):
                living = {k: v for k, v in living.items() if k[0] != fact.key[0]}
        return living

    def pending(self) -> dict[bytes, int]:
        """Prepares in flight: key -> seqno."""
        found: dict[bytes, int] = {}
        for fact in self.facts:
            if fact.kind == "prepare":
                found[fact.key] = fact.seqno
            elif fact.kind in ("commit", "abort"):
                found.pop(fact.key)
        return found

    def has_ended(self, collection: int) -> bool:
        """Whether the collection's last event was its end."""
        events = [
            f.kind for f in self.facts if f.kind in ("begin", "end") and f.key[0] == collection
        ]
        return events[-1:] == ["end"]

    def fact(self, seqno: int) -> Fact:
        """What happened at a seqno."""
        return self.facts[seqno - 1]
