"""KvConnection: questions to one node, and documents written to it, over one blocking socket.

The handshake is the consumer's without OPEN. Requests are pipelined: a batch is written in pieces
while replies are read, so that neither end waits on a full socket.

Rules
- One thread at a time.
- A refused request is a StatusError with the node's words; a lost link is a ConnectionLost.
- Nothing waits longer than `Access.answer_seconds` for the next byte.

Imports: errors, protocol, wire, client.
"""

from __future__ import annotations

import secrets
import selectors
import time
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.client.dial import dial, handshake_sentence
from headrace.errors import CannotConnect, ConnectionLost, RemoteProtocolError, StatusError
from headrace.protocol.handshake import ConsumerSettings, Handshake, refusal
from headrace.protocol.talk import read_log
from headrace.wire import admin
from headrace.wire import messages as m
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import Frame, FrameBuffer
from headrace.wire.message import ErrorReply, Reply, Request
from headrace.wire.opcodes import Opcode, Status, VBucketState

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator, Iterator, Sequence

    from headrace.client.access import Access
    from headrace.client.address import NodeAddress
    from headrace.history import FailoverLog
    from headrace.protocol.events import RefusedControl

RECEIVE_SIZE: Final = 256 << 10
SEND_SIZE: Final = 256 << 10
PIPELINE_MAX: Final = 4096
"""Most requests without a reply."""
OPAQUE_LIMIT: Final = 0x1_0000_0000
STATS_MAX: Final = 1 << 20
AGENT: Final = "headrace"

R = TypeVar("R", bound=Reply)


class KvHandshake(Handshake):
    """The consumer's script up to the bucket; the connection stays an ordinary one."""

    def _open(self, settings: ConsumerSettings) -> Generator[Request, Reply, None]:
        del settings
        yield from ()

    def _set_controls(
        self, settings: ConsumerSettings, features: frozenset[int]
    ) -> Generator[Request, Reply, tuple[tuple[tuple[str, str], ...], tuple[RefusedControl, ...]]]:
        del settings, features
        yield from ()
        return (), ()


class KvConnection:
    """One connection to one node, logged in and in a bucket."""

    def __init__(self, link: socket.socket, node: NodeAddress, access: Access) -> None:
        """Take a connected socket; `open` is the way to a usable connection."""
        self.node = node
        self.features: frozenset[int] = frozenset()
        self._link = link
        self._access = access
        self._frames = FrameBuffer()
        self._buffer = bytearray(RECEIVE_SIZE)
        self._dialect = access.dialect or Dialect.DCP_7
        self._opaque = 0x1000
        self._said = b""
        self.is_closed = False

    @classmethod
    def open(
        cls, node: NodeAddress, access: Access, *, bucket: str | None, collections: bool = True
    ) -> KvConnection:
        """Connect, log in and select the bucket, or say what went wrong."""
        link = dial(node, access, small=True)
        connection = cls(link, node, access)
        try:
            connection._greet(bucket, collections)
        except BaseException:
            link.close()
            raise
        return connection

    def __enter__(self) -> KvConnection:
        """Stay open for the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the socket; what is not answered yet never is."""
        self.is_closed = True
        self._link.close()

    # -- the handshake --------------------------------------------------------------------------

    def _greet(self, bucket: str | None, collections: bool) -> None:
        access = self._access
        settings = ConsumerSettings(
            name=AGENT,
            user=access.user,
            password=access.password,
            bucket=bucket,
            encrypted=access.tls is not None,
            collections=collections,
            dialect=access.dialect,
        )
        script = KvHandshake(settings, nonce=secrets.token_urlsafe(24))
        deadline = time.monotonic() + access.connect_seconds
        try:
            while script.request is not None:
                self._link.sendall(encode(script.request, script.dialect))
                script.receive(self._greeting_reply(script.request, deadline))
        except StatusError as error:
            raise _explained(error, access, bucket, self.node) from error
        except RemoteProtocolError as error:
            raise CannotConnect(
                handshake_sentence(
                    self.node,
                    said=self._said,
                    encrypted=access.tls is not None,
                    what=f"does not speak the binary protocol ({error})",
                )
            ) from error
        except (OSError, ConnectionLost) as error:
            raise CannotConnect(self._greeting_failure(error)) from error
        assert script.connected is not None
        self.features = script.connected.features
        self._dialect = script.dialect

    def _greeting_reply(self, request: Request, deadline: float) -> Reply:
        while True:
            frame = self._frames.take()
            if frame is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self._link.settimeout(left)
                size = self._receive()
                self._said = (self._said + bytes(self._buffer[:size]))[:256]
                continue
            message = decode(frame, self._dialect)
            if isinstance(message, Reply):
                if message.opaque != request.opaque:
                    raise RemoteProtocolError(f"reply with opaque {message.opaque:#x}")
                return message

    def _greeting_failure(self, error: OSError | ConnectionLost) -> str:
        timed_out = isinstance(error, TimeoutError)
        seconds = f"{self._access.connect_seconds:g} s"
        what = (
            f"accepted the connection and did not finish the handshake within {seconds}"
            if timed_out
            else "closed the connection during the handshake"
        )
        return handshake_sentence(
            self.node, said=self._said, encrypted=self._access.tls is not None, what=what
        )

    # -- questions ------------------------------------------------------------------------------

    def ask(self, request: Request, kind: type[R]) -> R:
        """The reply to one request; StatusError when it is refused."""
        (reply,) = self.ask_all([request])
        if isinstance(reply, ErrorReply):
            raise refusal(reply, f"{self.node} refused", request.vbucket)
        assert isinstance(reply, kind)
        return reply

    def ask_all(self, requests: Sequence[Request]) -> list[Reply]:
        """The replies to many requests, in their order; refusals are among them."""
        replies: list[Reply] = []
        for start in range(0, len(requests), PIPELINE_MAX):
            replies += self._ask_some(requests[start : start + PIPELINE_MAX])
        return replies

    def _ask_some(self, requests: Sequence[Request]) -> list[Reply]:
        numbered = {self._number(): request for request in requests}
        parts = [
            encode(_with_opaque(request, opaque), self._dialect)
            for opaque, request in numbered.items()
        ]
        found: dict[int, Reply] = {}
        for reply in self._exchange(b"".join(parts)):
            if reply.opaque in numbered:
                found[reply.opaque] = reply
            if len(found) == len(numbered):
                break
        return [found[opaque] for opaque in numbered]

    def _number(self) -> int:
        self._opaque = self._opaque + 1 if self._opaque + 1 < OPAQUE_LIMIT else 0x1000
        return self._opaque

    def _exchange(self, output: bytes) -> Iterator[Reply]:
        """Send the output and give the replies; ends when the caller stops listening."""
        for frame in self._frames_of(output):
            message = decode(frame, self._dialect)
            if isinstance(message, Reply):
                yield message

    def _frames_of(self, output: bytes) -> Iterator[Frame]:
        """Send the output while frames come."""
        rest = memoryview(output)
        self._link.settimeout(self._access.answer_seconds)
        while True:
            while (frame := self._frames.take()) is not None:
                yield frame
            if rest:
                rest = rest[self._send_some(rest) :]
                continue
            try:
                self._receive()
            except TimeoutError as error:
                self.close()
                raise ConnectionLost(
                    f"{self.node} did not answer within {self._access.answer_seconds:g} s"
                ) from error

    def _send_some(self, rest: memoryview) -> int:
        """Send what fits; when nothing does, read first: the node may wait for that."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ | selectors.EVENT_WRITE)
            for _, events in selector.select(self._access.answer_seconds):
                if events & selectors.EVENT_READ:
                    self._receive()
                    return 0
                return self._send(rest[:SEND_SIZE])
        raise ConnectionLost(f"{self.node} took nothing for {self._access.answer_seconds:g} s")

    def _send(self, part: memoryview) -> int:
        try:
            return self._link.send(part)
        except OSError as error:
            self.close()
            raise ConnectionLost(f"{self.node}: {error.strerror or error}") from error

    def _receive(self) -> int:
        try:
            size = self._link.recv_into(self._buffer)
        except TimeoutError:
            raise
        except OSError as error:
            self.close()
            raise ConnectionLost(f"{self.node}: {error.strerror or error}") from error
        if size == 0:
            self.close()
            raise ConnectionLost(f"{self.node} closed the connection")
        self._frames.feed(memoryview(self._buffer)[:size])
        return size

    # -- named questions ------------------------------------------------------------------------

    def cluster_map(self) -> bytes | None:
        """The cluster map as JSON; None from a server that has none."""
        (reply,) = self.ask_all([admin.GetClusterConfig()])
        if isinstance(reply, admin.GetClusterConfigReply):
            return reply.value or None
        assert isinstance(reply, ErrorReply)
        if reply.status == Status.EACCESS:
            raise refusal(reply, f"{self.node} refused the cluster map")
        return None

    def seqnos(
        self, *, state: int = VBucketState.ACTIVE, collection_id: int | None = None
    ) -> dict[int, int]:
        """The high seqno of every vbucket in a state on this node."""
        request = m.GetAllVbSeqnos(state=state, collection_id=collection_id)
        reply = self.ask(request, m.GetAllVbSeqnosReply)
        return {line.vbucket: line.seqno for line in reply.seqnos}

    def failover_logs(self, vbuckets: Sequence[int]) -> dict[int, FailoverLog]:
        """The failover logs of vbuckets on this node; one that is not here is left out."""
        replies = self.ask_all([m.FailoverLogRequest(vbucket=vbucket) for vbucket in vbuckets])
        logs = {}
        for vbucket, reply in zip(vbuckets, replies, strict=True):
            if isinstance(reply, m.FailoverLogReply):
                logs[vbucket] = read_log(reply.failover_log)
            elif isinstance(reply, ErrorReply) and reply.status != Status.NOT_MY_VBUCKET:
                raise refusal(reply, f"{self.node} refused a failover log", vbucket)
        return logs

    def persisted(self, branches: dict[int, int]) -> dict[int, admin.ObserveSeqnoReply]:
        """How far branches (vbucket -> uuid) are on disk; unknown ones are left out."""
        requests = [
            admin.ObserveSeqno(vbucket=vbucket, vb_uuid=uuid) for vbucket, uuid in branches.items()
        ]
        return {
            vbucket: reply
            for vbucket, reply in zip(branches, self.ask_all(requests), strict=True)
            if isinstance(reply, admin.ObserveSeqnoReply)
        }

    def manifest(self) -> bytes:
        """The collections manifest as JSON."""
        reply = self.ask(admin.GetCollectionsManifest(), admin.GetCollectionsManifestReply)
        return reply.value

    def stats(self, group: str = "") -> dict[str, str]:
        """A group of statistics."""
        found: dict[str, str] = {}
        opaque = self._number()
        for reply in self._exchange(
            encode(admin.Stat(opaque=opaque, key=group.encode()), self._dialect)
        ):
            if reply.opaque != opaque:
                continue
            if isinstance(reply, ErrorReply):
                raise refusal(reply, f"{self.node} refused the statistics {group!r}")
            assert isinstance(reply, admin.StatReply)
            if not reply.key and not reply.value:
                break
            if len(found) >= STATS_MAX:
                raise ConnectionLost(f"{self.node} sends more than {STATS_MAX} statistics")
            found[reply.key.decode("utf-8", "replace")] = reply.value.decode("utf-8", "replace")
        return found

    def ask_raw(self, frame: Frame) -> int:
        """Send one frame as it is and give the status of its reply; other frames are ignored."""
        for reply in self._frames_of(frame.to_bytes()):
            if reply.is_reply and (reply.opcode, reply.opaque) == (frame.opcode, frame.opaque):
                return reply.status
        raise AssertionError("an exchange ends with an error or a reply")

    def write_quietly(self, parts: Sequence[bytes], last: int) -> list[tuple[int, ErrorReply]]:
        """Send quiet writes that end with a NOOP of opaque ``last``; the refusals, by opaque."""
        refused: list[tuple[int, ErrorReply]] = []
        for reply in self._exchange(b"".join(parts)):
            if isinstance(reply, admin.KvNoopReply) and reply.opaque == last:
                break
            if isinstance(reply, ErrorReply):
                refused.append((reply.opaque, reply))
        return refused


def _with_opaque(request: Request, opaque: int) -> Request:
    # Requests are made by us just now and seen by nobody else: a copy of each would cost more
    # than its encoding.
    object.__setattr__(request, "opaque", opaque)
    return request


def _explained(
    error: StatusError, access: Access, bucket: str | None, node: NodeAddress
) -> StatusError:
    """The refusal with what to try."""
    named = access.user is not None
    limits = f"user {access.user!r} may not use it" if named else "it needs a user to log in"
    hints = {
        Opcode.SASL_AUTH: f"check user {access.user!r} and the password",
        Opcode.SASL_STEP: f"check user {access.user!r} and the password",
        Opcode.SELECT_BUCKET: (f"bucket {bucket!r} does not exist at {node}, or {limits}"),
    }
    try:
        hint = hints.get(Opcode(error.opcode))
    except ValueError:
        hint = None
    text = f"{error}; {hint}" if hint else str(error)
    return StatusError(text, status=error.status, opcode=error.opcode, vbucket=error.vbucket)
