"""headrace capture: record a conversation with a node as a pcap file any tool can read.

Our own consumer speaks, or (``--listen``) any client that connects to us: its bytes are passed on
to the node. What is inside TLS is recorded in the clear; the login's SCRAM exchange proves the
password without holding it.

Imports: capture, cli.bars, cli.connecting, client.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.bars import bar
from headrace.cli.connecting import connected, parse_since, parse_until, source_options, take_source
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.capture.writer import ConnectionWriter, PcapWriter
    from headrace.client.access import Access
    from headrace.client.address import NodeAddress

CHUNK: Final = 256 << 10
POLL_SECONDS: Final = 0.2
CLIENTS_MAX: Final = 64
SHOW_EVERY: Final = 1_000


class Recorder:
    """One pcap file, written by several connections of several threads."""

    def __init__(self, pcap: PcapWriter) -> None:
        """Take an open file."""
        self.bytes = 0
        self._pcap = pcap
        self._lock = threading.Lock()

    def connection(self, link: socket.socket, *, client_side: bool) -> Recording:
        """Begin a connection; ``client_side``: the socket is the client's end."""
        from headrace.capture.conversation import Endpoint

        ours, theirs = Endpoint(*link.getsockname()[:2]), Endpoint(*link.getpeername()[:2])
        client, server = (ours, theirs) if client_side else (theirs, ours)
        with self._lock:
            writer = self._pcap.connect(client, server, timestamp_ns=time.time_ns())
        return Recording(self, writer, self._lock)


class Recording:
    """One connection in the file."""

    def __init__(self, recorder: Recorder, writer: ConnectionWriter, lock: threading.Lock) -> None:
        """Share the file with the others."""
        self._recorder = recorder
        self._writer = writer
        self._lock = lock
        self._closed = False

    def said(self, data: bytes, *, by_client: bool) -> None:
        """Note what one end said."""
        from headrace.capture.conversation import Direction

        direction = Direction.CLIENT_TO_SERVER if by_client else Direction.SERVER_TO_CLIENT
        with self._lock:
            if not self._closed:
                self._writer.send(direction, data, time.time_ns())
                self._recorder.bytes += len(data)

    def close(self) -> None:
        """Note the end, once."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._writer.close(time.time_ns())


class TappedSocket:
    """The client's end of a socket that notes everything said on it."""

    def __init__(self, link: socket.socket, recording: Recording) -> None:
        """Stand between the socket and its user."""
        self._link = link
        self._recording = recording

    def recv_into(self, buffer: memoryview | bytearray) -> int:
        """Receive, and note it."""
        size = self._link.recv_into(buffer)
        if size:
            self._recording.said(bytes(memoryview(buffer)[:size]), by_client=False)
        return size

    def send(self, data: bytes | memoryview) -> int:
        """Send, and note as much as was taken."""
        size = self._link.send(data)
        self._recording.said(bytes(data[:size]), by_client=True)
        return size

    def sendall(self, data: bytes) -> None:
        """Send everything, and note it."""
        self._link.sendall(data)
        self._recording.said(data, by_client=True)

    def close(self) -> None:
        """Close, and note it."""
        self._recording.close()
        self._link.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else a socket has
        return getattr(self._link, name)


@click.command("capture")
@source_options
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--since", default="beginning", show_default=True, help="As in headrace tail.")
@click.option("--until", default="now", show_default=True, help="As in headrace tail; or never.")
@click.option(
    "--listen", type=click.IntRange(0, 65535), help="Record clients of this port instead."
)
@click.option("--xattrs", is_flag=True, help="Extended attributes too.")
@click.option("--sync-writes", is_flag=True, help="Prepares, commits and aborts too.")
@click.option("--compression", is_flag=True, help="Ask for compressed values.")
def command(**options: Any) -> None:  # noqa: ANN401 - click's own words
    """Record a conversation with a node in OUT, a pcap file."""
    from headrace.capture.writer import PcapWriter

    source = take_source(options)
    try:
        stream = options["out"].open("wb")
    except OSError as error:
        raise ConfigError(f"{options['out']} cannot be written: {error.strerror}") from error
    with stream:
        recorder = Recorder(PcapWriter(stream))
        with contextlib.suppress(KeyboardInterrupt), connected(**source) as bucket:
            if options["listen"] is None:
                rows = _record_reader(bucket, recorder, options)
                click.echo(f"{rows:,} changes", err=True)
            else:
                node = bucket.cluster_map.nodes[0]
                with Forwarder(node, bucket.access, recorder, options["listen"]) as forwarder:
                    click.echo(f"listening on 127.0.0.1:{forwarder.port} for {node}", err=True)
                    threading.Event().wait()
    click.echo(f"{recorder.bytes:,} bytes said, in {options['out']}")


def _record_reader(bucket: Any, recorder: Recorder, options: dict[str, Any]) -> int:  # noqa: ANN401
    """Read as told while every connection of the reader is recorded; the number of changes."""
    bucket.access = replace(
        bucket.access,
        tap=lambda link: TappedSocket(link, recorder.connection(link, client_side=True)),
    )
    until = None if options["until"] == "never" else parse_until(options["until"])
    count = 0
    with (
        bucket.follow(
            since=parse_since(options["since"]),
            until=until,
            xattrs=options["xattrs"],
            sync_writes=options["sync_writes"],
            compression=options["compression"],
        ) as reader,
        bar("recording", unit="changes", rate=True) as shown,
    ):
        for _ in reader:
            count += 1
            if count % SHOW_EVERY == 0:
                shown.reach(count)
    return count


class Forwarder:
    """Listens on this machine and passes bytes on to a node, recording them."""

    def __init__(self, node: NodeAddress, access: Access, recorder: Recorder, port: int) -> None:
        """Listen at once."""
        self._node = node
        self._access = access
        self._recorder = recorder
        try:
            self._server = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"port {port} cannot be listened on: {error.strerror}") from error
        self.port = int(self._server.getsockname()[1])
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Forwarder:
        """Listen for the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if len(self._threads) > CLIENTS_MAX:
                client.close()
                continue
            thread = threading.Thread(target=self._forward, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _forward(self, client: socket.socket) -> None:
        from headrace.client.dial import dial
        from headrace.errors import CannotConnect

        recording = self._recorder.connection(client, client_side=False)
        try:
            with client, dial(self._node, self._access, small=True) as node:
                self._pass_on(client, node, recording)
        except (CannotConnect, OSError):
            client.close()
        finally:
            recording.close()

    def _pass_on(self, client: socket.socket, node: socket.socket, recording: Recording) -> None:
        node.settimeout(None)
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, (node, True))
            selector.register(node, selectors.EVENT_READ, (client, False))
            while not self._closed.is_set():
                for key, _ in selector.select(POLL_SECONDS):
                    there, by_client = key.data
                    link = key.fileobj
                    assert isinstance(link, socket.socket)
                    data = link.recv(CHUNK)
                    if not data:
                        return
                    recording.said(data, by_client=by_client)
                    there.sendall(data)
