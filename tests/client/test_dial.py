"""Wrong host, port or protocol: a sentence with the cause and what to try, in bounded time."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from headrace.client.address import NodeAddress
from headrace.client.bucket import connect
from headrace.errors import CannotConnect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def server(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server in a thread that lets ``talk`` deal with every client."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(link: socket.socket) -> None:
        with link, contextlib.suppress(OSError):
            talk(link)

    def accept() -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(link,), daemon=True))
            threads[-1].start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def refusal(url: str) -> str:
    with pytest.raises(CannotConnect) as caught:
        connect(url, connect_seconds=0.5)
    return str(caught.value)


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    said = refusal(f"couchbase://127.0.0.1:{port}/default")
    assert said.startswith(f"nothing listens at 127.0.0.1:{port}; is the node running")
    assert "11210" in said


def test_an_unknown_host() -> None:
    said = refusal("couchbase://no-such-host.invalid/default")
    assert said.startswith("host 'no-such-host.invalid' is unknown")


def test_several_hosts_are_all_named() -> None:
    said = refusal("couchbase://no-such-host.invalid,127.0.0.1:1/default")
    assert "no-such-host.invalid" in said
    assert "127.0.0.1:1" in said


def test_a_server_that_says_nothing() -> None:
    closed = threading.Event()

    def silent(link: socket.socket) -> None:
        while link.recv(4096):
            closed.wait(0.01)

    with server(silent) as port:
        said = refusal(f"couchbase://127.0.0.1:{port}/default")
    assert "accepted the connection and did not finish the handshake within 0.5 s" in said
    assert "is it a data node" in said


def test_a_server_that_speaks_http_although_it_waits_for_a_line() -> None:
    def web(link: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += link.recv(4096) or b"\r\n\r\n"
        if data.startswith(b"GET"):
            link.sendall(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n")

    with server(web) as port:
        said = refusal(f"couchbase://127.0.0.1:{port}/default")
    assert f"127.0.0.1:{port} speaks HTTP (HTTP/1.1 200 OK), not the binary protocol" in said


def test_a_server_that_answers_with_http_at_once() -> None:
    with server(lambda link: link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        said = refusal(f"couchbase://127.0.0.1:{port}/default")
    assert "speaks HTTP (HTTP/1.1 400 Bad Request)" in said


def test_a_server_that_speaks_tls() -> None:
    def alert(link: socket.socket) -> None:
        link.recv(4096)
        link.sendall(b"\x15\x03\x01\x00\x02\x02\x46")

    with server(alert) as port:
        said = refusal(f"couchbase://127.0.0.1:{port}/default")
    assert "speaks TLS; use couchbases://" in said


def test_a_server_that_does_not_speak_tls() -> None:
    with server(lambda link: link.sendall(b"hello, this is no TLS at all\r\n")) as port:
        said = refusal(f"couchbases://127.0.0.1:{port}/default")
    assert "does not speak TLS" in said
    assert "use couchbase://" in said


def test_a_server_that_closes() -> None:
    with server(lambda _: None) as port:
        said = refusal(f"couchbase://127.0.0.1:{port}/default")
    assert "closed the connection during the handshake" in said


def test_an_address_is_told_as_it_is_written() -> None:
    assert str(NodeAddress("::1", 1)) == "[::1]:1"
