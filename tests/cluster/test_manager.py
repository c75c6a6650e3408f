"""The map of a cluster: made from states, asked from nodes, kept beside the file, published."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

import pytest

from headrace.cluster.chains import from_json
from headrace.cluster.manager import Cluster, Pair
from headrace.errors import ClusterError
from headrace.wire.opcodes import VBucketState
from tests.cluster.kit import Nodes, running_nodes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

S = VBucketState
KEYS: Final = range(5)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running_nodes(tmp_path) as found:
        found.put("a", 1, KEYS)
        yield found


def managed(
    nodes: Nodes, work: Callable[[Cluster], Awaitable[None]], kind: type[Cluster] = Cluster
) -> None:
    async def main() -> None:
        cluster = kind(nodes.file, "default")
        try:
            await work(cluster)
        finally:
            await cluster.close()

    asyncio.run(main())


async def formed(cluster: Cluster) -> None:
    await cluster.load()
    await cluster.adopt()


def told(nodes: Nodes, name: str) -> dict[str, object]:
    with nodes.link(name) as link:
        said = json.loads(link.cluster_map() or b"{}")
    assert isinstance(said, dict)
    return said


def test_the_first_map_is_made_from_what_nodes_have(nodes: Nodes) -> None:
    nodes.put("b", 2, KEYS)

    async def work(cluster: Cluster) -> None:
        chains = await cluster.load()
        assert chains.rows == (("a",), ("a",), ("b",), ("a",))
        assert (chains.revision, cluster.newcomers) == (0, ("a", "b"))
        assert nodes.states(1) == {"a": S.ACTIVE, "b": S.ACTIVE}, "asking changes nothing"
        await cluster.adopt()
        assert (cluster.chains.epoch, cluster.chains.revision) == (1, 1)

    managed(nodes, work)
    assert nodes.states(1) == {"a": S.ACTIVE, "b": None}
    assert nodes.states(2) == {"a": None, "b": S.ACTIVE}
    for name in nodes.running:
        assert (told(nodes, name)["rev"], told(nodes, name)["revEpoch"]) == (1, 1)


def test_two_nodes_with_documents_in_one_vbucket_are_refused(nodes: Nodes) -> None:
    nodes.put("b", 1, KEYS)

    async def work(cluster: Cluster) -> None:
        with pytest.raises(ClusterError, match="vbucket 1 is active, with documents, on a, b"):
            await cluster.load()

    managed(nodes, work)


def test_the_newest_map_counts_whoever_has_it(nodes: Nodes) -> None:
    async def work(cluster: Cluster) -> None:
        await formed(cluster)
        await cluster.publish({0: ("a",)})
        newest = cluster.chains.with_rows({3: (None,)})
        await cluster.nodes["b"].give_map(newest)
        assert (await cluster.load()).rows[3] == (None,)
        assert cluster.chains.age == newest.age

    managed(nodes, work)


def test_a_map_is_kept_beside_the_file_for_when_nodes_are_gone(nodes: Nodes) -> None:
    managed(nodes, formed)
    kept = nodes.file.beside("default.map.json")
    chains = from_json(kept.read_bytes())
    assert chains is not None
    assert chains.rows == (("a",),) * 4
    for node in nodes.running.values():
        node.crash()

    async def work(cluster: Cluster) -> None:
        assert (await cluster.load(tolerant=True)).rows == chains.rows
        assert set(cluster.silent) == {"a", "b"}
        with pytest.raises(ClusterError, match="node a: nothing listens"):
            await cluster.load()

    managed(nodes, work)


def test_without_a_map_every_node_must_answer(nodes: Nodes) -> None:
    nodes.running["b"].crash()

    async def work(cluster: Cluster) -> None:
        with pytest.raises(ClusterError, match="to make the first all must answer"):
            await cluster.load(tolerant=True)

    managed(nodes, work)


def test_a_node_that_does_not_answer_is_left_out_and_named(nodes: Nodes) -> None:
    async def work(cluster: Cluster) -> None:
        await formed(cluster)
        await asyncio.to_thread(nodes.running["b"].crash)
        assert await cluster.publish({0: ("a",)}) == ("b",)

    managed(nodes, work)
    assert told(nodes, "a")["rev"] == 2


def test_changes_that_wait_for_each_other_travel_in_one_map(nodes: Nodes) -> None:
    async def work(cluster: Cluster) -> None:
        await formed(cluster)
        before = cluster.chains.revision
        await asyncio.gather(*(cluster.publish({number: ("b",)}) for number in range(4)))
        assert cluster.chains.rows == (("b",),) * 4
        assert cluster.chains.revision <= before + 2

    managed(nodes, work)


def test_a_node_in_a_map_that_the_file_does_not_name_is_told(nodes: Nodes) -> None:
    managed(nodes, formed)
    nodes.write_file(names="b")

    async def work(cluster: Cluster) -> None:
        with pytest.raises(ClusterError, match="the map names a, which"):
            await cluster.load()

    managed(nodes, work)


def test_a_node_that_joins_later_gives_up_its_empty_vbuckets(nodes: Nodes) -> None:
    nodes.write_file(names="a")
    managed(nodes, formed)
    nodes.write_file()

    async def work(cluster: Cluster) -> None:
        await cluster.load()
        assert cluster.newcomers == ("b",)
        await cluster.adopt()

    managed(nodes, work)
    assert nodes.states(1) == {"a": S.ACTIVE, "b": None}
    assert told(nodes, "b")["rev"] == 2


def test_a_node_that_joins_with_documents_is_refused(nodes: Nodes) -> None:
    nodes.write_file(names="a")
    managed(nodes, formed)
    nodes.write_file()
    nodes.put("b", 3, KEYS)

    async def work(cluster: Cluster) -> None:
        await cluster.load()
        with pytest.raises(ClusterError, match="b has vbucket 3 with 5 changes of its own"):
            await cluster.adopt()

    managed(nodes, work)
    assert nodes.held("b", 3, KEYS) == set(KEYS)


def test_every_node_is_told_where_the_others_listen(nodes: Nodes) -> None:
    managed(nodes, formed)
    for name in nodes.running:
        entries = told(nodes, name)["nodesExt"]
        assert isinstance(entries, list)
        ports = {entry["name"]: entry["services"]["kv"] for entry in entries}
        assert ports == {one: node.port for one, node in nodes.running.items()}
        assert [entry["name"] for entry in entries if entry.get("thisNode")] == [name]


def test_a_pair_has_no_map_and_follows_what_is_active(nodes: Nodes) -> None:
    async def work(cluster: Cluster) -> None:
        chains = await cluster.load()
        assert chains.rows == (("a",),) * 4
        await cluster.adopt()
        assert not cluster.has_map

    managed(nodes, work, Pair)
    assert nodes.states(1) == {"a": S.ACTIVE, "b": S.ACTIVE}


def test_what_was_seen_is_remembered_until_histories_branch(nodes: Nodes) -> None:
    async def work(cluster: Cluster) -> None:
        assert cluster.remembered() == {}
        cluster.remember({1: 10, 2: 5})
        cluster.remember({1: 8, 3: 1})
        assert cluster.remembered() == {1: 10, 2: 5, 3: 1}
        cluster.forget_seqnos([1])
        assert cluster.remembered() == {2: 5, 3: 1}

    managed(nodes, work)
