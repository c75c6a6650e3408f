from __future__ import annotations

import click

from headrace.cli.summary import Summary
from headrace.wire.frame import Frame
from headrace.wire.message import ErrorReply
from headrace.wire.messages import Mutation, Noop, NoopReply, StreamEnd
from tests.cli.building import THERE, item_of, item_of_frame


def test_frames_are_counted_by_opcode_direction_and_kind() -> None:
    summary = Summary()
    for item in (
        item_of(Mutation(by_seqno=1, key=b"k")),
        item_of(Mutation(by_seqno=2, key=b"k")),
        item_of(Noop()),
        item_of(NoopReply(), direction=THERE),
        item_of(ErrorReply(opcode=0x53, status=0x22)),
        item_of(ErrorReply(opcode=0x53, status=0x22)),
        item_of(StreamEnd(reason=0)),
        item_of_frame(Frame(magic=0x80, opcode=0x55, extras=b"abc")),
    ):
        summary.count(item)
    assert [click.unstyle(line) for line in summary.lines()] == [
        "                              client to server    server to client",
        "opcode                       requests  replies   requests  replies",
        "STREAM_REQ                          -        -          -        2",
        "STREAM_END                          -        -          2        -",
        "MUTATION                            -        -          2        -",
        "NOOP                                -        1          1        -",
        "all                                 0        1          5        2",
        "",
        "replies that are not ok",
        "STREAM_REQ                ERANGE                           2",
        "",
        "1 connection, 24 bytes from the client, 239 bytes from the server, "
        "1 that could not be read",
    ]


def test_nothing_is_a_summary_too() -> None:
    assert list(map(click.unstyle, Summary().lines()))[-1] == "0 connections"
