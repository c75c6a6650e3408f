"""STAT groups over a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.node.config import VERSION
from headrace.wire import admin, kv, messages
from headrace.wire.opcodes import SEQNO_MAX, Status
from tests.node.client import Client

if TYPE_CHECKING:
    from tests.node.running import RunningNode


def test_the_general_group_counts(client: Client) -> None:
    client.ask(admin.Stat(key=b"reset"), admin.StatReply)
    client.set(b"stat", b"v", vbucket=1)
    client.call(kv.Touch(key=b"stat-miss", expiration=1))
    found = client.stats()
    assert int(found["curr_connections"]) >= 1
    assert found["version"] == VERSION
    assert int(found["curr_items"]) >= 1
    assert {"pid", "uptime", "time", "cmd_get", "cmd_set", "bytes"} <= found.keys()


def test_vbuckets_have_states_details_and_seqnos(client: Client) -> None:
    client.set(b"k", b"v", vbucket=2)
    assert client.stats("vbucket") == {f"vb_{number}": "active" for number in range(4)}
    details = client.stats("vbucket-details 2")
    assert details["vb_2"] == "active"
    seqnos = client.stats("vbucket-seqno 2")
    assert seqnos["vb_2:high_seqno"] == details["vb_2:high_seqno"] != "0"
    assert seqnos["vb_2:uuid"] == seqnos["vb_2:vb_uuid"]
    assert len(client.stats("vbucket-seqno")) == 4 * len(seqnos)
    failovers = client.stats("failovers 2")
    assert failovers["vb_2:num_entries"] == "1"
    assert failovers["vb_2:0:id"] == seqnos["vb_2:uuid"]
    assert failovers["vb_2:0:seq"] == "0"


@pytest.mark.parametrize(
    ("group", "status"),
    [
        (b"nonsense", Status.KEY_ENOENT),
        (b"\xff", Status.EINVAL),
        (b"vbucket-seqno x", Status.EINVAL),
        (b"vbucket-seqno -1", Status.EINVAL),
        (b"vbucket-seqno 99", Status.NOT_MY_VBUCKET),
        (b"failovers 99999", Status.NOT_MY_VBUCKET),
        (b"dcp-vbtakeover", Status.EINVAL),
    ],
)
def test_a_group_that_is_not_there_says_so(client: Client, group: bytes, status: Status) -> None:
    assert client.status(admin.Stat(key=group)) == status


def test_nothing_of_a_bucket_in_memory_is_told_as_persisted(client: Client) -> None:
    client.ask(kv.Set(key=b"k", value=b"1"), kv.SetReply)
    assert int(client.stats("vbucket-details 0")["vb_0:high_seqno"]) >= 1
    for group in ("vbucket-details 0", "vbucket-seqno 0"):
        assert client.stats(group)["vb_0:last_persisted_seqno"] == "0"


def test_change_stream_connections_are_told_with_their_streams(
    client: Client, node: RunningNode
) -> None:
    with Client(node.port) as stream:
        stream.open_producer(b"stat:one")
        stream.send(
            messages.StreamRequest(
                vbucket=0,
                flags=0,
                start_seqno=0,
                end_seqno=SEQNO_MAX,
                vb_uuid=0,
                snap_start_seqno=0,
                snap_end_seqno=0,
            )
        )
        assert isinstance(stream.receive(), messages.StreamRequestReply)
        found = client.stats("dcp")
        assert found["ep_dcp_count"] == "1"
        assert found["eq_dcpq:stat:one:type"] == "producer"
        assert "eq_dcpq:stat:one:stream_0_opaque" in found
        assert client.stats("dcpagg :")["stat:producer_count"] == "1"
        left = client.stats("dcp-vbtakeover 0 stat:one")
        assert left["name"] == "stat:one"
        assert left["status"] != "does_not_exist"
    assert client.stats("dcp-vbtakeover 1 nobody")["status"] == "does_not_exist"
