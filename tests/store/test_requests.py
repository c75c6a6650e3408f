"""Bulk service of plain requests against the slow road, request by request."""

from __future__ import annotations

import json
import random
import struct
from typing import Final

import numpy as np
import pytest

from headrace.store import AT_REST, Bucket
from headrace.store import layout as at
from headrace.store.requests import HITS, MISSES
from headrace.wire.opcodes import Opcode, VBucketState
from tests.store.kit import make_bucket, read_memory, reopened

HEADER: Final = struct.Struct(">BBHBBHIIQ")
NOW: Final = 1_700_000_000
QUIET: Final = {Opcode.SETQ, Opcode.GETQ, Opcode.GETKQ}


def request(
    opcode: int,
    key: bytes = b"",
    value: bytes = b"",
    *,
    extras: bytes = b"",
    vbucket: int = 0,
    magic: int = 0x80,
    datatype: int = 0,
    cas: int = 0,
    opaque: int = 0xDEADBEEF,
) -> bytes:
    """One request frame."""
    body = extras + key + value
    return (
        HEADER.pack(magic, opcode, len(key), len(extras), datatype, vbucket, len(body), opaque, cas)
        + body
    )


def setting(
    key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0, opcode: int = 1, **more: int
) -> bytes:
    """A SET."""
    return request(opcode, key, value, extras=struct.pack(">II", flags, expiry), **more)


def serve(bucket: Bucket, data: bytes, **options: object) -> tuple[bytes, int]:
    """Serve requests at a fixed time."""
    replies, used = bucket.serve_requests(data, now=NOW, **options)  # type: ignore[arg-type]
    return bytes(replies), used


def is_json(value: bytes) -> bool:
    """Whether bytes parse as JSON."""
    try:
        json.loads(value, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    except (ValueError, RecursionError):
        return False
    return bool(value)


class SlowTwin:
    """The same requests, one by one, over the vbucket's own methods."""

    def __init__(self, bucket: Bucket, tokens: bool, datatypes: bool) -> None:
        self.bucket = bucket
        self.tokens = tokens
        self.datatypes = datatypes

    def reply(
        self,
        data: bytes,
        *,
        cas: int,
        extras: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
        status: int = 0,
        datatype: int = 0,
    ) -> bytes:
        """A reply frame."""
        opaque = HEADER.unpack_from(data)[7]
        body = extras + key + value
        return (
            HEADER.pack(
                0x81, data[1], len(key), len(extras), datatype, status, len(body), opaque, cas
            )
            + body
        )

    def answer(self, data: bytes) -> bytes:
        """The reply to one request."""
        _, opcode, key_size, extras_size, _, number, _, _, _ = HEADER.unpack_from(data)
        key = data[24 + extras_size : 24 + extras_size + key_size]
        value = data[24 + extras_size + key_size :]
        vbucket = self.bucket.vbucket(number)
        if opcode == Opcode.KV_NOOP:
            return self.reply(data, cas=0)
        if opcode in (Opcode.SET, Opcode.SETQ):
            flags, expiry = struct.unpack_from(">II", data, 24)
            if 0 < expiry <= 30 * 86400:
                expiry += NOW
            change = vbucket.store(
                b"\0" + key, value, flags=flags, expiry=expiry, datatype=int(is_json(value))
            )
            if opcode == Opcode.SETQ:
                return b""
            uuid = vbucket.failover_log.newest.uuid
            extras = struct.pack(">QQ", uuid, change.seqno) if self.tokens else b""
            return self.reply(data, cas=change.cas, extras=extras)
        item = vbucket.get(b"\0" + key)
        if item is None or item.deleted:
            return b"" if opcode in QUIET else self.reply(data, cas=0, status=1)
        return self.reply(
            data,
            cas=item.cas,
            extras=struct.pack(">I", item.flags),
            key=key if opcode in (Opcode.GETK, Opcode.GETKQ) else b"",
            value=item.value,
            datatype=item.datatype if self.datatypes else 0,
        )


@pytest.mark.parametrize("seed", range(12))
def test_the_kernel_answers_as_the_slow_road_does(seed: int) -> None:
    generator = random.Random(seed)
    tokens, datatypes = generator.random() < 0.5, generator.random() < 0.5
    fast, slow = make_bucket(), make_bucket()
    twin = SlowTwin(slow, tokens, datatypes)
    for _ in range(15):
        requests = []
        for _ in range(generator.randrange(1, 60)):
            key = b"k%d" % generator.randrange(15)
            vbucket = generator.randrange(4)
            kind = generator.random()
            if kind < 0.5:
                value = generator.choice(
                    (
                        b"",
                        b"plain",
                        b'{"a": [1, 2.5e3, null]}',
                        b"12",
                        generator.randbytes(50).hex().encode(),
                    )
                )
                requests.append(
                    setting(
                        key,
                        value,
                        flags=generator.randrange(2**32),
                        expiry=generator.choice((0, 100, 2**31)),
                        opcode=generator.choice((Opcode.SET, Opcode.SETQ)),
                        vbucket=vbucket,
                        datatype=generator.randrange(2) if datatypes else 0,
                    )
                )
            elif kind < 0.95:
                opcodes = [Opcode.GET, Opcode.GETQ, Opcode.GETKQ]
                if slow.vbucket(vbucket).get(b"\0" + key) is not None:
                    opcodes.append(Opcode.GETK)
                requests.append(request(generator.choice(opcodes), key, vbucket=vbucket))
            else:
                requests.append(request(Opcode.KV_NOOP))
        data = b"".join(requests)
        # The twin looks at the clock once per change, the kernel once per run: hold it still.
        fast.core.clock = slow.core.clock = lambda: NOW * 1_000_000_000
        replies, used = serve(fast, data, mutation_tokens=tokens, datatypes=datatypes)
        assert used == len(data)
        expected = b"".join(map(twin.answer, requests))
        uuids = {
            slow.vbucket(n).failover_log.newest.uuid: fast.vbucket(n).failover_log.newest.uuid
            for n in range(4)
        }
        assert all(ours == theirs for ours, theirs in uuids.items())
        assert replies == expected
    for number in range(4):
        streams = [
            [
                bytes(str(m), "utf-8")
                for m in read_memory(b.vbucket(number).open_cursor("c", after=0))
            ]
            for b in (fast, slow)
        ]
        assert streams[0] == streams[1]
    fast.commit()
    assert [v.item_count for v in reopened(fast).vbuckets] == [v.item_count for v in slow.vbuckets]


PLAIN = setting(b"key", b"value")
NOT_PLAIN: Final = {
    "half a header": PLAIN[:20],
    "half a body": PLAIN[:-1],
    "a reply": request(1, b"key", magic=0x81),
    "framing": request(1, b"key", magic=0x08),
    "another opcode": request(Opcode.ADD, b"key", b"v", extras=bytes(8)),
    "a cas": setting(b"key", b"value", cas=5),
    "extras too short": request(1, b"key", b"value", extras=bytes(4)),
    "a get with extras": request(0, b"key", extras=bytes(4)),
    "a get with a value": request(0, b"key", b"value"),
    "no key": setting(b"", b"value"),
    "a long key": setting(b"k" * 251, b"value"),
    "a vbucket that is not there": setting(b"key", b"value", vbucket=99),
    "a vbucket that is not active": setting(b"key", b"value", vbucket=3),
    "a vbucket that is held": setting(b"key", b"value", vbucket=2),
    "a compressed value": setting(b"key", b"value", datatype=2),
    "json that was not negotiated": setting(b"key", b"1", datatype=1),
    "a noop with a body": request(Opcode.KV_NOOP, b"key"),
    "a value that is too large": setting(b"key", b"x" * 2000),
    "text that only a parser can judge": setting(b"key", '"é"'.encode()),
    "a missing key that must be named": request(Opcode.GETK, b"nobody"),
    "a key with xattrs": request(Opcode.GET, b"xattrs"),
    "a write over xattrs": setting(b"xattrs", b"value"),
    "a key whose time has come": request(Opcode.GET, b"expired"),
    "a write over a key whose time has come": setting(b"expired", b"value"),
    "a value on disk": request(Opcode.GET, b"far away"),
}


@pytest.mark.parametrize("data", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_plain_is_left_to_the_owner(data: bytes) -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0far away", b"")
    bucket.commit()
    bucket = reopened(bucket)
    vbucket = bucket.vbucket(0)
    bucket.seal()
    bucket.core.unlink(0)
    state = bucket.core.tables.state
    state[at.S_LOW] = state[at.S_HIGH] + 1  # nothing is in memory any more
    vbucket.store(b"\0xattrs", b"\0\0\0\0", datatype=4)
    vbucket.store(b"\0expired", b"", expiry=NOW)
    bucket.vbucket(3).set_state(VBucketState.REPLICA)
    bucket.vbucket(2).hold_bulk(1)
    high = vbucket.high_seqno
    replies, used = serve(bucket, request(Opcode.KV_NOOP) + data, value_size_max=1000)
    assert used == 24
    assert len(replies) == 24
    assert vbucket.high_seqno == high
    bucket.vbucket(2).hold_bulk(0)
    assert serve(bucket, setting(b"key", b"v", vbucket=2))[1] > 0


def test_prepares_in_flight_keep_bulk_service_away() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.prepare(b"\0k", b"", level=1)
    assert serve(bucket, PLAIN)[1] == 0
    vbucket.abort_prepare(b"\0k")
    assert serve(bucket, PLAIN)[1] == len(PLAIN)


KNOWN: Final = np.array([0, 8, 300], np.int64)


@pytest.mark.parametrize("prefix", [b"\0", b"\x08", b"\xac\x02"])
def test_keys_with_a_known_collection_are_served(prefix: bytes) -> None:
    bucket = make_bucket()
    data = setting(prefix + b"key", b"value") + request(Opcode.GETK, prefix + b"key")
    replies, used = serve(bucket, data, collections=KNOWN)
    assert used == len(data)
    assert replies.endswith(prefix + b"keyvalue")
    item = bucket.vbucket(0).get(prefix + b"key")
    assert item is not None
    assert item.value == b"value"
    number = int.from_bytes(prefix, "little") if len(prefix) == 1 else 300
    assert bucket.vbucket(0).collection_high_seqno([number]) == 1
    assert bucket.vbucket(0).collection_item_count(number) == 1


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(b"\x09key", id="an unknown collection"),
        pytest.param(b"\x08", id="no name"),
        pytest.param(b"\xac\x02", id="no name behind two bytes"),
        pytest.param(b"\x88\x00key", id="a longer form than needed"),
        pytest.param(b"\xac", id="half a prefix"),
        pytest.param(b"\xff\xff\xff\xff\xff\xff", id="a prefix without an end"),
        pytest.param(b"\x08" + b"k" * 251, id="a long key"),
    ],
)
def test_a_key_whose_collection_is_in_doubt_is_left_to_the_owner(key: bytes) -> None:
    bucket = make_bucket()
    assert serve(bucket, setting(key, b"v"), collections=KNOWN)[1] == 0
    assert serve(bucket, request(Opcode.GET, key), collections=KNOWN)[1] == 0


def test_a_vbucket_the_owner_wants_to_see_is_left_to_it() -> None:
    bucket = make_bucket()
    held = np.array([0, 1, 0, 0], np.uint8)
    data = PLAIN + setting(b"key", b"value", vbucket=2)
    assert serve(bucket, data + setting(b"key", b"v", vbucket=1), held=held)[1] == len(data)


def test_what_is_served_is_counted() -> None:
    bucket = make_bucket()
    data = [PLAIN, PLAIN, setting(b"q", b"v", opcode=Opcode.SETQ), request(Opcode.KV_NOOP)]
    data += [request(Opcode.GET, b"key"), request(Opcode.GET, b"no"), request(Opcode.GETQ, b"no")]
    serve(bucket, b"".join(data) + request(Opcode.ADD, b"x"))
    counts = bucket.bulk_counts
    opcodes = (Opcode.SET, Opcode.SETQ, Opcode.KV_NOOP, Opcode.GET, Opcode.GETQ, Opcode.ADD)
    assert [counts[opcode] for opcode in opcodes] == [2, 1, 1, 2, 1, 0]
    assert (counts[HITS], counts[MISSES], bucket.bulk_runs) == (1, 2, 1)


def test_a_longest_life_is_obeyed() -> None:
    bucket = make_bucket()
    serve(
        bucket,
        setting(b"a", b"") + setting(b"b", b"", expiry=9) + setting(b"c", b"", expiry=2**31),
        max_ttl=50,
    )
    lives = [bucket.vbucket(0).meta(b"\0" + key).expiry - NOW for key in (b"a", b"b", b"c")]  # type: ignore[union-attr]
    assert lives == [50, 9, 50]


def test_more_requests_than_any_table_has_room_for() -> None:
    bucket = make_bucket(memory_quota=64 << 20, segment_bytes=64 * 1024)
    data = b"".join(setting(b"%d" % number, b"x" * 100) for number in range(5000))
    assert serve(bucket, data)[1] == len(data)
    assert bucket.vbucket(0).item_count == 5000
    data = b"".join(request(Opcode.GET, b"%d" % number) for number in range(5000))
    replies, used = serve(bucket, data)
    assert used == len(data)
    assert len(replies) == 5000 * (24 + 4 + 100)


def test_a_call_gives_only_so_many_replies() -> None:
    bucket = make_bucket(memory_quota=64 << 20)
    serve(bucket, setting(b"k", b"x" * 1_000_000))
    data = request(Opcode.GET, b"k") * 20
    replies, used = serve(bucket, data)
    assert 0 < used < len(data)
    assert len(replies) == used // 25 * (24 + 4 + 1_000_000) <= 4 << 20


def test_a_listener_hears_of_bulk_changes() -> None:
    bucket = make_bucket()
    heard: list[int] = []
    bucket.on_change(heard.append)
    serve(
        bucket,
        setting(b"a", b"", vbucket=1)
        + setting(b"b", b"", vbucket=2)
        + setting(b"c", b"", vbucket=1),
    )
    assert heard == [1, 2]
    assert len(read_memory(bucket.vbucket(1).open_cursor("c", after=0), AT_REST)) == 2
