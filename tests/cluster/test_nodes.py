"""Questions and orders to one node."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

import pytest

from headrace.cluster.chains import Chains, Place
from headrace.cluster.nodes import ManagedNode
from headrace.errors import CannotConnect, ClusterError, ConnectionLost, StatusError
from headrace.wire.opcodes import Status, VBucketState
from tests.cluster.kit import Nodes, running_nodes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

S = VBucketState
KEYS: Final = range(5)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running_nodes(tmp_path, "a") as found:
        yield found


def asked(nodes: Nodes, work: Callable[[ManagedNode], Awaitable[None]]) -> None:
    async def main() -> None:
        node = ManagedNode(nodes.file.node("a"), "default")
        try:
            await work(node)
        finally:
            await node.close()

    asyncio.run(main())


def test_copies_are_told_one_by_one_and_all_together(nodes: Nodes) -> None:
    nodes.put("a", 1, KEYS)

    async def work(node: ManagedNode) -> None:
        one = await node.copy(1)
        assert (one.state, one.high_seqno, one.persisted_seqno) == (S.ACTIVE, 5, 5)
        assert one.log is not None
        assert one.is_complete
        every = await node.copies(4)
        assert every[1] == one
        assert [copy.high_seqno for copy in every] == [0, 5, 0, 0]
        await node.drop(2, empty=True)
        assert (await node.copy(2)).state is None
        assert (await node.copies(4))[2].state is None

    asked(nodes, work)


def test_states_are_set_and_an_active_copy_knows_its_chain(nodes: Nodes) -> None:
    async def work(node: ManagedNode) -> None:
        await node.set_state(1, S.ACTIVE, ("a", "b"))
        await node.set_state(2, S.REPLICA)
        assert (await node.copy(2)).state is S.REPLICA

    asked(nodes, work)
    with nodes.link("a") as link:
        assert link.stats("vbucket-details 1")["vb_1:topology"] == '[["a", "b"]]'


def test_an_active_copy_is_not_deleted(nodes: Nodes) -> None:
    async def work(node: ManagedNode) -> None:
        with pytest.raises(ClusterError, match="a has vbucket 1 active; it is not deleted"):
            await node.drop(1)
        await node.set_state(1, S.REPLICA)
        await node.drop(1)
        await node.drop(1)

    asked(nodes, work)
    assert nodes.state("a", 1) is None


def test_a_node_with_documents_cannot_be_emptied_and_serves_on(nodes: Nodes) -> None:
    nodes.put("a", 1, KEYS)

    async def work(node: ManagedNode) -> None:
        with pytest.raises(ClusterError, match="a has vbucket 1 with 5 changes of its own"):
            await node.drop(1, empty=True)

    asked(nodes, work)
    assert nodes.held("a", 1, KEYS) == set(KEYS)


def test_a_node_that_was_started_again_is_asked_again(nodes: Nodes) -> None:
    async def work(node: ManagedNode) -> None:
        assert await node.cluster_map()
        await asyncio.to_thread(nodes.running["a"].restart)
        assert (await node.copy(0)).state is S.ACTIVE
        await asyncio.to_thread(nodes.running["a"].crash)
        with pytest.raises(CannotConnect, match="nothing listens"):
            await node.copy(0)

    asked(nodes, work)


def test_a_map_is_given_and_an_older_one_refused(nodes: Nodes) -> None:
    place = Place(name="a", host="127.0.0.1", services=(("kv", nodes.running["a"].port),))
    given = Chains(bucket="default", rows=(("a",),) * 4, places=(place,), revision=7)

    async def work(node: ManagedNode) -> None:
        await node.give_map(given)
        said = json.loads(await node.cluster_map())
        assert (said["revEpoch"], said["rev"]) == (1, 7)
        older = Chains(bucket="default", rows=(("a",),) * 4, places=(place,), revision=6)
        with pytest.raises(StatusError) as caught:
            await node.give_map(older)
        assert caught.value.status == Status.ERANGE

    asked(nodes, work)


def test_a_node_that_is_closed_is_asked_no_more(nodes: Nodes) -> None:
    async def work(node: ManagedNode) -> None:
        await node.close()
        with pytest.raises(ConnectionLost, match="no longer asked"):
            await node.copy(0)

    asked(nodes, work)
