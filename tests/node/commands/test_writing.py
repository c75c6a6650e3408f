"""SET, ADD, REPLACE, DELETE, APPEND, PREPEND, INCREMENT, DECREMENT over a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.wire import admin, kv
from headrace.wire.frame import FrameInfo
from headrace.wire.opcodes import Datatype, Feature, FrameInfoId, Status
from headrace.wire.values import deflate

if TYPE_CHECKING:
    from headrace.wire.message import Request
    from tests.node.client import Client
    from tests.node.running import RunningNode


def durable(level: int, milliseconds: int | None = None) -> tuple[FrameInfo, ...]:
    tail = b"" if milliseconds is None else milliseconds.to_bytes(2, "big")
    return (FrameInfo(FrameInfoId.DURABILITY, bytes([level]) + tail),)


def test_what_was_set_is_read_back_with_flags_and_cas(client: Client) -> None:
    stored = client.set(b"plain", b"value", flags=0xDEADBEEF)
    found = client.get(b"plain")
    assert (found.value, found.flags, found.cas) == (b"value", 0xDEADBEEF, stored.cas)
    assert stored.cas > 0


def test_the_vbucket_of_the_header_is_obeyed(client: Client) -> None:
    client.set(b"twice", b"in 0", vbucket=0)
    client.set(b"twice", b"in 3", vbucket=3)
    assert client.get(b"twice", vbucket=0).value == b"in 0"
    assert client.get(b"twice", vbucket=3).value == b"in 3"


def test_a_vbucket_that_is_not_here_is_refused_with_the_map(client: Client) -> None:
    refusal = client.refusal(kv.Get(key=b"k", vbucket=99))
    assert refusal.status == Status.NOT_MY_VBUCKET
    assert b'"vBucketServerMap"' in refusal.value


def test_a_matching_cas_swaps_and_another_does_not(client: Client) -> None:
    first = client.set(b"swap", b"1").cas
    second = client.set(b"swap", b"2", cas=first).cas
    assert second != first
    assert client.status(kv.Set(key=b"swap", value=b"3", cas=first)) == Status.KEY_EEXISTS
    assert client.status(kv.Set(key=b"none", value=b"3", cas=first)) == Status.KEY_ENOENT
    assert client.get(b"swap").value == b"2"


def test_add_needs_a_new_key_and_replace_an_old_one(client: Client) -> None:
    assert client.status(kv.Replace(key=b"add", value=b"0")) == Status.KEY_ENOENT
    assert client.status(kv.Add(key=b"add", value=b"1")) == Status.SUCCESS
    assert client.status(kv.Add(key=b"add", value=b"2")) == Status.KEY_EEXISTS
    assert client.status(kv.Replace(key=b"add", value=b"3")) == Status.SUCCESS
    assert client.get(b"add").value == b"3"
    assert client.status(kv.Add(key=b"fresh", value=b"1", cas=7)) == Status.EINVAL


def test_a_deleted_document_is_gone_and_can_be_added_again(client: Client) -> None:
    cas = client.set(b"del", b"1").cas
    assert client.status(kv.Delete(key=b"del", cas=cas + 1)) == Status.KEY_EEXISTS
    assert client.ask(kv.Delete(key=b"del", cas=cas), kv.DeleteReply).cas != cas
    assert client.status(kv.Delete(key=b"del")) == Status.KEY_ENOENT
    assert client.status(kv.Get(key=b"del")) == Status.KEY_ENOENT
    assert client.status(kv.Add(key=b"del", value=b"2")) == Status.SUCCESS


def test_append_and_prepend_join_and_need_a_document(client: Client) -> None:
    assert client.status(kv.Append(key=b"join", value=b"x")) == Status.NOT_STORED
    client.set(b"join", b"b", flags=7)
    client.ask(kv.Append(key=b"join", value=b"c"), kv.AppendReply)
    client.ask(kv.Prepend(key=b"join", value=b"a"), kv.PrependReply)
    found = client.get(b"join")
    assert (found.value, found.flags) == (b"abc", 7)


def test_a_counter_starts_counts_wraps_and_stops_at_zero(client: Client) -> None:
    up = kv.Increment(key=b"count", delta=3, initial=10)
    assert client.ask(up, kv.IncrementReply).number == 10
    assert client.ask(up, kv.IncrementReply).number == 13
    assert client.get(b"count").value == b"13"
    down = kv.Decrement(key=b"count", delta=20)
    assert client.ask(down, kv.DecrementReply).number == 0
    client.set(b"count", b"18446744073709551615")
    assert client.ask(kv.Increment(key=b"count", delta=2), kv.IncrementReply).number == 1


def test_a_counter_that_must_exist_and_one_that_is_no_number(client: Client) -> None:
    must = kv.Increment(key=b"no-count", delta=1, expiration=0xFFFFFFFF)
    assert client.status(must) == Status.KEY_ENOENT
    client.set(b"no-count", b"12x")
    assert client.status(kv.Increment(key=b"no-count", delta=1)) == Status.DELTA_BADVAL


@pytest.mark.parametrize(
    "quiet",
    [
        kv.Set(key=b"quiet", value=b"1", quiet=True),
        kv.Append(key=b"quiet", value=b"1", quiet=True),
        kv.Increment(key=b"quiet-n", delta=1, quiet=True),
        kv.Delete(key=b"quiet", quiet=True),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_quiet_success_says_nothing(client: Client, quiet: Request) -> None:
    client.set(b"quiet", b"1")
    client.send(quiet, admin.KvNoop())
    assert isinstance(client.receive(), admin.KvNoopReply)


def test_a_quiet_failure_speaks(client: Client) -> None:
    client.send(kv.Delete(key=b"never", quiet=True), admin.KvNoop())
    refusal = client.receive()
    assert getattr(refusal, "status", None) == Status.KEY_ENOENT


def test_mutation_tokens_name_the_branch_and_count_up(client: Client) -> None:
    client.hello(Feature.MUTATION_SEQNO)
    one, two = client.set(b"token", b"1"), client.set(b"token", b"2")
    assert one.vb_uuid == two.vb_uuid
    assert one.seqno is not None
    assert two.seqno == one.seqno + 1


def test_json_is_what_parses_whatever_the_client_says(client: Client) -> None:
    client.set(b"json", b'{"a": 1}')
    client.set(b"not-json", b"{a: 1}")
    assert client.get(b"json").datatype == 0, "no datatype was negotiated"
    client.hello(Feature.JSON)
    assert client.get(b"json").datatype == Datatype.JSON
    assert client.get(b"not-json").datatype == 0
    client.set(b"lie", b"not JSON", datatype=Datatype.JSON)
    assert client.get(b"lie").datatype == 0


def test_snappy_is_inflated_for_those_who_did_not_ask_for_it(client: Client) -> None:
    packed = deflate(b"a" * 100)
    refused = kv.Set(key=b"snappy", value=packed, datatype=Datatype.SNAPPY)
    assert client.status(refused) == Status.EINVAL
    client.hello(Feature.SNAPPY)
    client.set(b"snappy", packed, datatype=Datatype.SNAPPY)
    found = client.get(b"snappy")
    assert (found.value, found.datatype) == (packed, Datatype.SNAPPY)
    junk = kv.Set(key=b"snappy", value=b"\xff\xff\xff\xff\xff", datatype=Datatype.SNAPPY)
    assert client.status(junk) == Status.EINVAL
    client.hello()
    found = client.get(b"snappy")
    assert (found.value, found.datatype) == (b"a" * 100, 0)


def test_a_key_over_the_limit_and_a_value_over_the_limit_are_refused(client: Client) -> None:
    assert client.status(kv.Set(key=b"k" * 250, value=b"")) == Status.SUCCESS
    assert client.status(kv.Set(key=b"k" * 251, value=b"")) == Status.EINVAL
    big = kv.Set(key=b"big", value=bytes(20 * 1024 * 1024 + 1))
    assert client.status(big) == Status.E2BIG


def test_majority_is_met_by_one_node_and_the_write_is_visible(client: Client) -> None:
    client.hello(Feature.ALT_REQUEST, Feature.SYNC_REPLICATION)
    request = kv.Set(key=b"majority", value=b"1", frame_infos=durable(1, 1000))
    assert client.ask(request, kv.SetReply).cas
    assert client.get(b"majority").value == b"1"
    client.ask(kv.Delete(key=b"majority", frame_infos=durable(1)), kv.DeleteReply)
    assert client.status(kv.Get(key=b"majority")) == Status.KEY_ENOENT


@pytest.mark.parametrize(
    ("infos", "status"),
    [
        (durable(2), Status.DURABILITY_INVALID_LEVEL),
        (durable(3), Status.DURABILITY_INVALID_LEVEL),
        (durable(0), Status.DURABILITY_INVALID_LEVEL),
        (durable(4), Status.DURABILITY_INVALID_LEVEL),
        (durable(1, 0), Status.EINVAL),
        (durable(1, 0xFFFF), Status.EINVAL),
        ((FrameInfo(FrameInfoId.DURABILITY, b"\x01\x02"),), Status.EINVAL),
        ((FrameInfo(14),), Status.UNKNOWN_FRAME_INFO),
        ((FrameInfo(FrameInfoId.STREAM_ID, b"\0\1"),), Status.EINVAL),
    ],
)
def test_durability_a_memory_bucket_cannot_have_is_refused(
    client: Client, infos: tuple[FrameInfo, ...], status: Status
) -> None:
    client.hello(Feature.ALT_REQUEST)
    assert client.status(kv.Set(key=b"refused", value=b"1", frame_infos=infos)) == status
    assert client.status(kv.Get(key=b"refused")) == Status.KEY_ENOENT


def test_frame_infos_need_alt_request(client: Client) -> None:
    request = kv.Set(key=b"alt", value=b"1", frame_infos=durable(1))
    assert client.status(request) == Status.EINVAL


def test_preserve_ttl_keeps_the_expiry_of_the_version_before(client: Client) -> None:
    client.hello(Feature.ALT_REQUEST, Feature.PRESERVE_TTL)
    client.set(b"ttl", b"1", expiration=1000)
    before = client.ask(kv.GetMeta(key=b"ttl"), kv.GetMetaReply).expiration
    keep = (FrameInfo(FrameInfoId.PRESERVE_TTL),)
    client.ask(kv.Set(key=b"ttl", value=b"2", frame_infos=keep), kv.SetReply)
    assert client.ask(kv.GetMeta(key=b"ttl"), kv.GetMetaReply).expiration == before
    client.set(b"ttl", b"3")
    assert client.ask(kv.GetMeta(key=b"ttl"), kv.GetMetaReply).expiration == 0


def test_writers_of_a_vbucket_that_must_drain_try_again_later(
    client: Client, node: RunningNode
) -> None:
    host = node.node.hosts["default"]
    client.set(b"drain", b"v")
    node.call(lambda: host.hold_writes(0, held=True))
    try:
        for request in (
            kv.Set(key=b"drain", value=b"w"),
            kv.Delete(key=b"drain"),
            kv.Touch(key=b"drain", expiration=9),
        ):
            assert client.status(request) == Status.ETMPFAIL
        assert client.get(b"drain").value == b"v"
        assert client.status(kv.Set(key=b"drain", vbucket=1)) == Status.SUCCESS
    finally:
        node.call(lambda: host.hold_writes(0, held=False))
    client.set(b"drain", b"w")
