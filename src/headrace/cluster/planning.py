"""From the chains that are to the chains that are wanted, with the fewest moves.

Wanted is: every vbucket active on one staying node and replicated on others, actives and replicas
each balanced within one, no two copies of a vbucket on one node. `balanced` gives such chains,
`moves_between` the moves that lead there, one vbucket's after the other.

Rules
- Deterministic: the same chains and nodes give the same moves in the same order.
- Actives first: as many stay as can stay; one that must go prefers a node that has its replica,
  because then only the ownership moves and no data.
- Then replicas, with actives fixed: an assignment of least cost, where a copy that exists costs
  nothing and a new one costs one. Shortest augmenting paths keep every step of it least.
- A move changes one chain, by one new copy at most; between two moves every chain is legal.

Imports: errors, cluster.chains.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from headrace.cluster.chains import Chain, Chains, trimmed
from headrace.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Kind(Enum):
    """What a move moves."""

    ACTIVE = "active"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One chain becomes another: the active copy goes to ``target``, or a replica is made there.

    ``source`` is the node that is active before (ACTIVE), or the one whose replica goes away
    (REPLICA; None when a replica is added).
    """

    vbucket: int
    kind: Kind
    source: str | None
    target: str
    before: Chain
    after: Chain

    @property
    def producer(self) -> str:
        """The node whose copy is streamed."""
        assert self.before[0] is not None, "a vbucket without an active copy cannot move"
        return self.before[0]

    @property
    def dropped(self) -> tuple[str, ...]:
        """The nodes whose copy goes away."""
        return tuple(name for name in self.before if name is not None and name not in self.after)

    @property
    def kept_as_replica(self) -> bool:
        """Whether the copy that was active stays, as a replica."""
        return self.kind is Kind.ACTIVE and self.source in self.after

    def __str__(self) -> str:
        """As people read it."""
        return f"vb {self.vbucket} {self.kind.value}: {self.source or 'new'} -> {self.target}"


# -- what is wanted ------------------------------------------------------------------------------


def balanced(chains: Chains, nodes: Sequence[str], replicas: int) -> tuple[Chain, ...]:
    """The chains that are wanted on these nodes; ClusterError when a vbucket has no active copy."""
    missing = [number for number in range(chains.vbuckets) if chains.active(number) is None]
    if missing:
        raise ClusterError(
            f"{len(missing)} vbuckets have no active copy (the first is {missing[0]}); fail the "
            "node over that had them, or bring it back, then balance"
        )
    actives = _actives(chains, nodes)
    return _with_replicas(chains, nodes, actives, min(replicas, len(nodes) - 1))


def replicated(chains: Chains, nodes: Sequence[str], replicas: int) -> dict[int, Chain]:
    """Chains with the replicas that are wanted, everything else where it is; only those that grow.

    As even as the actives allow: each new replica goes to the node that has the fewest.
    """
    held = {name: sum(name in row[1:] for row in chains.rows) for name in nodes}
    grown: dict[int, Chain] = {}
    for number, row in enumerate(chains.rows):
        here = [name for name in row if name is not None]
        missing = min(replicas, len(nodes) - 1) + 1 - len(here)
        if row[0] is None:
            continue
        for _ in range(missing):
            free = [name for name in nodes if name not in here]
            if free:
                here.append(min(free, key=lambda name: held[name]))
                held[here[-1]] += 1
                grown[number] = tuple(here)
    return grown


def _quotas(total: int, nodes: Sequence[str], held: Mapping[str, int]) -> dict[str, int]:
    """How many each node is to hold; who holds most keeps the one that is left over."""
    least, over = divmod(total, len(nodes))
    order = sorted(nodes, key=lambda name: (-held.get(name, 0), nodes.index(name)))
    return {name: least + (place < over) for place, name in enumerate(order)}


def _actives(chains: Chains, nodes: Sequence[str]) -> list[str]:
    held = {name: len(chains.vbuckets_of(name)) for name in nodes}
    room = _quotas(chains.vbuckets, nodes, held)
    actives: list[str | None] = [None] * chains.vbuckets
    homeless = []
    for vbucket in range(chains.vbuckets):
        name = chains.active(vbucket)
        if name in room and room[name] > 0:
            actives[vbucket] = name
            room[name] -= 1
        else:
            homeless.append(vbucket)
    # Those with a replica on a node that has room first: they cost no new copy.
    for vbucket in homeless:
        for name in chains.replicas(vbucket):
            if room.get(name, 0) > 0:
                actives[vbucket] = name
                room[name] -= 1
                break
    for vbucket in homeless:
        if actives[vbucket] is None:
            name = max(nodes, key=lambda one: (room[one], -nodes.index(one)))
            actives[vbucket] = name
            room[name] -= 1
    return [name for name in actives if name is not None]


def _with_replicas(
    chains: Chains, nodes: Sequence[str], actives: list[str], replicas: int
) -> tuple[Chain, ...]:
    if replicas <= 0:
        return tuple((name,) for name in actives)
    rows = _Assignment(chains, nodes, actives, replicas).solve()
    return tuple(
        (active, *_ordered(chains.rows[number], rows[number], nodes))
        for number, active in enumerate(actives)
    )


def _ordered(before: Chain, wanted: set[str], nodes: Sequence[str]) -> list[str]:
    """Replicas that were there in their old order, then the others in the nodes' order."""
    kept = [name for name in before if name is not None and name in wanted]
    return kept + [name for name in nodes if name in wanted and name not in kept]


class _Assignment:
    """Replicas to nodes: each vbucket gets ``replicas`` different nodes, each node its share.

    A share is the whole part of the mean; the few copies left over go to nodes that then hold one
    more, each at most one. Who does is part of the problem, not given beforehand.
    """

    def __init__(
        self, chains: Chains, nodes: Sequence[str], actives: list[str], replicas: int
    ) -> None:
        self._nodes = nodes
        self._actives = actives
        self._replicas = replicas
        # What costs nothing: any copy that exists, the one that was active included.
        self._existing = [{name for name in row if name is not None} for row in chains.rows]
        least, self._over = divmod(chains.vbuckets * replicas, len(nodes))
        self._room = dict.fromkeys(nodes, least)
        self._has_over: set[str] = set()
        self._rows: list[set[str]] = [set() for _ in actives]

    def solve(self) -> list[set[str]]:
        """Fill every row; ClusterError if the nodes cannot hold it."""
        for vbucket, row in enumerate(self._rows):
            for name in self._nodes:
                if len(row) < self._replicas and name in self._existing[vbucket]:
                    self._put_directly(vbucket, name)
        for vbucket, row in enumerate(self._rows):
            while len(row) < self._replicas and self._shift(vbucket, costs_nothing=True):
                pass
        for vbucket, row in enumerate(self._rows):
            while len(row) < self._replicas:
                self._place(vbucket)
        return self._rows

    def _allowed(self, vbucket: int, name: str) -> bool:
        return name != self._actives[vbucket] and name not in self._rows[vbucket]

    def _is_free(self, name: str) -> bool:
        return self._room[name] > 0 or (self._over > 0 and name not in self._has_over)

    def _occupy(self, name: str) -> None:
        if self._room[name] > 0:
            self._room[name] -= 1
        else:
            self._over -= 1
            self._has_over.add(name)

    def _put_directly(self, vbucket: int, name: str) -> bool:
        if not self._allowed(vbucket, name) or not self._is_free(name):
            return False
        self._rows[vbucket].add(name)
        self._occupy(name)
        return True

    def _place(self, vbucket: int) -> None:
        direct = [
            name for name in self._nodes if self._is_free(name) and self._allowed(vbucket, name)
        ]
        if direct:
            self._put_directly(vbucket, max(direct, key=lambda name: self._room[name]))
        elif not self._shift(vbucket, costs_nothing=False):
            raise ClusterError("the replicas wanted do not fit on the nodes that stay")

    def _shift(self, vbucket: int, *, costs_nothing: bool) -> bool:
        """Make room along the cheapest path: a copy goes here, the one it displaces goes on.

        False when there is no such path, or none that ``costs_nothing``.
        """
        start = [name for name in self._nodes if self._allowed(vbucket, name)]
        if costs_nothing:
            start = [name for name in start if not self._cost(vbucket, name)]
        cost = {name: self._cost(vbucket, name) for name in start}
        came: dict[str, tuple[str | None, int | None]] = dict.fromkeys(start, (None, vbucket))
        queue = deque(start)
        steps_left = len(self._nodes) ** 3 + len(self._nodes)
        while queue and steps_left:
            steps_left -= 1
            name = queue.popleft()
            for other, (change, moved) in self._onward(name).items():
                if cost[name] + change < cost.get(other, 1 << 30):
                    cost[other] = cost[name] + change
                    came[other] = (name, moved)
                    queue.append(other)
        free = [name for name in self._nodes if self._is_free(name) and name in cost]
        end = min(free, key=lambda name: cost[name], default=None)
        if end is None or (costs_nothing and cost[end]):
            return False
        self._walk_back(end, came)
        return True

    def _cost(self, vbucket: int, name: str) -> int:
        return 0 if name in self._existing[vbucket] else 1

    def _onward(self, name: str) -> dict[str, tuple[int, int | None]]:
        """Other node -> the cheapest copy of ``name`` that may go there, and what that changes.

        Without a copy (None): ``name`` holds one over its share instead of the other.
        """
        found: dict[str, tuple[int, int | None]] = {}
        if name not in self._has_over:
            found.update(dict.fromkeys(self._has_over, (0, None)))
        for vbucket, row in enumerate(self._rows):
            if name not in row:
                continue
            for other in self._nodes:
                if other != name and self._allowed(vbucket, other):
                    change = self._cost(vbucket, other) - self._cost(vbucket, name)
                    if other not in found or change < found[other][0]:
                        found[other] = (change, vbucket)
        return found

    def _walk_back(self, end: str, came: dict[str, tuple[str | None, int | None]]) -> None:
        self._occupy(end)
        name: str = end
        for _ in range(2 * len(self._nodes) + 1):
            before, vbucket = came[name]
            if vbucket is not None:
                self._rows[vbucket].add(name)
            if before is None:
                return
            if vbucket is not None:
                self._rows[vbucket].discard(before)
            else:
                self._has_over.discard(name)
                self._has_over.add(before)
            name = before
        raise AssertionError("a path of displaced copies runs in a circle")


# -- how to get there ----------------------------------------------------------------------------


def moves_between(before: Sequence[Chain], after: Sequence[Chain]) -> list[Move]:
    """The moves that turn chains into others, by vbucket."""
    moves: list[Move] = []
    for vbucket, (was, wanted) in enumerate(zip(before, after, strict=True)):
        moves += chain_moves(vbucket, was, wanted)
    return moves


def chain_moves(vbucket: int, was: Chain, wanted: Chain) -> list[Move]:
    """The moves that turn one chain into another, in the order in which they are legal."""
    moves: list[Move] = []
    chain = trimmed(was)
    active = wanted[0]
    assert chain[0] is not None
    assert active is not None
    if chain[0] != active:
        moved = active_move(vbucket, chain, active, wanted)
        moves.append(moved)
        chain = moved.after
    have = [name for name in chain[1:] if name is not None]
    want = [name for name in wanted[1:] if name is not None]
    surplus = [name for name in have if name not in want]
    for name in (one for one in want if one not in have):
        gone = surplus.pop(0) if surplus else None
        after = _exchanged(chain, gone, name)
        moves.append(_replica_move(vbucket, chain, after, gone, name))
        chain = after
    if surplus:
        after = trimmed(tuple(name for name in chain if name not in surplus))
        moves.append(_replica_move(vbucket, chain, after, surplus[0], active))
    return moves


def active_move(vbucket: int, chain: Chain, target: str, wanted: Chain = ()) -> Move:
    """Hand ownership to ``target``; the old owner stays as a replica if it is wanted as one."""
    source = chain[0]
    assert source is not None
    rest: list[str | None] = list(chain[1:])
    if target in rest:
        # The old owner takes the replica's place: the number of copies stays.
        rest[rest.index(target)] = source
    elif source in wanted[1:]:
        surplus = [name for name in rest if name not in wanted]
        if surplus:
            rest[rest.index(surplus[0])] = source
        else:
            rest.append(source)
    after = trimmed((target, *rest))
    return Move(
        vbucket=vbucket,
        kind=Kind.ACTIVE,
        source=source,
        target=target,
        before=chain,
        after=after,
    )


def _exchanged(chain: Chain, gone: str | None, name: str) -> Chain:
    if gone is None:
        holes = [place for place, one in enumerate(chain) if one is None and place]
        if not holes:
            return (*chain, name)
        return (*chain[: holes[0]], name, *chain[holes[0] + 1 :])
    return tuple(name if one == gone else one for one in chain)


def _replica_move(vbucket: int, chain: Chain, after: Chain, gone: str | None, name: str) -> Move:
    return Move(
        vbucket=vbucket,
        kind=Kind.REPLICA,
        source=gone,
        target=name,
        before=chain,
        after=after,
    )
