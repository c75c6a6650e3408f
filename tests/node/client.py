"""A small blocking client for tests: it speaks through `headrace.wire` and trusts nothing.

Every reply is decoded strictly, so a node that sends a layout no table has fails the test that saw
it.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from headrace.protocol.scram import PLAIN, ScramClient, plain_payload
from headrace.wire import admin, kv, messages
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import FrameBuffer
from headrace.wire.message import ErrorReply, Message, Reply, Request
from headrace.wire.opcodes import OpenFlag, Status

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from headrace.wire.frame import Frame

TIMEOUT_SECONDS = 20.0

Kind = TypeVar("Kind", bound=Message)


class Client:
    """One connection to a node in this process."""

    def __init__(
        self, port: int, *, tls: ssl.SSLContext | None = None, dialect: Dialect = Dialect.DCP_7
    ) -> None:
        """Connect."""
        self.dialect = dialect
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._frames = FrameBuffer()
        self._opaque = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def shut(self) -> None:
        """End the conversation, for a thread that waits for a frame to hear of it."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    # -- bytes and frames
    # -----------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_frame(self) -> Frame:
        """The next frame; EOFError when the node closed the connection."""
        while (frame := self._frames.take()) is None:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._frames.feed(data)
        return frame

    def is_closed(self) -> bool:
        """Whether the node closes the connection without another frame."""
        try:
            self.receive_frame()
        except (EOFError, ConnectionResetError):
            return True
        return False

    # -- messages
    # -------------------------------------------------------------------------------------

    def encode(self, request: Request) -> bytes:
        """The request under the next opaque."""
        self._opaque += 1
        return encode(replace(request, opaque=self._opaque), self.dialect)

    def send(self, *requests: Request) -> None:
        self.send_bytes(b"".join(self.encode(request) for request in requests))

    def receive(self) -> Message:
        return decode(self.receive_frame(), self.dialect)

    def call(self, request: Request) -> Message:
        """The reply to a request; its opaque must be the request's."""
        self.send(request)
        message = self.receive()
        assert message.opaque == self._opaque
        return message

    def ask(self, request: Request, kind: type[Kind]) -> Kind:
        """The reply to a request that must succeed in this way."""
        message = self.call(request)
        assert isinstance(message, kind), message
        return message

    def refusal(self, request: Request) -> ErrorReply:
        """The refusal of a request that must fail."""
        message = self.call(request)
        assert isinstance(message, ErrorReply), message
        return message

    def status(self, request: Request) -> int:
        """The status of the reply to a request."""
        message = self.call(request)
        assert isinstance(message, Reply)
        return message.status

    # -- what many tests need
    # -------------------------------------------------------------------------

    def hello(self, *features: int) -> tuple[int, ...]:
        return self.ask(admin.Hello(key=b"test", features=features), admin.HelloReply).features

    def login(self, user: str, password: str, mechanism: str = "SCRAM-SHA512") -> int:
        """Log in; the status of the last step."""
        key = mechanism.encode()
        if mechanism == PLAIN:
            return self.status(admin.SaslAuth(key=key, value=plain_payload(user, password)))
        scram = ScramClient(mechanism, user, password, nonce="c" * 16)
        first = self.call(admin.SaslAuth(key=key, value=scram.first()))
        if not isinstance(first, admin.SaslAuthReply):
            assert isinstance(first, ErrorReply)
            return first.status
        assert first.status == Status.AUTH_CONTINUE
        last = self.call(admin.SaslStep(key=key, value=scram.final(first.value)))
        if isinstance(last, admin.SaslStepReply):
            scram.verify(last.value)
            return Status.SUCCESS
        assert isinstance(last, ErrorReply)
        return last.status

    def set(self, key: bytes, value: bytes, *, vbucket: int = 0, **fields: int) -> kv.SetReply:
        request = kv.Set(key=key, value=value, vbucket=vbucket, **fields)  # type: ignore[arg-type]
        return self.ask(request, kv.SetReply)

    def get(self, key: bytes, *, vbucket: int = 0) -> kv.GetReply:
        return self.ask(kv.Get(key=key, vbucket=vbucket), kv.GetReply)

    def stats(self, group: str = "") -> dict[str, str]:
        """A group of statistics that must exist."""
        self.send(admin.Stat(key=group.encode()))
        found: dict[str, str] = {}
        while True:
            message = self.receive()
            assert isinstance(message, admin.StatReply), message
            if not message.key:
                return found
            found[message.key.decode()] = message.value.decode()

    def open_producer(self, name: bytes = b"test", flags: int = OpenFlag.PRODUCER) -> None:
        self.ask(messages.Open(key=name, flags=flags), messages.OpenReply)
