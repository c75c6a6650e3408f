"""Maps: what clients read in them, and that nothing is lost on the way."""

from __future__ import annotations

import json

import pytest

from headrace.client.address import NodeAddress
from headrace.client.topology import read_map
from headrace.cluster.chains import Chains, Place, from_json, to_json, trimmed
from headrace.errors import RemoteProtocolError

A = Place(name="a", host="10.0.0.1", services=(("kv", 11210), ("mgmt", 8091)))
B = Place(name="b", host="::1", services=(("kv", 11310), ("kvSSL", 11307), ("mgmt", 8091)))
C = Place(name="c", host="10.0.0.3", services=(("kv", 11410), ("mgmt", 8091)))


def chains(*rows: tuple[str | None, ...], revision: int = 4) -> Chains:
    return Chains(
        bucket="default",
        rows=rows,
        places=(A, B, C),
        epoch=2,
        revision=revision,
        uuid="f" * 32,
        capabilities=("dcp", "cccp"),
    )


def test_a_map_read_again_is_the_same() -> None:
    given = chains(("a", "b"), ("b", "c"), (None,), ("c", None, "a"))
    assert from_json(to_json(given)) == given
    fewer = chains(("a",), ("c",))
    read = from_json(to_json(fewer))
    assert read is not None
    assert (read.rows, set(read.places)) == (fewer.rows, {A, B, C})


def test_clients_find_every_vbucket_in_it() -> None:
    given = chains(("a", "b"), ("b",), (None,))
    found = read_map(to_json(given), connected=NodeAddress("10.0.0.1", 11210))
    assert found.node_of(0) == NodeAddress("10.0.0.1", 11210)
    assert found.node_of(1) == NodeAddress("::1", 11310)
    assert found.node_of(2) is None
    assert (found.age, found.bucket, found.uuid) == ((2, 4), "default", "f" * 32)


def test_nodes_without_vbuckets_come_last_and_serve_nothing() -> None:
    said = json.loads(to_json(chains(("a",), ("c",))))
    assert [entry["name"] for entry in said["nodesExt"]] == ["a", "c", "b"]
    assert said["vBucketServerMap"]["serverList"] == ["10.0.0.1:11210", "10.0.0.3:11410"]


def test_a_changed_map_is_one_revision_later_and_changes_nothing_else() -> None:
    before = chains(("a", "b"), ("b",))
    after = before.with_rows({1: ("a",)})
    assert after.rows == (("a", "b"), ("a",))
    assert after.age == (2, 5)
    assert before.rows[1] == ("b",)


@pytest.mark.parametrize(
    ("age", "expected"), [((1, 99), (2, 4)), ((2, 4), (2, 5)), ((2, 9), (2, 10)), ((7, 1), (7, 2))]
)
def test_a_map_can_be_made_newer_than_any(age: tuple[int, int], expected: tuple[int, int]) -> None:
    assert chains(("a",)).newer_than(*age).age == expected


def test_a_map_that_a_node_made_for_itself_is_none_of_ours() -> None:
    said = json.loads(to_json(chains(("a",))))
    del said["nodesExt"][0]["name"]
    assert from_json(json.dumps(said).encode()) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"nodesExt": 3}', b'{"nodesExt": []}'])
def test_a_map_that_cannot_be_read_is_the_nodes_fault(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="cluster map that cannot be read"):
        from_json(data)


def test_a_row_that_names_no_node_is_refused() -> None:
    said = json.loads(to_json(chains(("a",))))
    said["vBucketServerMap"]["vBucketMap"] = [[5]]
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        from_json(json.dumps(said).encode())


@pytest.mark.parametrize(
    ("chain", "expected"),
    [((), (None,)), ((None, None), (None,)), (("a", None), ("a",)), (("a", None, "b"),) * 2],
)
def test_missing_copies_at_the_end_of_a_chain_are_not_told(
    chain: tuple[str | None, ...], expected: tuple[str | None, ...]
) -> None:
    assert trimmed(chain) == expected


def test_who_has_what_can_be_asked() -> None:
    given = chains(("a", "b"), ("b", None, "c"), (None,))
    assert (given.active(0), given.active(2)) == ("a", None)
    assert given.replicas(1) == ("c",)
    assert given.vbuckets_of("b") == (1,)
    assert given.with_places([Place(name="a", host="z", services=())]).places[0].host == "z"
