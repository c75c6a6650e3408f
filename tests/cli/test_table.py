from __future__ import annotations

import click
import pytest

from headrace.capture.conversation import Connection, RoleEvidence
from headrace.capture.walk import Item
from headrace.cli.follow import Follower
from headrace.cli.table import Table, introduction
from headrace.errors import CaptureError
from headrace.wire.dialect import Dialect
from headrace.wire.frame import Frame
from headrace.wire.message import ErrorReply
from headrace.wire.messages import Mutation, Noop, RollbackReply, SnapshotMarker, StreamEnd
from tests.cli.building import BACK, CLIENT, FILE, SERVER, item_of, item_of_frame

MUTATION = Mutation(by_seqno=4, vbucket=528, opaque=0x1210, key=b"hello", value=b"world")
SECOND = 1_000_000_000


def lines(
    items: list[Item], *, timed: bool = True, width: int | None = None, plain: bool = True
) -> list[str]:
    follower = Follower()
    table = Table(follower, Dialect.DCP_7, timed=timed, width=width)
    found = []
    for item in items:
        follower.see(item)
        found += list(table.lines(item))
    return [click.unstyle(line) if plain else line for line in found]


def test_the_table_introduces_its_time_its_connections_and_its_columns() -> None:
    items = [
        item_of(MUTATION, time=1_700_000_000 * SECOND + 5_000),
        item_of(MUTATION, time=1_700_000_002 * SECOND + 5_000),
    ]
    assert lines(items) == [
        "# time 0 is 2023-11-14 22:13:20.000005 UTC",
        "# connection 1: 10.0.0.1:40000 > 10.0.0.2:11210",
        "       time conn     opcode               vb     opaque  what",
        "   0.000000    1 <-  MUTATION            528     0x1210  "
        "seqno 4 hello = world (5 bytes) rev 0",
        "   2.000000    1 <-  MUTATION            528     0x1210  "
        "seqno 4 hello = world (5 bytes) rev 0",
    ]


def test_a_file_without_times_has_the_place_instead() -> None:
    items = [item_of(MUTATION, connection=FILE, time=None, offset=64)]
    assert lines(items, timed=False) == [
        "     byte     opcode               vb     opaque  what",
        "       64 <-  MUTATION            528     0x1210  seqno 4 hello = world (5 bytes) rev 0",
    ]


def test_a_capture_without_times_says_so_in_each_line() -> None:
    (_, _, line) = lines([item_of(MUTATION, time=None)])
    assert line.startswith("          -    1 <-")


@pytest.mark.parametrize("width", [40, 60, 79, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = Mutation(by_seqno=4, key=b"k" * 200, value=b"v" * 200)
    found = lines([item_of(long)], width=width)
    assert max(len(line) for line in found[2:]) == width
    assert found[-1].endswith("...")


def test_a_narrow_terminal_keeps_its_room_for_words() -> None:
    assert "opaque" not in lines([item_of(MUTATION)], width=99)[2]
    assert "opaque" in lines([item_of(MUTATION)], width=100)[2]


def test_a_fault_without_frame_is_a_line_too() -> None:
    fault = Item(FILE, BACK, 3, None, b"abc", error=CaptureError("lost"), error_at=1)
    assert lines([fault], timed=False)[-1].split() == ["3", "<-", "(no", "frame)", "!!", "lost"]


def test_a_frame_in_no_layout_is_a_line_with_the_reason() -> None:
    item = item_of_frame(Frame(magic=0x80, opcode=0x55, extras=b"abc", vbucket=9))
    line = lines([item])[-1]
    assert "STREAM_END" in line
    assert line.endswith("!! STREAM_END with 3 bytes of extras; dcp-7 allows 4")


COLOURS = {
    "a document is plain": (item_of(MUTATION), ""),
    "housekeeping is dim": (item_of(Noop()), "\x1b[2m"),
    "a marker is cyan": (
        item_of(SnapshotMarker(start_seqno=1, end_seqno=2, flags=1)),
        "\x1b[36m",
    ),
    "a stream's end is yellow": (item_of(StreamEnd(reason=0)), "\x1b[33m"),
    "a rollback is yellow": (item_of(RollbackReply(rollback_seqno=1)), "\x1b[33m"),
    "a refusal is red": (item_of(ErrorReply(opcode=0x53, status=4)), "\x1b[31m"),
    "a fault is red and bold": (
        item_of_frame(Frame(magic=0x80, opcode=0x55, extras=b"abc")),
        "\x1b[31m\x1b[1m",
    ),
}


@pytest.mark.parametrize(("item", "start"), COLOURS.values(), ids=COLOURS)
def test_colours_say_what_matters(item: Item, start: str) -> None:
    line = lines([item], plain=False)[-1]
    assert line.startswith(start)
    assert ("\x1b" in line) == bool(start)


def test_an_introduction_says_how_unsure_the_roles_are() -> None:
    guessed = Connection(2, CLIENT, SERVER, RoleEvidence.PORT_NUMBERS, complete_start=False)
    assert introduction(guessed) == (
        "# connection 2: 10.0.0.1:40000 > 10.0.0.2:11210 "
        "(client and server told by the port numbers)"
    )
