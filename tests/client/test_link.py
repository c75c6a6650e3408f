"""Link: bytes by the megabyte, frames of any size, losses told at last."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from headrace.client.address import NodeAddress
from headrace.client.bulk import BulkRoad, ObjectRoad, Rows
from headrace.client.link import BUFFER_SIZE, ENOUGH, POURING, Link
from headrace.protocol.consumer import ConsumerConnection
from headrace.protocol.flow import ConsumerWindow
from headrace.protocol.handshake import ConsumerSettings
from headrace.wire import admin
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import HEADER_SIZE, Frame
from headrace.wire.opcodes import Magic, Opcode
from tests.client.producer import accept, end, marker, mutation
from tests.client.test_bulk import connection_of, shake_hands, streams, wire

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = NodeAddress("127.0.0.1", 1)


@pytest.fixture
def pair() -> Iterator[tuple[Link, socket.socket]]:
    ours, theirs = socket.socketpair()
    connection = ConsumerConnection(ConsumerSettings(name="test"), now=0.0, nonce="n")
    link = Link(ours, NODE, ObjectRoad(connection), opened_at=0.0)
    yield link, theirs
    link.close()
    theirs.close()


def test_hello_is_said_and_the_answer_taken(pair: tuple[Link, socket.socket]) -> None:
    link, peer = pair
    link.flush()
    hello = peer.recv(4096)
    assert hello[1] == Opcode.HELLO
    opaque = int.from_bytes(hello[12:16], "big")
    peer.sendall(encode(admin.HelloReply(opaque=opaque, features=()), Dialect.DCP_7))
    assert [taken.consumed for taken in link.pump(now=1.0)] == [HEADER_SIZE]
    assert peer.recv(4096)[1] in (Opcode.OPEN, Opcode.SELECT_BUCKET)
    assert link.lost is None


def test_the_buffer_grows_for_a_large_frame(pair: tuple[Link, socket.socket]) -> None:
    link, peer = pair
    value = bytes(BUFFER_SIZE + 1000)
    frame = Frame(magic=Magic.REQUEST, opcode=0xEE, value=value).to_bytes()
    at, consumed = 0, 0
    peer.setblocking(False)
    while consumed < len(frame):
        if at < len(frame):
            with contextlib.suppress(BlockingIOError):
                at += peer.send(frame[at : at + (1 << 20)])
        consumed += sum(taken.consumed for taken in link.pump(now=1.0))
        assert link.lost is None
    assert consumed == len(frame)


def test_a_frame_beyond_every_limit_ends_the_link(pair: tuple[Link, socket.socket]) -> None:
    link, peer = pair
    peer.sendall(b"\x80\x57" + bytes(6) + b"\x7f\xff\xff\xff" + bytes(12))
    list(link.pump(now=1.0))
    assert "limit" in str(link.lost)


def test_a_close_during_the_handshake_says_so(pair: tuple[Link, socket.socket]) -> None:
    link, peer = pair
    peer.close()
    list(link.pump(now=1.0))
    assert "closed the connection during the handshake" in str(link.lost)


def test_another_protocol_is_told_at_its_first_byte(pair: tuple[Link, socket.socket]) -> None:
    link, peer = pair
    peer.sendall(b"H")
    list(link.pump(now=1.0))
    assert "magic 48" in str(link.lost)


@pytest.fixture
def pouring() -> Iterator[Link]:
    """A link over TCP on which so much came at once that more is expected."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    connection = ConsumerConnection(ConsumerSettings(name="test"), now=0.0, nonce="n")
    link = Link(ours, NODE, ObjectRoad(connection), opened_at=0.0)
    # The beginning of a frame that never ends: everything is received, nothing is taken.
    peer.sendall(Frame(magic=Magic.REQUEST, opcode=0xEE, value=bytes(2 * POURING)).to_bytes()[:-1])
    with select.epoll() as poll:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2 * POURING)
        poll.register(ours, select.EPOLLIN)
        assert poll.poll(timeout=60)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    list(link.pump(now=1.0))
    with contextlib.closing(link), peer:
        yield link


def wakes_for(link: Link) -> int:
    return link.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def test_while_bytes_pour_in_they_are_gathered_and_afterwards_no_longer(pouring: Link) -> None:
    seen = [pouring.has_more]  # the owner must not sleep: the pump waits, for more than one byte
    list(pouring.pump(now=1.0))
    seen.append(pouring.has_more)
    assert seen == [True, False], "nothing more came"
    assert wakes_for(pouring) == 1, "and the next byte wakes the owner"


@pytest.mark.parametrize("window", [1 << 16, 1 << 20, 10 << 20])
def test_no_more_is_waited_for_than_the_window_lets_the_producer_send(
    window: int, pouring: Link
) -> None:
    asked = []
    pouring.connection.window = ConsumerWindow(window, now=0.0)
    pouring._poll = cast(
        "select.poll", SimpleNamespace(poll=lambda _: asked.append(wakes_for(pouring)))
    )
    list(pouring.pump(now=1.0))
    assert asked == [min(window // 2, ENOUGH - pouring.received)]
    assert wakes_for(pouring) == 1


# -- rows straight from the socket -----------------------------------------------------------------


@pytest.fixture
def rows() -> Iterator[tuple[Link, socket.socket, int]]:
    """A link that pours, one open stream on it, and the stream's opaque."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    road = BulkRoad(connection_of(window=0))
    shake_hands(road)
    (opaque,) = streams(road, 1).values()
    link = Link(ours, NODE, road, opened_at=0.0)
    link._poured = True
    with contextlib.closing(link), peer:
        peer.sendall(wire({0: opaque}, (0, accept()), (0, marker(1, 1 << 20))))
        assert pumped(link, 2) == []
        link._poured = True
        yield link, peer, opaque


def pumped(link: Link, frames: int = 0) -> list[int]:
    """The seqnos of the rows that came, until ``frames`` others did or the link is lost."""
    found: list[int] = []
    others = 0
    for _ in range(1000):
        for taken in link.pump(now=1.0):
            for piece in taken.pieces:
                if isinstance(piece, Rows):
                    seqnos = piece.batch.column("seqno").to_pylist()
                    found += seqnos[piece.start : piece.stop]
                else:
                    others += 1
        if link.lost is not None or (frames and others >= frames):
            break
    return found


def test_rows_that_pour_in_are_scanned_as_they_come(
    rows: tuple[Link, socket.socket, int],
) -> None:
    link, peer, opaque = rows
    said = wire({0: opaque}, *((0, mutation(seqno, value=bytes(500))) for seqno in range(1, 401)))
    peer.sendall(said + wire({0: opaque}, (0, end())))
    assert pumped(link, 1) == list(range(1, 401))
    assert link.lost is None
    while link.has_more:
        assert list(link.pump(now=1.0)) == []
    assert wakes_for(link) == 1, "the owner sleeps now, and the next byte wakes it"


def test_a_frame_larger_than_the_buffer_pours_in_too(
    rows: tuple[Link, socket.socket, int],
) -> None:
    """It is left to the road that lets the buffer grow."""
    link, peer, opaque = rows
    large = wire({0: opaque}, (0, mutation(1, value=bytes(2 * BUFFER_SIZE))))
    said = large + wire({0: opaque}, (0, mutation(2)), (0, end()))
    sender = threading.Thread(target=peer.sendall, args=(said,))
    sender.start()
    assert pumped(link, 1) == [1, 2]
    sender.join()


def test_a_close_while_rows_pour_in_is_told_after_them(
    rows: tuple[Link, socket.socket, int],
) -> None:
    link, peer, opaque = rows
    peer.sendall(wire({0: opaque}, *((0, mutation(seqno)) for seqno in range(1, 4)))[:-1])
    peer.close()
    assert pumped(link) == [1, 2]
    assert "closed the connection" in str(link.lost)


def test_a_reset_while_rows_pour_in_is_told(rows: tuple[Link, socket.socket, int]) -> None:
    link, peer, _ = rows
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    assert pumped(link) == []
    assert "reset" in str(link.lost)


def test_nonsense_while_rows_pour_in_ends_the_link(
    rows: tuple[Link, socket.socket, int],
) -> None:
    link, peer, opaque = rows
    peer.sendall(wire({0: opaque}, (0, mutation(1))) + b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert pumped(link) == [1]
    assert "magic 48" in str(link.lost)
