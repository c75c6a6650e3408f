from __future__ import annotations

import pytest

from headrace.cli.words import WORDS, Setting, server_duration_us, words
from headrace.wire import admin, kv
from headrace.wire import messages as m
from headrace.wire.codec import LAYOUTS, row_of, to_frame
from headrace.wire.dialect import Dialect
from headrace.wire.frame import FrameInfo
from headrace.wire.message import ErrorReply, Message, UnknownCommand, UnknownReply, stream_id_info
from headrace.wire.opcodes import SEQNO_MAX, Feature, Opcode, OpenFlag, Status
from headrace.wire.subdoc import SubdocRequest
from headrace.wire.system_events import EventDetail, value_of

LOG = (m.FailoverEntry(0xABC, 12), m.FailoverEntry(0xDEF, 0))

SAID: list[tuple[Message, str]] = [
    (
        admin.Hello(key=b"agent", features=(Feature.XATTR, Feature.JSON, 0x7777)),
        "agent asks for xattr json 30583",
    ),
    (
        admin.Hello(key=b'{"a":"python/4.6.3 (cxx/1.3.2;Linux/x86_64)","i":"1"}'),
        '"python/4.6.3 (cxx/1.3.2;Lin..." asks for nothing',
    ),
    (admin.Hello(key=b'{"i":"1"}'), '{"i":"1"} asks for nothing'),
    (admin.HelloReply(features=()), "ok  grants nothing"),
    (admin.VersionReply(value=b"7.6.0"), "ok  7.6.0 (5 bytes)"),
    (admin.SaslAuth(key=b"PLAIN", value=b"\0user\0secret"), "PLAIN as user"),
    (admin.SaslAuth(key=b"SCRAM-SHA1", value=b"n,,n=user,r=x"), "SCRAM-SHA1"),
    (admin.SaslAuthReply(status=0x21, value=b"r=x,s=y"), "AUTH_CONTINUE  r=x,s=y"),
    (admin.SelectBucket(key=b"travel"), "travel"),
    (
        m.Open(key=b"a name", flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS),
        '"a name" server becomes producer|include_xattrs',
    ),
    (
        m.Open(key=b"n", flags=0, value=b'{"consumer_name":"b"}'),
        'n server becomes consumer {"consumer_name":"b"}',
    ),
    (m.Open(key=b"n", flags=OpenFlag.INCLUDE_XATTRS), "n server becomes consumer|include_xattrs"),
    (m.OpenReply(), "ok"),
    (m.Control(key=b"enable_noop", value=b"true"), "enable_noop = true"),
    (m.AddStream(flags=1), "takeover"),
    (m.AddStreamReply(stream_opaque=0x1000), "ok  stream opaque 0x1000"),
    (
        m.StreamRequest(
            start_seqno=7, end_seqno=SEQNO_MAX, vb_uuid=0xABC, snap_start_seqno=5, snap_end_seqno=9
        ),
        "from 7 endless branch 0000000000000abc snapshot 5..9",
    ),
    (
        m.StreamRequest(
            start_seqno=7,
            end_seqno=8,
            flags=4,
            value=b'{"sid":1}',
            snap_start_seqno=5,
            snap_end_seqno=9,
        ),
        'from 7 to 8 branch 0 snapshot 5..9 to_latest {"sid":1}',
    ),
    (m.StreamRequestReply(failover_log=LOG), "ok  branches 0000000000000abc@12 0000000000000def@0"),
    (m.RollbackReply(rollback_seqno=3), "ROLLBACK to 3"),
    (m.GetFailoverLogReply(failover_log=LOG[:1]), "ok  branches 0000000000000abc@12"),
    (m.GetAllVbSeqnos(state=1), "state active"),
    (
        m.GetAllVbSeqnosReply(seqnos=tuple(m.VBucketSeqno(n, n * 2) for n in range(10))),
        "ok  0:0 1:2 2:4 3:6 4:8 5:10 6:12 7:14 ... 10 in all",
    ),
    (m.StreamEnd(reason=2), "state changed"),
    (m.SnapshotMarker(), "until the next marker"),
    (m.SnapshotMarker(start_seqno=1, end_seqno=8, flags=6), "1..8 disk|checkpoint"),
    (
        m.SnapshotMarker(
            start_seqno=1,
            end_seqno=8,
            flags=2,
            max_visible_seqno=7,
            high_completed_seqno=6,
            purge_seqno=5,
            high_prepared_seqno=4,
        ),
        "1..8 disk visible 7 completed 6 prepared 4 purged 5",
    ),
    (
        m.Mutation(by_seqno=4, rev_seqno=2, key=b"hello", value=b"world"),
        "seqno 4 hello = world (5 bytes) rev 2",
    ),
    (
        m.Mutation(
            by_seqno=4,
            key=b"k",
            flags=0x2000006,
            lock_time=5,
            expiration=1_700_000_000,
            nmeta=3,
            value=b"abc",
        ),
        "seqno 4 k = abc (3 bytes) rev 0 flags 0x2000006 locked 0x5 expires 2023-11-14 22:13:20"
        " with extended metadata",
    ),
    (
        m.Deletion(by_seqno=5, rev_seqno=3, key=b"k", delete_time=1_700_000_000),
        "seqno 5 k rev 3 at 2023-11-14 22:13:20",
    ),
    (m.Expiration(by_seqno=5, key=b"k", delete_time=0), "seqno 5 k rev 0"),
    (m.SetVBucketState(state=3), "pending"),
    (m.BufferAck(ack_bytes=123_456), "123,456 bytes"),
    (m.Noop(), ""),
    (
        m.SystemEvent(
            by_seqno=1,
            event=0,
            version=1,
            key=b"fruit",
            value=value_of(
                0, 1, EventDetail(manifest_uid=3, scope_id=8, collection_id=9, max_ttl=60)
            ),
        ),
        "seqno 1 begin collection fruit 0x9 of scope 0x8 manifest 0x3 max ttl 60",
    ),
    (
        m.SystemEvent(
            by_seqno=2,
            event=4,
            version=0,
            value=value_of(4, 0, EventDetail(manifest_uid=3, scope_id=8)),
        ),
        "seqno 2 drop scope 0x8 manifest 0x3",
    ),
    (
        m.SystemEvent(by_seqno=2, event=5, version=2, key=b"c", value=b"flat"),
        "seqno 2 modify collection c version 2: flat (4 bytes)",
    ),
    (
        m.SystemEvent(by_seqno=2, event=0, version=0, value=b"short"),
        "seqno 2 begin collection (but system event 0 version 0 with a value of 5 bytes;"
        " allowed: 16)",
    ),
    (
        m.Prepare(by_seqno=6, key=b"k", durability=1, deleted=1),
        "seqno 6 k = (0 bytes) rev 0 delete needs majority",
    ),
    (m.SeqnoAcknowledged(prepared_seqno=6), "prepares up to 6"),
    (m.Commit(prepared_seqno=6, commit_seqno=7, key=b"k"), "seqno 7 k prepared at 6"),
    (m.Abort(prepared_seqno=6, abort_seqno=8, key=b"k"), "seqno 8 k prepared at 6"),
    (m.SeqnoAdvanced(by_seqno=9), "to seqno 9"),
    (m.OsoSnapshot(oso_flags=1), "start"),
    (m.CacheTransfer(items=(m.CachedItem(cas=1, by_seqno=1, rev_seqno=1, key=b"\0k"),)), "1 items"),
    (
        kv.Set(key=b"k", value=b"v", expiration=9, cas=0x10),
        "k = v (1 byte) expiration 9 if cas 0x10",
    ),
    (
        kv.SetReply(cas=0x10, vb_uuid=0xABC, seqno=4),
        "ok  seqno 4 on branch 0000000000000abc cas 0x10",
    ),
    (kv.SetReply(cas=0x10), "ok  cas 0x10"),
    (kv.Get(key=b"k"), "k"),
    (kv.GetReply(value=b"v"), "ok  v (1 byte)"),
    (admin.StatReply(key=b"vb_0", value=b"active"), "ok  vb_0 = active"),
    (admin.StatReply(), "ok  end"),
    (kv.Increment(key=b"n", delta=2), "key n delta 2"),
    (kv.Get(key=b"k", quiet=True), "k"),
    (kv.Increment(key=b"n", delta=2, quiet=True), "key n quiet delta 2"),
    (ErrorReply(opcode=0x53, status=Status.ERANGE), "ERANGE"),
    (
        ErrorReply(opcode=0x53, status=4, value=b'{"error":{"context":"bad extras"}}'),
        "EINVAL bad extras",
    ),
    (ErrorReply(opcode=0x53, status=7, value=b'{"rev":1}'), 'NOT_MY_VBUCKET {"rev":1}'),
    (ErrorReply(opcode=0x53, status=0x999, value=b"\xff"), "status 0x999 ff"),
    (UnknownCommand(opcode=0x4F), "unknown here"),
    (UnknownReply(opcode=0x4F, extras=b"\1", value=b"x"), "ok  unknown here: extras 01, value x"),
    (m.CloseStream(frame_infos=(stream_id_info(3),)), "[stream id 3]"),
    (m.CloseStream(frame_infos=(FrameInfo(7, b"\xab"),)), "[token ab]"),
    (m.CloseStream(frame_infos=(FrameInfo(0),)), "[barrier]"),
    (
        kv.Set(key=b"k", value=b"", frame_infos=(FrameInfo(1, b"\x01\x03\xe8"),)),
        "k = (0 bytes)  [durability majority within 1000 ms]",
    ),
    (kv.SetReply(frame_infos=(FrameInfo(0, b"\x00\x64"),)), "ok  cas 0x0  [took 1,510 us]"),
    (kv.SetReply(frame_infos=(FrameInfo(1, b"\x00\x02"),)), "ok  cas 0x0  [read_units 2]"),
]


@pytest.mark.parametrize(("message", "text"), SAID, ids=lambda value: type(value).__name__)
def test_a_message_in_words(message: Message, text: str) -> None:
    row = row_of(to_frame(message, Dialect.DCP_7, historic=True), Dialect.DCP_7)
    assert words(message, Setting(collections=False, row=row)) == text


def test_keys_lose_their_collection_prefix_where_collections_are_spoken() -> None:
    mutation = m.Mutation(by_seqno=4, key=b"\x08hello", value=b"world")
    assert words(mutation, Setting(collections=True)) == (
        "seqno 4 hello in 0x8 = world (5 bytes) rev 0"
    )


def test_a_password_is_never_shown() -> None:
    for kind in (admin.SaslAuth, admin.SaslStep):
        assert "secret" not in words(kind(key=b"PLAIN", value=b"\0user\0secret"), Setting())
        assert "secret" not in words(kind(key=b"PLAIN", value=b"secret"), Setting())


def test_a_sub_document_is_shown_field_by_field() -> None:
    message = SubdocRequest(operation=Opcode.SUBDOC_GET, key=b"doc", path=b"a.b")
    text = words(message, Setting(collections=False))
    assert "key doc" in text
    assert "path a.b" in text


def test_every_class_with_words_has_a_layout_or_is_a_frame_without_one() -> None:
    known: set[type[Message]] = {row.message for row in LAYOUTS}
    known |= {ErrorReply, UnknownCommand, UnknownReply}
    assert set(WORDS) <= known


def test_a_server_duration_follows_the_published_curve() -> None:
    assert server_duration_us(0) == 0
    assert 120_000_000 < server_duration_us(0xFFFF) < 125_000_000
