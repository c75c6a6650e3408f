"""Broken input and slow peers: the status or the close, a line in the log, and a node that
lives."""

from __future__ import annotations

import logging
import random
import socket
import struct
from functools import partial
from typing import TYPE_CHECKING

import pytest

from headrace.node import config as limits
from headrace.node.config import BucketConfig, NodeConfig
from headrace.node.manifest import from_json
from headrace.store import BucketSettings
from headrace.wire import admin, kv
from headrace.wire.messages import CloseStream
from headrace.wire.opcodes import Feature, Opcode, Status
from tests.node.client import Client
from tests.node.running import SMALL, RunningNode, running
from tests.soak.crowd import reader_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.wire.frame import Frame
    from headrace.wire.message import Request


@pytest.fixture
def own() -> Iterator[RunningNode]:
    """A node of this test's own."""
    with running(NodeConfig(buckets=(SMALL,))) as node:
        yield node


def header(
    opcode: int,
    *,
    magic: int = 0x80,
    key: int = 0,
    extras: int = 0,
    datatype: int = 0,
    body: int = 0,
    vbucket: int = 0,
) -> bytes:
    return struct.pack(">BBHBBHIIQ", magic, opcode, key, extras, datatype, vbucket, body, 7, 0)


def alive(node: RunningNode) -> bool:
    with Client(node.port) as client:
        return client.status(admin.KvNoop()) == Status.SUCCESS


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(b"\x00", id="one byte of bad magic"),
        pytest.param(header(0x00, magic=0x99), id="unknown magic"),
        pytest.param(header(0x00, magic=0x81), id="a reply nobody asked for"),
        pytest.param(header(0x01, magic=0x82), id="a server's request"),
        pytest.param(header(0x01, key=10, body=5) + bytes(5), id="key longer than body"),
        pytest.param(header(0x01, extras=8, key=1, body=8) + bytes(8), id="parts over the body"),
        pytest.param(header(0x01, body=30 * 1024 * 1024 + 1), id="body over the limit"),
        pytest.param(header(0x01, body=0xFFFFFFFF), id="body of four gigabytes"),
    ],
)
def test_a_frame_whose_end_cannot_be_found_closes_the_connection(
    node: RunningNode, data: bytes
) -> None:
    with Client(node.port) as client:
        client.send_bytes(data)
        assert client.is_closed()
    assert alive(node)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(header(0x4A), Status.UNKNOWN_COMMAND, id="unknown opcode"),
        pytest.param(header(0xFF), Status.UNKNOWN_COMMAND, id="last opcode"),
        pytest.param(header(0x00), Status.EINVAL, id="GET without key"),
        pytest.param(header(0x00, extras=4, key=1, body=5) + bytes(5), 4, id="GET with extras"),
        pytest.param(header(0x00, key=1, body=2) + b"kv", Status.EINVAL, id="GET with value"),
        pytest.param(header(0x01, key=1, body=1) + b"k", Status.EINVAL, id="SET without extras"),
        pytest.param(header(0x05, extras=8, key=1, body=9) + bytes(9), 4, id="INCR, half extras"),
        pytest.param(header(0x1F, body=3) + b"abc", Status.EINVAL, id="HELLO of odd length"),
        pytest.param(header(0x91, body=7) + bytes(7), Status.EINVAL, id="OBSERVE of 7 bytes"),
        pytest.param(header(0x48, extras=3, body=3) + bytes(3), 4, id="seqnos, 3 bytes"),
        pytest.param(header(0x00, key=1, body=1, datatype=1) + b"k", 4, id="datatype unasked"),
        pytest.param(header(0x00, key=1, body=1, datatype=0xFF) + b"k", 4, id="datatype ff"),
        pytest.param(header(0xD0, key=1, body=4) + b"k\xc5\0\0", 4, id="half a path"),
        pytest.param(header(0x53, body=0), Status.EINVAL, id="stream request before open"),
        pytest.param(header(0x50, extras=8, body=8) + bytes(8), 4, id="open without name"),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_and_the_next_one_served(
    node: RunningNode, data: bytes, status: Status
) -> None:
    with Client(node.port) as client:
        client.send_bytes(data)
        reply = client.receive_frame()
        assert (reply.status, reply.opaque) == (status, 7)
        assert client.status(admin.KvNoop()) == Status.SUCCESS


def test_a_refusal_explains_itself_in_json(client: Client) -> None:
    client.hello(Feature.JSON, Feature.XERROR)
    client.send_bytes(header(0x01, key=1, body=1) + b"k")
    reply = client.receive_frame()
    assert reply.datatype == 1
    assert reply.value.startswith(b'{"error":{"context":"SET with 0 bytes of extras')


def test_the_reason_of_a_close_is_logged(
    node: RunningNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "headrace.node")
    with Client(node.port) as client:
        client.send_bytes(b"\x99")
        assert client.is_closed()
    facts = [getattr(record, "facts", {}) for record in caplog.records]
    assert any("magic 99" in str(fact.get("reason")) for fact in facts)


def test_any_split_of_the_input_gives_the_same_replies(client: Client) -> None:
    requests = b"".join(
        client.encode(request)
        for request in (
            kv.Set(key=b"split", value=b"v" * 100),
            kv.Get(key=b"split"),
            kv.Delete(key=b"split"),
            admin.KvNoop(),
        )
    )
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for size in (1, 7, 24, 25, 100, len(requests)):
        for at in range(0, len(requests), size):
            client.send_bytes(requests[at : at + size])
        kinds = [type(client.receive()) for _ in range(4)]
        assert kinds == [kv.SetReply, kv.GetReply, kv.DeleteReply, admin.KvNoopReply]


def test_a_long_pipeline_is_answered_in_order(client: Client) -> None:
    count = 5_000
    requests = [
        request
        for number in range(count)
        for request in (
            kv.Set(key=b"p%d" % (number % 50), value=b"%d" % number),
            kv.GetMeta(key=b"p%d" % (number % 50)),
        )
    ]
    first = 1
    client.send(*requests)
    for opaque in range(first, first + 2 * count):
        assert client.receive_frame().opaque == opaque


def plain_requests(chance: random.Random, count: int, prefixes: tuple[bytes, ...]) -> list[Request]:
    """Requests of which many are plain and some are not."""
    made: list[Request] = []
    for _ in range(count):
        key = chance.choice(prefixes) + b"k%d" % chance.randrange(12)
        value = chance.choice([b"", b"text", b'{"a":1}', b"[1,", b"12", b"x" * 3_000])
        quiet = chance.random() < 0.3
        vbucket = chance.choice([0, 0, 1, 3, 9])
        expiration = chance.choice([0, 0, 0, 1_000, 2_592_001, 4_000_000_000])
        made.append(
            chance.choice(
                [
                    kv.Get(key=key, vbucket=vbucket, quiet=quiet),
                    kv.Get(key=key, vbucket=vbucket, quiet=quiet),
                    kv.GetK(key=key, vbucket=vbucket, quiet=quiet),
                    kv.Set(key=key, vbucket=vbucket, quiet=quiet, value=value, flags=7),
                    kv.Set(key=key, vbucket=vbucket, value=value, expiration=expiration),
                    kv.Set(key=key, vbucket=vbucket, value=value, cas=chance.choice([0, 12345])),
                    kv.Add(key=key, vbucket=vbucket, quiet=quiet, value=value),
                    kv.Append(key=key, vbucket=vbucket, value=b"+"),
                    kv.Delete(key=key, vbucket=vbucket, quiet=quiet),
                    kv.Increment(key=key, vbucket=vbucket, delta=1),
                    kv.Get(key=b"k" * 251, vbucket=vbucket),
                    admin.KvNoop(),
                ]
            )
        )
    return made


FEATURES = [
    (),
    (Feature.JSON,),
    (Feature.MUTATION_SEQNO, Feature.JSON),
    (Feature.COLLECTIONS, Feature.JSON),
]
PREFIXES = (b"\0", b"\0", b"\x09", b"\x09", b"\x0a", b"\x89\0", b"\xac\x02", b"\xff", b"")
"""The default collection, one that is there, one with a longest life, and doubtful ones."""
MANIFEST = {
    "uid": "1",
    "scopes": [
        {
            "name": "_default",
            "uid": "0",
            "collections": [
                {"name": "_default", "uid": "0"},
                {"name": "fruit", "uid": "9"},
                {"name": "short", "uid": "a", "maxTTL": 1000},
            ],
        }
    ],
}


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("seed", range(8))
def test_requests_served_in_runs_are_answered_as_one_by_one(
    seed: int, features: tuple[int, ...]
) -> None:
    chance = random.Random(seed)
    prefixes = PREFIXES if Feature.COLLECTIONS in features else (b"",)
    requests = [*plain_requests(chance, 400, prefixes), admin.KvNoop()]
    told, counted = [], []
    for runs in (True, False):
        with running(NodeConfig(buckets=(SMALL,))) as node, Client(node.port) as client:
            node.node.serves_runs = runs
            host = node.node.default_host()
            assert host is not None
            node.call(partial(host.apply_manifest, from_json(MANIFEST)))
            client.hello(*features)
            client.send(*requests)
            frames: list[Frame] = []
            while not frames or frames[-1].opaque != len(requests) + 1:
                frames.append(client.receive_frame())
            served = node.node.counters.bulk_bytes
            told.append([without_chance(frame) for frame in frames])
            counted.append(node.call(partial(getattr, host, "counters")))
        assert bool(served) is runs
    assert told[0] == told[1], f"seed {seed}"
    assert counted[0] == counted[1], f"seed {seed}: statistics know no runs"


def without_chance(frame: Frame) -> tuple[object, ...]:
    """A reply without what two nodes choose for themselves: CAS, branch, epoch."""
    value = b"map" if frame.status == Status.NOT_MY_VBUCKET else frame.value
    extras = frame.extras[8:] if len(frame.extras) == 16 else frame.extras
    has_cas = frame.cas != 0
    return (
        frame.opcode,
        frame.opaque,
        frame.status,
        frame.datatype,
        extras,
        frame.key,
        value,
        has_cas,
    )


def test_a_large_value_travels_both_ways(client: Client) -> None:
    value = bytes(range(256)) * (20 * 4096)
    client.set(b"large", value)
    assert client.get(b"large").value == value


def test_a_peer_that_does_not_read_is_not_read_and_others_go_on(own: RunningNode) -> None:
    with Client(own.port) as writer:
        writer.set(b"big", bytes(4 * 1024 * 1024))
    with Client(own.port) as stuck, Client(own.port) as other:
        request = stuck.encode(kv.GetMeta(key=b"big")) + stuck.encode(kv.Get(key=b"big"))
        stuck.socket.setblocking(False)
        asked = 0
        try:
            while asked < 100_000:
                asked += stuck.socket.send(request) // len(request)
        except BlockingIOError:
            pass
        assert other.status(admin.KvNoop()) == Status.SUCCESS
        held = [connection for connection in own.node.connections if connection.unsent_bytes]
        assert all(connection.unsent_bytes < limits.OUTPUT_HELD_MAX for connection in held), (
            "what is held for it is bounded"
        )
    assert alive(own)


def test_half_a_frame_is_waited_for_and_then_given_up(own: RunningNode) -> None:
    with Client(own.port) as client:
        client.ask(admin.KvNoop(), admin.KvNoopReply)
        client.send_bytes(header(0x01, body=100))
        other_calls = 0
        while not any(connection.held_bytes for connection in own.node.connections):
            other_calls += alive(own)
        (connection,) = [one for one in own.node.connections if one.held_bytes]
        own.call(lambda: connection.check_time(connection.received_at + 1.0))
        assert not connection.closed_reason
        late = connection.received_at + limits.HALF_FRAME_SECONDS_MAX + 1.0
        own.call(lambda: connection.check_time(late))
        assert client.is_closed()
    assert alive(own)


def test_a_peer_that_disappears_in_the_middle_is_forgotten(own: RunningNode) -> None:
    for _ in range(20):
        client = Client(own.port)
        client.send_bytes(header(0x01, extras=8, key=1, body=1000) + bytes(100))
        client.close()
    with Client(own.port) as client:
        while len(own.node.connections) > 1:
            client.ask(admin.KvNoop(), admin.KvNoopReply)


def test_nothing_is_written_to_a_link_that_broke(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio complains of every further write, in the log of whoever runs the node."""
    config = NodeConfig(buckets=(BucketConfig(settings=BucketSettings(vbuckets=64)),))
    with running(config) as node:
        with Client(node.port) as client:
            for number in range(200):
                write = (
                    kv.Set(key=b"k%d" % number, value=bytes(1024), vbucket=one) for one in range(64)
                )
                client.send(*write)
                for _ in range(64):
                    client.receive()
        for _ in range(20):
            link = socket.create_connection(("127.0.0.1", node.port), 10)
            link.sendall(reader_bytes("breaks"))
            link.recv(1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.close()
        assert alive(node)
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_an_unexpected_failure_is_answered_and_logged(
    own: RunningNode, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = own.node.hosts["default"].bucket

    def explode(number: int) -> None:
        raise ZeroDivisionError(number)

    with Client(own.port) as client:
        monkeypatch.setattr(bucket, "find", explode, raising=False)
        assert client.status(kv.GetMeta(key=b"k")) == Status.EINTERNAL
        monkeypatch.undo()
        assert client.status(kv.GetMeta(key=b"k")) == Status.KEY_ENOENT
    assert any(record.exc_info for record in caplog.records)


DOCUMENTS = 40


@pytest.fixture
def large(tmp_path: Path) -> Iterator[RunningNode]:
    """A node with 40 MB on disk and nothing in memory."""
    config = NodeConfig(data=tmp_path / "data", buckets=(SMALL,))
    with running(config) as node, Client(node.port) as client:
        for number in range(DOCUMENTS):
            client.set(b"k%d" % number, bytes(1024 * 1024))
    with running(config) as node:
        yield node


def begin_backfill(node: RunningNode) -> Client:
    """A peer that has seen the beginning of a backfill and reads no more."""
    client = Client(node.port)
    client.send_bytes(reader_bytes("ahead", vbuckets=1))
    while client.receive_frame().opcode != Opcode.MUTATION:
        pass
    return client


def views(node: RunningNode) -> int:
    host = node.node.default_host()
    assert host is not None
    return len(host.bucket.vbucket(0).views)


def test_a_stream_is_closed_in_the_middle_of_a_backfill_that_is_read_ahead(
    large: RunningNode,
) -> None:
    with begin_backfill(large) as client:
        client.send(CloseStream(opaque=99))
        mutations = 1
        while (frame := client.receive_frame()).opcode != Opcode.CLOSE_STREAM:
            mutations += frame.opcode == Opcode.MUTATION
        assert frame.status == Status.SUCCESS
        assert mutations < DOCUMENTS, "what was sent before the close, not everything"
        assert large.call(lambda: views(large)) == 0


def test_a_peer_that_goes_away_while_its_next_chunk_is_read_leaves_nothing_behind(
    large: RunningNode,
) -> None:
    for _ in range(10):
        begin_backfill(large).close()
    with Client(large.port) as client:
        client.ask(admin.KvNoop(), admin.KvNoopReply)
        while len(large.node.connections) > 1:
            client.ask(admin.KvNoop(), admin.KvNoopReply)
        assert large.call(lambda: views(large)) == 0
    assert alive(large)


def test_what_waits_for_a_peer_counts_in_the_quota_until_it_is_gone(large: RunningNode) -> None:
    host = large.node.default_host()
    assert host is not None
    bucket = host.bucket
    with begin_backfill(large), Client(large.port) as other:
        while not bucket.hold_outside(0):
            other.ask(admin.KvNoop(), admin.KvNoopReply)
        assert bucket.memory_used >= bucket.hold_outside(0)
        assert bucket.hold_outside(0) <= limits.OUTPUT_HIGH + 2 * limits.PULL_SLICE + 2**20
    with Client(large.port) as other:
        while bucket.hold_outside(0):
            other.ask(admin.KvNoop(), admin.KvNoopReply)


def test_peers_that_do_not_read_get_small_slices_once_they_hold_their_share(
    large: RunningNode,
) -> None:
    host = large.node.default_host()
    assert host is not None
    bucket = host.bucket
    share = bucket.settings.memory_quota // limits.OUTPUT_SHARE
    large.call(lambda: bucket.hold_outside(share + 1))
    with begin_backfill(large) as client:
        mutations = 1
        while mutations < DOCUMENTS:
            mutations += client.receive_frame().opcode == Opcode.MUTATION
            held = bucket.hold_outside(0) - share - 1
            assert held <= limits.OUTPUT_HIGH + limits.PULL_SLICE_TIGHT + 2**20


def test_a_slice_is_a_small_part_of_a_small_quota(tmp_path: Path) -> None:
    settings = BucketSettings(vbuckets=1, memory_quota=32 * limits.MIB)
    config = NodeConfig(data=tmp_path / "data", buckets=(BucketConfig(settings=settings),))
    size = 256 * limits.KIB
    with running(config) as node, Client(node.port) as client:
        for number in range(DOCUMENTS * 2):
            client.set(b"k%d" % number, bytes(size))
    with running(config) as node:
        host = node.node.default_host()
        assert host is not None
        with begin_backfill(node), Client(node.port) as other:
            while not host.bucket.hold_outside(0):
                other.ask(admin.KvNoop(), admin.KvNoopReply)
            part = settings.memory_quota // limits.SLICE_SHARE
            assert host.bucket.hold_outside(0) <= limits.OUTPUT_HIGH + 2 * (part + size)


def test_the_first_streams_send_before_the_last_is_asked_for() -> None:
    """A thousand stream requests come at once: their answers are not all made before any data."""
    vbuckets = 4 * limits.STREAM_REQUESTS_PER_TURN
    bucket = BucketConfig(settings=BucketSettings(vbuckets=vbuckets))
    with running(NodeConfig(buckets=(bucket,))) as node, Client(node.port) as client:
        host = node.node.default_host()
        assert host is not None
        node.call(lambda: host.bucket.vbucket(0).store(b"\0key", b"value"))
        client.send_bytes(reader_bytes("many", vbuckets=vbuckets))
        order = [client.receive_frame().opcode for _ in range(vbuckets + 3)]
    assert order.count(Opcode.STREAM_REQ) == vbuckets
    assert order.index(Opcode.MUTATION) < vbuckets
