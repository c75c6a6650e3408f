from __future__ import annotations

import json

import pytest

from headrace.capture.conversation import Direction
from headrace.capture.walk import Item
from headrace.cli.records import json_line, plain, record
from headrace.errors import CaptureError
from headrace.wire.frame import Frame
from headrace.wire.message import ErrorReply, stream_id_info
from headrace.wire.messages import FailoverEntry, Mutation, SnapshotMarker, StreamRequestReply
from tests.cli.building import FILE, item_of, item_of_frame


def test_a_mutation_is_told_whole() -> None:
    message = Mutation(
        by_seqno=4,
        vbucket=528,
        opaque=0x1210,
        cas=(1 << 64) - 1,
        datatype=1,
        key=b"hello",
        value=b"\xff\x00",
        frame_infos=(stream_id_info(3),),
    )
    found = record(item_of(message, offset=7, time=5), 528)
    assert found == {
        "timestamp_ns": 5,
        "connection": 1,
        "client": "10.0.0.1:40000",
        "server": "10.0.0.2:11210",
        "direction": "server",
        "offset": 7,
        "size": 24 + 3 + 31 + 5 + 2,
        "magic": 8,
        "opcode": 0x57,
        "name": "MUTATION",
        "reply": False,
        "vbucket": 528,
        "opaque": 0x1210,
        "cas": (1 << 64) - 1,
        "datatype": 1,
        "frame_infos": [{"id": 2, "data": {"hex": "0003"}}],
        "message": "Mutation",
        "fields": {
            "by_seqno": 4,
            "rev_seqno": 0,
            "flags": 0,
            "expiration": 0,
            "lock_time": 0,
            "nmeta": 0,
            "nru": 0,
            "key": "hello",
            "value": {"hex": "ff00"},
        },
    }


def test_integers_of_64_bits_are_plain_json_integers() -> None:
    line = json_line(item_of(Mutation(by_seqno=(1 << 64) - 1, key=b"k", cas=1 << 63)), 0)
    assert '"by_seqno":18446744073709551615' in line
    assert json.loads(line)["cas"] == 1 << 63


def test_a_reply_has_a_status_with_its_name() -> None:
    found = record(item_of(ErrorReply(opcode=0x53, status=0x23, value=bytes(3))), None)
    assert (found["status"], found["status_name"], found["reply"]) == (0x23, "ROLLBACK", True)
    assert "vbucket" not in found
    unknown = record(item_of(ErrorReply(opcode=0x53, status=0x999)), None)
    assert unknown["status"] == 0x999
    assert "status_name" not in unknown


def test_a_field_the_layout_does_not_have_is_left_out() -> None:
    found = record(item_of(SnapshotMarker(start_seqno=1, end_seqno=2, flags=1)), 0)
    assert found["fields"] == {"start_seqno": 1, "end_seqno": 2, "flags": 1}


def test_records_inside_a_message_are_objects() -> None:
    found = record(item_of(StreamRequestReply(failover_log=(FailoverEntry(1, 2),))), 0)
    assert found["fields"] == {"failover_log": [{"uuid": 1, "seqno": 2}]}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"text", "text"),
        (b"", ""),
        (b'{\n\t"a": 1\r\n}', '{\n\t"a": 1\r\n}'),
        ("größe".encode(), "größe"),
        (b"\x1b[2J", {"hex": "1b5b324a"}),
        (b"\xff", {"hex": "ff"}),
        (b"a\0b", {"hex": "610062"}),
    ],
)
def test_bytes_are_text_when_printable_and_hex_otherwise(data: bytes, said: object) -> None:
    assert plain(data) == said


def test_a_fault_is_told_with_its_place_and_bytes() -> None:
    item = Item(
        FILE, Direction.UNKNOWN, 10, None, b"abc", error=CaptureError("lost"), error_at=2, line=4
    )
    assert record(item, None) == {
        "connection": 1,
        "direction": "unknown",
        "offset": 10,
        "line": 4,
        "size": 3,
        "error": "lost",
        "error_offset": 12,
        "bytes": {"hex": "616263"},
    }


def test_a_frame_in_no_layout_is_told_with_its_header() -> None:
    found = record(item_of_frame(Frame(magic=0x80, opcode=0x55, extras=b"abc", vbucket=9)), 9)
    assert (found["name"], found["vbucket"]) == ("STREAM_END", 9)
    assert found["error"] == "STREAM_END with 3 bytes of extras; dcp-7 allows 4"
    assert "fields" not in found


def test_a_line_is_one_line_whatever_it_holds() -> None:
    line = json_line(item_of(Mutation(by_seqno=1, key=b"a\nb", value=b"\r\n")), 0)
    assert line.splitlines() == [line]
