"""Frames <-> messages: every row both ways, the choice of rows, and what is refused."""

from __future__ import annotations

import random
from dataclasses import fields as dataclass_fields
from typing import Any

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire import kv, subdoc
from headrace.wire import messages as m
from headrace.wire.codec import LAYOUTS, decode, encode, row_of, to_frame
from headrace.wire.dialect import Dialect
from headrace.wire.frame import Frame, FrameInfo, split_frames
from headrace.wire.layout import ANY_KEY, NO_KEY, REQUEST, Bytes, Custom, Fixed, Repeated, Row
from headrace.wire.message import (
    ErrorReply,
    Message,
    UnknownCommand,
    UnknownReply,
    stream_id_info,
)
from headrace.wire.opcodes import (
    Magic,
    MarkerFlag,
    Opcode,
    Status,
    StreamEndReason,
    VBucketState,
)

DCP_7 = Dialect.DCP_7


def again(message: Message, dialect: Dialect = DCP_7) -> Message:
    """Return what the other end reads."""
    [frame] = split_frames(encode(message, dialect))
    return decode(frame, dialect)


def custom_fields(row: Row, chance: random.Random) -> dict[str, Any]:
    """Return random content for a value with lengths inside."""
    blob = chance.randbytes
    if row.message is m.CacheTransfer:
        item = m.CachedItem(
            cas=1, by_seqno=2, rev_seqno=3, flags=4, expiration=5, datatype=1, cache_hint=7,
            key=blob(2 + chance.randrange(9)), value=blob(chance.randrange(9)),
        )  # fmt: skip
        return {"items": (item,) * chance.randrange(1, 4)}
    if row.message is subdoc.SubdocRequest:
        return {"path": blob(chance.randrange(9)), "value": blob(chance.randrange(9))}
    if row.message is subdoc.SubdocMultiLookupReply:
        return {"results": (subdoc.LookupResult(status=0xC0, value=blob(3)),) * 2}
    if row.message is subdoc.SubdocMultiMutationReply:
        good = subdoc.MutationResult(index=1, status=0, value=blob(4))
        return {"results": (good, subdoc.MutationResult(index=2, status=0xC0))}
    value = {"value": blob(3)} if row.message is subdoc.SubdocMultiMutation else {}
    return {"specs": (subdoc.PathSpec(opcode=0xC5, flags=4, path=blob(5), **value),) * 3}


def random_message(row: Row, chance: random.Random) -> Message:
    """Return a message that this row, and no other, says."""
    names: dict[str, Any] = dict(row.fixed)
    runs = [row.extras] + ([row.value.fields] if isinstance(row.value, Fixed) else [])
    for run in runs:
        for field in run.fields:
            if not field.absent and field.name != "path_length":
                allowed = list(field.wire.values()) if field.wire else None
                # A state fits one byte: two layouts of SET_VBUCKET differ in nothing else.
                limit = 1 << (8 if field.name == "state" else 8 * field.size)
                names[field.name] = chance.choice(allowed) if allowed else chance.randrange(limit)
    all_names = {
        name for other in LAYOUTS if other.message is row.message for name in other.optional_names()
    }
    names.update(dict.fromkeys(all_names - row.optional_names() - {"path_length"}))
    if row.key != NO_KEY:
        names["key"] = chance.randbytes(chance.randrange(0 if row.key == ANY_KEY else 1, 30))
    if isinstance(row.value, Bytes):
        names["value"] = chance.randbytes(chance.randrange(row.value.at_least, 40))
    elif isinstance(row.value, Repeated):
        record = row.value.record
        count = chance.randrange(row.value.at_least, 4)
        names[row.value.name] = row.value.read(chance.randbytes(record.size * count))
    elif isinstance(row.value, Custom):
        names.update(custom_fields(row, chance))
    names.update(opaque=chance.randrange(1 << 32), cas=chance.randrange(1 << 64))
    names["datatype"] = chance.randrange(8)
    if row.kind == REQUEST:
        names["vbucket"] = chance.randrange(1 << 16)
        names["frame_infos"] = chance.choice([(), (stream_id_info(71),), (FrameInfo(17, b"x"),)])
    elif "status" in {field.name for field in dataclass_fields(row.message)}:
        names["status"] = chance.choice(sorted(row.statuses))
    return row.message(**names)


@pytest.mark.parametrize("row", LAYOUTS, ids=lambda row: f"{row.message.__name__}-{row.name}")
def test_every_row_says_a_message_that_reads_the_same(row: Row) -> None:
    """Both directions, in every dialect that has the row, with random content."""
    chance = random.Random(f"{row.message.__name__}{row.name}{row.opcode}")
    for dialect in sorted(row.hear, key=list(Dialect).index):
        for _ in range(20):
            message = random_message(row, chance)
            frame = to_frame(message, dialect, historic=dialect not in row.speak)
            [parsed] = split_frames(frame.to_bytes())
            assert parsed == frame
            assert decode(parsed, dialect) == message


@pytest.mark.parametrize(
    ("message", "dialect", "extras", "value"),
    [
        (m.Mutation(by_seqno=1, key=b"k"), DCP_7, 31, 0),
        (m.Mutation(by_seqno=1, key=b"k"), Dialect.UPR_DRAFT, 30, 0),
        (m.Deletion(by_seqno=1, key=b"k"), DCP_7, 18, 0),
        (m.Deletion(by_seqno=1, key=b"k", delete_time=0), DCP_7, 21, 0),
        (m.Expiration(by_seqno=1, key=b"k"), DCP_7, 20, 0),
        (m.Expiration(by_seqno=1, key=b"k"), Dialect.DCP_3, 18, 0),
        (m.StreamRequest(start_seqno=0, end_seqno=9), DCP_7, 48, 0),
        (m.StreamRequest(start_seqno=0, end_seqno=9), Dialect.UPR_DRAFT, 40, 0),
        (m.SnapshotMarker(), Dialect.UPR_DRAFT, 0, 0),
        (m.SnapshotMarker(start_seqno=0, end_seqno=1, flags=1), Dialect.UPR_2014, 20, 0),
        (m.SnapshotMarker(start_seqno=0, end_seqno=1, flags=1), DCP_7, 20, 0),
        (
            m.SnapshotMarker(
                start_seqno=0, end_seqno=1, flags=2, max_visible_seqno=0, high_completed_seqno=0
            ),
            DCP_7,
            1,
            36,
        ),
        (kv.SetReply(cas=5), DCP_7, 0, 0),
        (kv.SetReply(cas=5, vb_uuid=0, seqno=0), DCP_7, 16, 0),
        (m.GetAllVbSeqnos(), DCP_7, 0, 0),
        (m.GetAllVbSeqnos(state=0), DCP_7, 4, 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else str(value),
)
def test_the_set_fields_and_the_dialect_choose_the_layout(
    message: Message, dialect: Dialect, extras: int, value: int
) -> None:
    frame = to_frame(message, dialect)
    assert (len(frame.extras), len(frame.value)) == (extras, value)


@pytest.mark.parametrize(
    ("message", "dialect", "sentence"),
    [
        (m.Prepare(by_seqno=1, durability=1, key=b"k"), Dialect.DCP_5, "cannot be said in dcp-5"),
        (m.Mutation(by_seqno=1, nru=3, key=b"k"), Dialect.UPR_DRAFT, "nru=3.* cannot be said"),
        (m.SnapshotMarker(), DCP_7, "no field set cannot be said in dcp-7"),
        (m.SnapshotMarker(start_seqno=1, end_seqno=2, flags=5), Dialect.UPR_2014, "flags 5 has no"),
        (
            m.SnapshotMarker(start_seqno=1, end_seqno=2, flags=1),
            Dialect.UPR_DRAFT,
            "cannot be said",
        ),
        (
            m.SnapshotMarker(start_seqno=1, end_seqno=2, flags=2, purge_seqno=3),
            DCP_7,
            "cannot be said",
        ),
        (m.Mutation(by_seqno=1, key=b""), DCP_7, "without a key"),
        (m.Mutation(by_seqno=1 << 64, key=b"k"), DCP_7, "by_seqno 18446744073709551616 is outside"),
        (m.Mutation(by_seqno=-1, key=b"k"), DCP_7, "by_seqno -1 is outside"),
        (m.Mutation(by_seqno=1, key=b"k", datatype=8), DCP_7, "datatype 8, limit 7"),
        (m.StreamRequestReply(failover_log=()), DCP_7, "0 failover log entries, at least 1"),
        (m.StreamEnd(reason=4), Dialect.UPR_DRAFT, "reason 4 has no number here; allowed: 0, 2"),
        (m.OpenReply(status=4), DCP_7, "status 0x04; allowed: 0x00, else an ErrorReply"),
        (ErrorReply(opcode=0x53), DCP_7, "ErrorReply to STREAM_REQ with status 0"),
        (
            m.ClustermapChange(revision=1, frame_infos=(FrameInfo(0),)),
            DCP_7,
            "cannot carry frame infos",
        ),
        (m.CacheTransfer(items=()), DCP_7, "no item"),
        (subdoc.SubdocMultiLookup(key=b"k", specs=()), DCP_7, "0 paths, allowed 1..16"),
        (
            m.GetAllVbSeqnosReply(seqnos=(m.VBucketSeqno(1 << 16, 0),)),
            DCP_7,
            "holds a number its layout cannot",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else None,
)
def test_what_a_layout_cannot_say_is_not_written(
    message: Message, dialect: Dialect, sentence: str
) -> None:
    with pytest.raises(LocalProtocolError, match=sentence):
        encode(message, dialect)


def request(opcode: int, **parts: Any) -> Frame:  # noqa: ANN401 - any part of a frame
    """Return a request frame."""
    return Frame(magic=parts.pop("magic", Magic.REQUEST), opcode=opcode, **parts)


@pytest.mark.parametrize(
    ("frame", "sentence", "offset"),
    [
        (
            request(Opcode.DELETION, extras=bytes(19), key=b"k"),
            "DELETION with 19 bytes of extras; dcp-7 allows 16 or 18 or 21",
            4,
        ),
        (request(Opcode.MUTATION, extras=bytes(31)), "MUTATION without a key", 2),
        (
            request(Opcode.MUTATION, extras=bytes(31), magic=0x08, framing=b"\x22\x00\x01"),
            "MUTATION without a key",
            3,
        ),
        (request(Opcode.NOOP, key=b"k"), "NOOP with a key of 1 bytes; allowed: no key", 2),
        (request(Opcode.NOOP, value=b"v"), "NOOP with a value of 1 bytes; allowed: no value", 8),
        (
            request(Opcode.SNAPSHOT_MARKER, extras=b"\x03", value=bytes(36)),
            "SNAPSHOT_MARKER of version 3; dcp-7 allows 0, 1, 2",
            24,
        ),
        (
            request(Opcode.SNAPSHOT_MARKER, extras=b"\x02", value=bytes(45)),
            "a value of 45 bytes; allowed: a value of 44 bytes or a value of 52 bytes",
            8,
        ),
        (
            request(Opcode.STREAM_REQ, magic=Magic.REPLY, value=bytes(17)),
            "a value of 17 bytes; allowed: a value of n x 16 bytes, n >= 1",
            8,
        ),
        (
            request(Opcode.CACHE_TRANSFER, value=bytes(50)),
            "CACHE_TRANSFER: cached item with a key of 0 bytes, at least 2",
            24 + 36,
        ),
        (
            request(Opcode.MUTATION, extras=bytes(31), key=b"k", magic=0x08, framing=b"\x2f"),
            "escape",
            24,
        ),
    ],
    ids=lambda value: None if isinstance(value, Frame | int) else value[:30],
)
def test_a_wrong_part_is_named_with_its_place_and_what_is_allowed(
    frame: Frame, sentence: str, offset: int
) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence) as caught:
        decode(frame, DCP_7)
    assert caught.value.offset == offset
    assert not caught.value.fatal, "the next frame can still be found"


def test_the_numbering_of_states_follows_the_dialect() -> None:
    """The draft swaps replica and pending; the message always says the released number."""
    for state, on_wire in {1: 1, 2: 3, 3: 2, 4: 4}.items():
        draft = to_frame(m.SetVBucketState(state=state), Dialect.UPR_DRAFT)
        assert draft.extras[0] == on_wire
        assert decode(draft, Dialect.UPR_DRAFT) == m.SetVBucketState(state=state)
        assert to_frame(m.SetVBucketState(state=state), DCP_7).extras[0] == state
    wrong = request(Opcode.SET_VBUCKET_STATE, extras=b"\x05")
    with pytest.raises(RemoteProtocolError, match="state 5; allowed: 1, 2, 3, 4"):
        decode(wrong, Dialect.UPR_DRAFT)
    assert decode(wrong, Dialect.UPR_DRAFT, strict=False) == m.SetVBucketState(state=5)
    assert VBucketState(3) is VBucketState.PENDING


def test_the_meaning_of_a_marker_follows_the_dialect() -> None:
    """The same bytes say disk in upr-2014 and memory ever after."""
    frame = request(Opcode.SNAPSHOT_MARKER, extras=bytes(19) + b"\x01")
    old = decode(frame, Dialect.UPR_2014)
    new = decode(frame, Dialect.DCP_3)
    assert isinstance(old, m.SnapshotMarker)
    assert isinstance(new, m.SnapshotMarker)
    assert (old.flags, new.flags) == (MarkerFlag.DISK, MarkerFlag.MEMORY)


def test_the_drafts_reason_for_a_streams_end_is_translated() -> None:
    frame = to_frame(m.StreamEnd(reason=StreamEndReason.STATE_CHANGED), Dialect.UPR_DRAFT)
    assert frame.extras == b"\0\0\0\1"
    assert decode(frame, Dialect.UPR_DRAFT) == m.StreamEnd(reason=2)


def test_an_opcode_the_dialect_lacks_is_kept_whole() -> None:
    """The frame is sound: the owner answers UNKNOWN_COMMAND."""
    frame = request(0xEE, extras=b"e", key=b"k", value=b"v", vbucket=3, opaque=9)
    message = decode(frame, DCP_7)
    assert message == UnknownCommand(
        opcode=0xEE, extras=b"e", key=b"k", value=b"v", vbucket=3, opaque=9
    )
    assert to_frame(message, DCP_7) == frame
    prepare = to_frame(m.Prepare(by_seqno=1, durability=1, key=b"k"), DCP_7)
    assert isinstance(decode(prepare, Dialect.DCP_3), UnknownCommand)
    reply = Frame(magic=Magic.REPLY, opcode=0xEE, value=b"v")
    assert decode(reply, DCP_7) == UnknownReply(opcode=0xEE, value=b"v")
    assert to_frame(decode(reply, DCP_7), DCP_7) == reply


def test_a_refusal_keeps_whatever_body_it_has() -> None:
    frame = Frame(
        magic=Magic.ALT_REPLY,
        opcode=Opcode.STREAM_REQ,
        vbucket=Status.NOT_MY_VBUCKET,
        framing=b"\x02\x00\x05",
        value=b'{"rev":1}',
    )
    message = decode(frame, DCP_7)
    assert isinstance(message, ErrorReply)
    assert (message.status, message.value) == (7, b'{"rev":1}')
    assert to_frame(message, DCP_7) == frame


def test_a_rollback_is_read_from_extras_and_from_the_value() -> None:
    five = (5).to_bytes(8, "big")
    for extras, value in ((five, b""), (b"", five)):
        frame = request(
            Opcode.STREAM_REQ, magic=Magic.REPLY, vbucket=0x23, extras=extras, value=value
        )
        for dialect in Dialect:
            assert decode(frame, dialect) == m.RollbackReply(rollback_seqno=5)
    assert to_frame(m.RollbackReply(rollback_seqno=5), Dialect.UPR_DRAFT).extras == b""


def test_a_stream_id_travels_as_a_frame_info() -> None:
    mutation = m.Mutation(by_seqno=1, key=b"\0k", frame_infos=(stream_id_info(71),))
    frame = to_frame(mutation, DCP_7)
    assert frame.magic == Magic.ALT_REQUEST
    assert frame.framing == b"\x22\x00\x47"
    read = again(mutation)
    assert isinstance(read, m.Mutation)
    assert read.stream_id == 71
    assert m.Mutation(by_seqno=1, key=b"k").stream_id is None


def test_a_stream_id_the_header_forgot_is_found_by_a_tolerant_reader() -> None:
    """A released server wrote live deletions so; read as they stand, they are three bytes off."""
    deletion = m.Deletion(
        by_seqno=5, rev_seqno=2, delete_time=9, key=b"\0key", frame_infos=(stream_id_info(71),)
    )
    good = to_frame(deletion, DCP_7)
    data = bytearray(good.to_bytes())
    data[2] = 0
    [forgot] = split_frames(bytes(data))
    assert decode(forgot, DCP_7, strict=False) == deletion
    with pytest.raises(RemoteProtocolError, match="0 bytes of framing extras in its header") as no:
        decode(forgot, DCP_7)
    assert no.value.offset == 2


def test_extras_cut_short_are_read_as_far_as_they_go_by_a_tolerant_reader() -> None:
    frame = request(Opcode.STREAM_REQ, extras=bytes(15) + b"\x07" + b"\xff" * 8)
    with pytest.raises(RemoteProtocolError, match="24 bytes of extras; dcp-7 allows 48"):
        decode(frame, DCP_7)
    message = decode(frame, DCP_7, strict=False)
    assert message == m.StreamRequest(start_seqno=7, end_seqno=2**64 - 1)
    assert len(to_frame(message, DCP_7).extras) == 48


def test_a_frame_that_nothing_explains_is_refused_by_a_tolerant_reader_too() -> None:
    with pytest.raises(RemoteProtocolError, match="value of 1 bytes"):
        decode(request(Opcode.NOOP, value=b"v"), DCP_7, strict=False)
    for size in (9, 16, 25):
        with pytest.raises(RemoteProtocolError, match=f"{size} bytes of extras"):
            decode(request(Opcode.STREAM_REQ, extras=bytes(size)), DCP_7, strict=False)


def test_quiet_twins_are_the_same_message_with_quiet_set() -> None:
    quiet = to_frame(kv.Set(key=b"k", value=b"v", quiet=True), DCP_7)
    assert quiet.opcode == Opcode.SETQ
    assert decode(quiet, DCP_7) == kv.Set(key=b"k", value=b"v", quiet=True)
    assert to_frame(kv.Set(key=b"k"), DCP_7).opcode == Opcode.SET


def test_the_row_of_a_frame_is_there_for_those_who_draw_it() -> None:
    row = row_of(to_frame(m.Mutation(by_seqno=1, key=b"k"), DCP_7), DCP_7)
    assert row is not None
    assert row.extras.offset("nru") == 30
    assert row_of(request(Opcode.MUTATION), DCP_7) is None


def outcome(frame: Frame, dialect: Dialect, *, strict: bool) -> Message | RemoteProtocolError:
    """Return the message or the refusal; anything else is a crash."""
    try:
        return decode(frame, dialect, strict=strict)
    except RemoteProtocolError as error:
        return error


@pytest.mark.parametrize("dialect", list(Dialect), ids=lambda dialect: dialect.value)
def test_no_body_of_any_opcode_brings_the_decoder_down(dialect: Dialect) -> None:
    """Every outcome is a message or a sentence with a place inside the frame."""
    for opcode in range(256):
        chance = random.Random(opcode)
        for _ in range(30):
            frame = Frame(
                magic=chance.choice(list(Magic)),
                opcode=opcode,
                vbucket=chance.choice([0, 0x21, 0x23, 0xCC, 7]),
                extras=chance.randbytes(chance.choice([0, 1, 4, 8, 16, 18, 20, 21, 31, 48])),
                key=chance.randbytes(chance.choice([0, 1, 5])),
                value=chance.randbytes(chance.choice([0, 1, 8, 16, 36, 44, 52, 70])),
            )
            for strict in (True, False):
                found = outcome(frame, dialect, strict=strict)
                if isinstance(found, RemoteProtocolError):
                    assert str(found)
                    assert 0 <= (found.offset or 0) <= frame.size, frame
