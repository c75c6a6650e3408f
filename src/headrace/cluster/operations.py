"""What people ask of a cluster: move, balance, fail over. Each plans first and then does.

Rules
- A plan is made and shown before anything is changed; a dry run stops there.
- Moves that an earlier manager left in the journal are finished before new ones begin.
- Failover promotes, per vbucket, the living copy with the most complete history (`most_complete`),
  and says what may be lost: what is known to have existed above what the promoted copy holds.

Imports: errors, wire.opcodes, cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cluster.chains import Chain, Chains, trimmed
from headrace.cluster.planning import Move, active_move, balanced, moves_between
from headrace.errors import ClusterError, ConfigError, ConnectionLost
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.cluster.copies import Copy
    from headrace.cluster.manager import Cluster


def parse_vbuckets(text: str, count: int) -> tuple[int, ...]:
    """Numbers and ranges (``0-31,40``), or ``all``; ConfigError names the part that is wrong."""
    if text == "all":
        return tuple(range(count))
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError(f"vbuckets {part!r}; allowed: all, or numbers and ranges: 0-31,40")
        low, high = int(first), int(last) if dash else int(first)
        if low > high or high >= count:
            raise ConfigError(f"vbuckets {part!r}; allowed: 0..{count - 1}, rising")
        found.update(dict.fromkeys(range(low, high + 1)))
    return tuple(found)


def plan_move(
    chains: Chains, vbuckets: Sequence[int], *, source: str | None, target: str
) -> list[Move]:
    """Moves of active copies to ``target``; those that are there already are left out."""
    moves = []
    for vbucket in vbuckets:
        owner = chains.active(vbucket)
        if owner == target:
            continue
        if owner is None:
            raise ClusterError(f"vbucket {vbucket} has no active copy; nothing can move")
        if source is not None and owner != source:
            raise ClusterError(f"vbucket {vbucket} is active on {owner}, not on {source}")
        moves.append(active_move(vbucket, chains.rows[vbucket], target))
    return moves


def plan_rebalance(cluster: Cluster) -> list[Move]:
    """The moves to what the cluster file wants."""
    wanted = balanced(cluster.chains, cluster.file.staying, cluster.file.replicas)
    return moves_between(cluster.chains.rows, wanted)


# -- failover ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """What failover does to one vbucket.

    ``known_seqno`` is the highest seqno anyone alive has heard of, ``kept_seqno`` the last one of
    the promoted copy's complete snapshots; ``promoted`` is None when no copy is left.
    """

    vbucket: int
    before: Chain
    after: Chain
    promoted: str | None = None
    known_seqno: int = 0
    kept_seqno: int = 0

    @property
    def owner_changes(self) -> bool:
        """Whether the active copy was on the dead node."""
        return self.before[0] != self.after[0]

    @property
    def may_be_lost(self) -> int:
        """Seqnos between what is known to have existed and what is kept."""
        return max(0, self.known_seqno - self.kept_seqno)


async def plan_failover(cluster: Cluster, dead: str, *, force: bool) -> list[Promotion]:
    """Who takes over from a dead node; ClusterError when a vbucket would be lost unasked."""
    chains = cluster.chains
    if dead not in cluster.silent and not force:
        raise ClusterError(
            f"node {dead} answers; move its vbuckets away (headrace rebalance, with leaving = "
            "true), or say --force to give up what only it has"
        )
    copies = await _living_copies(cluster, dead)
    seen = cluster.remembered()
    plan = []
    for vbucket, row in enumerate(chains.rows):
        if dead in row:
            held = [copy for copy in copies.get(vbucket, []) if force or copy.node in row]
            plan.append(_promotion(vbucket, row, dead, held, seen.get(vbucket, 0)))
    lost = [one for one in plan if one.owner_changes and one.promoted is None]
    if lost and not force:
        raise ClusterError(
            f"{len(lost)} vbuckets have no replica on a living node (the first is "
            f"{lost[0].vbucket}) and would be lost; bring {dead} back, or say --force"
        )
    return plan


async def _living_copies(cluster: Cluster, dead: str) -> dict[int, list[Copy]]:
    found: dict[int, list[Copy]] = {}
    for name, node in cluster.nodes.items():
        if name == dead or name in cluster.silent:
            continue
        for copy in await node.copies(cluster.chains.vbuckets):
            if copy.state in (VBucketState.REPLICA, VBucketState.PENDING, VBucketState.ACTIVE):
                found.setdefault(copy.vbucket, []).append(copy)
    return found


def _promotion(vbucket: int, row: Chain, dead: str, copies: Sequence[Copy], seen: int) -> Promotion:
    rest = tuple(name for name in row if name not in (dead, None))
    known = max([seen, *(max(copy.high_seqno, copy.snapshot_end) for copy in copies)])
    if row[0] != dead:
        after = trimmed((row[0], *(name for name in row[1:] if name != dead)))
        return Promotion(vbucket=vbucket, before=row, after=after)
    best = most_complete(copies)
    if best is None:
        return Promotion(vbucket=vbucket, before=row, after=(None,), known_seqno=known)
    others = tuple(name for name in rest if name != best.node)
    return Promotion(
        vbucket=vbucket,
        before=row,
        after=(best.node, *others),
        promoted=best.node,
        known_seqno=known,
        kept_seqno=best.complete_seqno,
    )


def most_complete(copies: Sequence[Copy]) -> Copy | None:
    """The copy to promote: an owner, else the latest history, else the most of it.

    A seqno says more only on the same branch: a replica that was away while the owner began a new
    branch may hold more, of a history that is no more.
    """
    newest = [copy.log.newest.uuid for copy in copies if copy.log is not None]

    def worth(copy: Copy) -> tuple[bool, int, int, int]:
        known = {entry.uuid for entry in copy.log} if copy.log is not None else set[int]()
        later_than = sum(uuid in known for uuid in newest)
        is_owner = copy.state == VBucketState.ACTIVE
        return is_owner, later_than, copy.complete_seqno, copy.high_seqno

    return max(copies, key=worth, default=None)


async def fail_over(cluster: Cluster, dead: str, plan: Sequence[Promotion]) -> tuple[str, ...]:
    """Carry a plan out; the nodes that could not be told the new map."""
    if dead not in cluster.silent:
        await _silence(cluster, dead, plan)
    for one in plan:
        owner = one.after[0]
        if owner is None:
            continue
        await cluster.nodes[owner].set_state(one.vbucket, VBucketState.ACTIVE, one.after)
    cluster.forget_seqnos(one.vbucket for one in plan if one.owner_changes)
    changed = {one.vbucket: one.after for one in plan}
    missing = await cluster.publish(changed, [name for name in cluster.nodes if name != dead])
    return tuple(name for name in missing if name != dead)


async def _silence(cluster: Cluster, dead: str, plan: Iterable[Promotion]) -> None:
    """A node that answers is made to serve no longer: there is one owner."""
    for one in plan:
        try:
            await cluster.nodes[dead].set_state(one.vbucket, VBucketState.DEAD)
        except ConnectionLost:
            return
