"""Cluster: all nodes of one bucket, and the map they share.

The map is asked from the nodes; the newest counts. Where no node was given one yet, it is made from
the states of their vbuckets: a node that has a vbucket active owns it, and an active vbucket that
never held a change and that another node owns with changes is given up. The newest map is kept
beside the cluster file, for the day when nodes are gone.

Rules
- A map is given to the new owner first, then to the old one, then to all others.
- Changes that wait for the same publication travel in one map.
- A node that does not answer is left out and named; it is told when it is back.
- A node that knows no map joins only without documents of its own. One that the map says owns
  documents has lost its disk: it is refused, because its replicas would follow it into emptiness.

Imports: errors, client, wire.opcodes, cluster.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.cluster.chains import (
    MANAGEMENT_PORT,
    Chain,
    Chains,
    Place,
    from_json,
    place_of,
    to_json,
    trimmed,
)
from headrace.cluster.journal import write_durably
from headrace.cluster.nodes import ManagedNode
from headrace.errors import ClusterError, ConnectionLost, RemoteProtocolError, StatusError
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from headrace.cluster.cluster_file import ClusterFile
    from headrace.cluster.copies import Copy

FIRST_EPOCH: Final = 1
"""A map that a node makes for itself has epoch 0: older than any that is given."""


class Cluster:
    """One bucket on all nodes of a cluster file."""

    has_map = True

    def __init__(self, file: ClusterFile, bucket: str) -> None:
        """Know the nodes; `load` asks them."""
        self.file = file
        self.bucket = bucket
        self.nodes = {node.name: ManagedNode(node, bucket) for node in file.nodes}
        self.silent: dict[str, str] = {}
        """Nodes that did not answer when the map was loaded, and why."""
        self.newcomers: tuple[str, ...] = ()
        """Nodes that serve a map of their own."""
        self.stale: tuple[str, ...] = ()
        """Nodes that were given a map once, and not the newest: they were away."""
        self._chains: Chains | None = None
        self._changes: dict[int, Chain] = {}
        self._first: list[str] = []
        self._missing: dict[int, tuple[str, ...]] = {}
        self._publishing = asyncio.Lock()

    @property
    def chains(self) -> Chains:
        """The newest map."""
        assert self._chains is not None, "the map is not loaded"
        return self._chains

    def remember(self, seqnos: Mapping[int, int]) -> None:
        """Keep how far active copies were seen, for the day when one of them is gone."""
        known = {int(vbucket): seqno for vbucket, seqno in self.remembered().items()}
        for vbucket, seqno in seqnos.items():
            known[vbucket] = max(seqno, known.get(vbucket, 0))
        path = self.file.beside(f"{self.bucket}.seqnos.json")
        draft = path.with_name(path.name + ".new")
        draft.write_text(json.dumps(known), encoding="ascii")
        draft.replace(path)

    def remembered(self) -> dict[int, int]:
        """The highest seqno each active copy was seen with; what cannot be read is not known."""
        try:
            said = json.loads(self.file.beside(f"{self.bucket}.seqnos.json").read_bytes())
            return {int(vbucket): int(seqno) for vbucket, seqno in said.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def forget_seqnos(self, vbuckets: Iterable[int]) -> None:
        """Their histories have branched: what was seen before says nothing any more."""
        gone = set(vbuckets)
        kept = {number: seqno for number, seqno in self.remembered().items() if number not in gone}
        path = self.file.beside(f"{self.bucket}.seqnos.json")
        if path.exists():
            path.write_text(json.dumps(kept), encoding="ascii")

    @property
    def map_path_suffix(self) -> str:
        """How the file with the newest map is called, behind the cluster file's name."""
        return f"{self.bucket}.map.json"

    async def close(self) -> None:
        """End all connections."""
        for node in self.nodes.values():
            await node.close()

    # -- the map that is -------------------------------------------------------------------------

    async def load(self, *, tolerant: bool = False) -> Chains:
        """Ask every node for its map; ``tolerant`` goes on without those that do not answer."""
        answers = await self._ask_maps()
        if self.silent and not tolerant:
            raise ClusterError("; ".join(self.silent.values()))
        given = [chains for chains in (_given(answer) for answer in answers.values()) if chains]
        self.newcomers = tuple(name for name in answers if _given(answers[name]) is None)
        kept = self._kept()
        known = [*given, *([kept] if kept is not None else [])]
        if not known and not answers:
            raise ClusterError("; ".join(self.silent.values()))
        if known:
            self._chains = max(known, key=lambda chains: chains.age)
            self._check_names()
        else:
            self._chains = await self._formed(answers)
        self.stale = tuple(
            name
            for name, answer in answers.items()
            if name not in self.newcomers and _age(answer) < self.chains.age
        )
        ages = [_age(answer) for answer in answers.values()]
        places = [_place(self, name, answers.get(name, b"{}")) for name in self.nodes]
        self._chains = self._above(max(ages, default=(0, 0))).with_places(places)
        return self._chains

    def _above(self, age: tuple[int, int]) -> Chains:
        """The map with an epoch no node's own map exceeds, so that the next one is the newest."""
        if age[0] > self.chains.epoch:
            return replace(self.chains, epoch=age[0], revision=max(age[1], self.chains.revision))
        return self.chains

    async def _ask_maps(self) -> dict[str, bytes]:
        results = await asyncio.gather(
            *(node.cluster_map() for node in self.nodes.values()), return_exceptions=True
        )
        answers: dict[str, bytes] = {}
        self.silent = {}
        for name, result in zip(self.nodes, results, strict=True):
            if isinstance(result, ConnectionLost):
                self.silent[name] = f"node {name}: {result}"
            elif isinstance(result, BaseException):
                raise result
            elif not result:
                raise ClusterError(f"node {name} has no cluster map for bucket {self.bucket}")
            else:
                answers[name] = result
        return answers

    def _kept(self) -> Chains | None:
        try:
            return from_json(self.file.beside(self.map_path_suffix).read_bytes())
        except FileNotFoundError:
            return None

    def _check_names(self) -> None:
        held = {name for row in self.chains.rows for name in row if name is not None}
        strangers = sorted(held - set(self.nodes))
        if strangers:
            raise ClusterError(
                f"the map names {', '.join(strangers)}, which {self.file.path} does not; a node "
                "stays in the file, with leaving = true, until rebalance has emptied it"
            )

    # -- the first map ---------------------------------------------------------------------------

    async def _formed(self, answers: Mapping[str, bytes]) -> Chains:
        """The map of nodes that were never given one: their states say who owns what."""
        if self.silent:
            raise ClusterError(
                f"no map was ever given to these nodes, and to make the first all must answer; "
                f"{'; '.join(self.silent.values())}"
            )
        sizes = {name: _vbuckets(answer) for name, answer in answers.items()}
        if len(set(sizes.values())) != 1:
            words = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise ClusterError(f"nodes differ in the number of vbuckets: {words}")
        count = next(iter(sizes.values()))
        copies = {name: await self.nodes[name].copies(count) for name in answers}
        rows = [
            self._owner_row([copies[name][number] for name in copies]) for number in range(count)
        ]
        said = json.loads(next(iter(answers.values())))
        return Chains(
            bucket=self.bucket,
            rows=tuple(rows),
            places=(),
            epoch=FIRST_EPOCH,
            revision=0,
            uuid=str(said.get("uuid") or uuid.uuid4().hex),
            capabilities=tuple(str(name) for name in said.get("bucketCapabilities", [])),
        )

    def _owner_row(self, copies: list[Copy]) -> Chain:
        active = [copy for copy in copies if copy.state == VBucketState.ACTIVE]
        full = [copy for copy in active if copy.high_seqno]
        if len(full) > 1:
            names = ", ".join(copy.node for copy in full)
            raise ClusterError(
                f"vbucket {full[0].vbucket} is active, with documents, on {names}; only one node "
                "may bring documents into a cluster"
            )
        if not active:
            return (None,)
        owner = (full or active)[0]
        replicas = [copy.node for copy in copies if copy.state == VBucketState.REPLICA]
        return trimmed((owner.node, *replicas))

    async def adopt(self, under_way: Collection[int] = ()) -> None:
        """Bring nodes that know no map, or an old one, up to date: they give up what is not theirs.

        A node that was failed over and comes back thinks that it owns vbuckets others own by now;
        its copies of them become dead. Vbuckets whose move is ``under_way`` are left to the move.
        """
        for name in self.stale:
            for copy in await self.nodes[name].copies(self.chains.vbuckets):
                owner = self.chains.active(copy.vbucket)
                is_usurped = copy.state == VBucketState.ACTIVE and owner not in (name, None)
                if is_usurped and copy.vbucket not in under_way:
                    await self.nodes[name].set_state(copy.vbucket, VBucketState.DEAD)
        for name in self.newcomers:
            if self.chains.revision:
                await self._check_newcomer(name)
            for copy in await self.nodes[name].copies(self.chains.vbuckets):
                wanted = name in self.chains.rows[copy.vbucket]
                if copy.state == VBucketState.ACTIVE and not wanted:
                    await self.nodes[name].drop(copy.vbucket, empty=True)
        if self.newcomers or self.stale:
            self.newcomers = self.stale = ()
            await self.publish({})

    async def _check_newcomer(self, name: str) -> None:
        """A node the map names must have what the map says, though it knows no map."""
        copies = await self.nodes[name].copies(self.chains.vbuckets)
        owned = [copy for copy in copies if self.chains.active(copy.vbucket) == name]
        known = await self._known_seqnos(name) if owned else {}
        lost = [
            copy.vbucket
            for copy in owned
            if copy.state != VBucketState.ACTIVE or (known[copy.vbucket] and not copy.high_seqno)
        ]
        if lost:
            raise ClusterError(
                f"node {name} has lost its map and {len(lost)} vbuckets the map says it owns; "
                f"fail it over (headrace failover {self.file.path} {name} --force)"
            )

    async def _known_seqnos(self, name: str) -> Counter[int]:
        """How far the vbuckets of a node were seen, or are in replicas; 0 where nobody knows."""
        known = Counter(self.remembered())
        for other, node in self.nodes.items():
            if other == name or other in self.silent:
                continue
            for copy in await node.copies(self.chains.vbuckets):
                if other in self.chains.replicas(copy.vbucket):
                    known[copy.vbucket] = max(known[copy.vbucket], copy.high_seqno)
        return known

    # -- the map that is to be -------------------------------------------------------------------

    async def publish(
        self, changed: Mapping[int, Chain], first: Iterable[str] = ()
    ) -> tuple[str, ...]:
        """Give every node the map with these chains; the nodes that did not answer."""
        self._changes.update(changed)
        self._first.extend(first)
        async with self._publishing:
            if any(vbucket in self._changes for vbucket in changed) or not changed:
                changes, self._changes = self._changes, {}
                order, self._first = self._first, []
                missing = await self._publish_now(changes, order)
                self._missing.update(dict.fromkeys(changes, missing))
                if not changed:
                    return missing
        return self._missing.get(next(iter(changed)), ())

    async def _publish_now(self, changes: Mapping[int, Chain], order: list[str]) -> tuple[str, ...]:
        self._chains = self.chains.with_rows(changes)
        missing = []
        for name in dict.fromkeys([*order, *self.nodes]):
            try:
                await self._give(name)
            except ConnectionLost:
                missing.append(name)
        # Last, because clients wait for the nodes and nobody for the file.
        path = self.file.beside(self.map_path_suffix)
        await asyncio.to_thread(write_durably, path, to_json(self.chains))
        return tuple(missing)

    async def _give(self, name: str) -> None:
        try:
            await self.nodes[name].give_map(self.chains)
        except StatusError as error:
            # A node with a newer map was given it by another manager, or has started anew.
            epoch, revision = _age(await self.nodes[name].cluster_map())
            if (epoch, revision) < self.chains.age:
                raise ClusterError(f"node {name} refused the map: {error}") from error
            self._chains = self.chains.newer_than(epoch, revision)
            await self.nodes[name].give_map(self.chains)


class Pair(Cluster):
    """Two nodes without a map of their own: the first may feed the second, and nothing is told."""

    has_map = False

    async def load(self, *, tolerant: bool = False) -> Chains:
        """What the first node has active, for the second to follow."""
        answers = await self._ask_maps()
        source, _ = self.nodes
        if source not in answers and self._chains is None:
            raise ClusterError("; ".join(self.silent.values()))
        if self.silent and not tolerant:
            raise ClusterError("; ".join(self.silent.values()))
        if source in answers:
            copies = await self.nodes[source].copies(_vbuckets(answers[source]))
            active = [copy.state == VBucketState.ACTIVE for copy in copies]
            rows = tuple((source,) if one else (None,) for one in active)
            self._chains = Chains(bucket=self.bucket, rows=rows, places=())
        return self.chains

    async def adopt(self, under_way: Collection[int] = ()) -> None:
        """Nobody joins anything."""


def _given(answer: bytes) -> Chains | None:
    return from_json(answer)


def _age(answer: bytes) -> tuple[int, int]:
    try:
        said = json.loads(answer)
        return int(said.get("revEpoch", 0)), int(said.get("rev", 0))
    except (ValueError, TypeError, AttributeError) as error:
        raise RemoteProtocolError(f"cluster map that cannot be read: {error}") from error


def _vbuckets(answer: bytes) -> int:
    try:
        return len(json.loads(answer)["vBucketServerMap"]["vBucketMap"])
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"cluster map without vbuckets: {error!r}") from error


def _place(cluster: Cluster, name: str, answer: bytes) -> Place:
    """Where a node listens: its own word for its ports, the cluster file's for its host.

    A node that is not in the map it was given says nothing of itself; then what was known of it
    stands, if it is still where the file says.
    """
    node = cluster.nodes[name].node
    kind = "kvSSL" if node.is_encrypted else "kv"
    for entry in json.loads(answer).get("nodesExt", []):
        if entry.get("thisNode"):
            return place_of(entry, name, node.address.host)
    for place in cluster.chains.places:
        if place.name == name and (kind, node.address.port) in place.services:
            return replace(place, host=node.address.host)
    services = (("mgmt", MANAGEMENT_PORT), (kind, node.address.port))
    return Place(name=name, host=node.address.host, services=tuple(sorted(services)))
