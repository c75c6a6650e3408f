"""One peer: who it is, what it negotiated, and the answer to each of its frames.

A session has no socket and no clock of its own; the connection gives it frames and sends what it
answers. Order of the tests, as in released servers: magic, opcode, layout (04 with the place),
frame infos, login (24), bucket (08), then the command's own.

After OPEN the session has a `Producer` or a `Replica`; every change-stream frame, request or reply,
is theirs. Anything else is still answered here: a change-stream connection may read documents too.

An exception nobody expected is answered EINTERNAL and logged with its trace: the node lives.

Imports: errors, wire, node.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headrace.errors import RemoteProtocolError, StoreError, StoreFull
from headrace.node.command import Quiet
from headrace.node.commands import COMMANDS
from headrace.node.logs import LOGGER, note
from headrace.node.refusal import Blocked, Refusal
from headrace.node.replica import Replica
from headrace.node.replies import Later, pack_refusal, pack_reply
from headrace.node.users import Role
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import parse_frame_infos
from headrace.wire.messages import ClustermapChange
from headrace.wire.opcodes import (
    Datatype,
    Feature,
    FrameInfoId,
    Magic,
    Opcode,
    Status,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.node.bucket_host import BucketHost
    from headrace.node.cluster_map import MapVersion
    from headrace.node.command import Command
    from headrace.node.link import Link
    from headrace.node.producer import Producer
    from headrace.node.replies import Answer, Outcome
    from headrace.node.server import Node
    from headrace.node.users import User
    from headrace.protocol.scram import ScramServer
    from headrace.wire.frame import Frame
    from headrace.wire.message import Message

STREAM_OPCODES: Final = frozenset(
    int(opcode) for opcode in range(Opcode.ADD_STREAM, Opcode.CACHE_TRANSFER_END + 1)
)
"""Opcodes that belong to change-stream connections; OPEN makes one and is an ordinary command."""
_INFOS: Final = frozenset(int(info) for info in FrameInfoId)
_DATATYPE_FEATURES: Final = (
    (Feature.JSON, Datatype.JSON),
    (Feature.SNAPPY, Datatype.SNAPPY),
    (Feature.XATTR, Datatype.XATTR),
)


class Session:
    """The state of one peer."""

    def __init__(
        self,
        node: Node,
        link: Link,
        *,
        number: int,
        peer: str,
        address: str,
        encrypted: bool,
        loopback: bool,
    ) -> None:
        """A peer without login; on an open node it has the default bucket at once."""
        self.node = node
        self.link = link
        self.number = number
        self.peer = peer
        self.address = address
        self.encrypted = encrypted
        self.loopback = loopback
        self.dialect: Dialect = node.config.dialect
        self.agent = ""
        self.features: frozenset[int] = frozenset()
        self.datatypes = 0
        self.collections = False
        self.extended_errors = False
        self.user: User | None = None
        self.login: tuple[str, ScramServer] | None = None
        self.failed_logins = 0
        self.producer: Producer | None = None
        self.replica: Replica | None = None
        self.stream_name = b""
        self.closing = ""
        self.map_sent: MapVersion | None = None
        self.bucket_selected = False
        self._host: BucketHost | None = node.default_host() if node.is_open else None

    # -- who it is -------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """What the peer may do now."""
        if self.user is not None:
            return self.user.role
        return Role.ADMIN if self.node.is_open else Role.NONE

    @property
    def now(self) -> int:
        """Unix seconds."""
        return int(self.node.clock())

    @property
    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self.node.monotonic()

    def log_in(self, user: User) -> None:
        """The peer has proved to be this user."""
        self.user = user
        if not self.bucket_selected:
            host = self.node.default_host()
            self.select(host if host and user.may_use(host.name) else None, asked=False)
        note("logged_in", logging.DEBUG, connection=self.number, user=user.name)

    def show_certificate(self, name: str | None) -> None:
        """Log in whom a verified certificate names; an unknown name may still log in otherwise."""
        users = self.node.users
        if name is None or users is None:
            return
        user = users.find(name)
        if user is None:
            note("certificate_unknown", logging.WARNING, connection=self.number, user=name)
        else:
            self.log_in(user)

    def has(self, feature: Feature) -> bool:
        """Whether the feature was negotiated."""
        return feature in self.features

    def negotiate(self, features: Iterable[int]) -> None:
        """Start over with these features."""
        self.features = frozenset(features)
        self.collections = Feature.COLLECTIONS in self.features
        self.extended_errors = Feature.XERROR in self.features
        self.datatypes = sum(bit for feature, bit in _DATATYPE_FEATURES if feature in self.features)

    @property
    def host(self) -> BucketHost:
        """The selected bucket; NO_BUCKET when there is none, or when it was deleted since."""
        host = self._host
        if host is None or host.closed:
            raise Refusal(Status.NO_BUCKET, "no bucket is selected")
        return host

    @property
    def selected(self) -> BucketHost | None:
        """The selected bucket, or None."""
        return None if self._host is None or self._host.closed else self._host

    def select(self, host: BucketHost | None, *, asked: bool) -> None:
        """Work on a bucket from now on; ``asked`` by the peer itself."""
        self._host = host
        self.bucket_selected = asked
        self.map_sent = None

    # -- frames ----------------------------------------------------------------------------------

    def receive(self, frame: Frame) -> bytes | Later:
        """The answer to one frame, as bytes, or a `Later` for `finish`."""
        if frame.opcode in STREAM_OPCODES or frame.is_reply or frame.magic == Magic.SERVER_REQUEST:
            return self._receive_stream(frame)
        command = COMMANDS.get(frame.opcode)
        if command is None:
            return self._refuse(
                Refusal(Status.UNKNOWN_COMMAND, f"opcode {frame.opcode:#04x} is unknown"), frame
            )
        outcome = self._outcome(command, frame)
        return outcome if isinstance(outcome, Later) else self.finish(frame, outcome)

    def _outcome(self, command: Command, frame: Frame) -> Outcome:
        try:
            message = self._understand(command, frame)
            return command.function(self, message)
        except Refusal as refusal:
            return refusal
        except Blocked as blocked:
            return self._wait_for(blocked.vbucket, command, frame)
        except RemoteProtocolError as error:
            return Refusal(Status(error.status), str(error))
        except StoreFull as error:
            return Refusal(Status.ENOMEM, str(error))
        except StoreError as error:
            note("store_refused", logging.ERROR, connection=self.number, reason=error)
            return Refusal(Status.ETMPFAIL, str(error))
        except Exception:  # noqa: BLE001 - a bug in one command must not take the node down
            LOGGER.exception(
                "command_failed",
                extra={"facts": {"connection": self.number, "opcode": frame.name}},
            )
            return Refusal(Status.EINTERNAL, "the node failed; its log says how")

    def _understand(self, command: Command, frame: Frame) -> Message:
        """The message, once everything that is common to all commands has been checked."""
        if frame.magic == Magic.ALT_REQUEST:
            self._check_infos(command, frame)
        message = decode(frame, self.dialect)
        if self.role < command.role:
            raise Refusal(
                Status.EACCESS, f"{frame.name} needs the role {command.role.name.lower()}"
            )
        if command.bucket:
            _ = self.host
        if frame.datatype & ~self.datatypes and command.opcode != Opcode.OPEN:
            raise Refusal(
                Status.EINVAL,
                f"datatype {frame.datatype:#04x}; negotiated with HELLO: {self.datatypes:#04x}",
            )
        return message

    def _check_infos(self, command: Command, frame: Frame) -> None:
        if not self.has(Feature.ALT_REQUEST) and self.stream_end is None:
            raise Refusal(Status.EINVAL, "magic 08 needs the HELLO feature alt-request")
        for info in parse_frame_infos(frame.framing):
            if info.id not in _INFOS:
                raise Refusal(Status.UNKNOWN_FRAME_INFO, f"frame info {info.id} is unknown")
            if info.id != FrameInfoId.BARRIER and info.id not in command.infos:
                raise Refusal(
                    Status.EINVAL,
                    f"{frame.name} takes no frame info {FrameInfoId(info.id).name.lower()}",
                )

    def _wait_for(self, vbucket: int, command: Command, frame: Frame) -> Outcome:
        """Try again when the vbucket's state changes."""
        later, host = Later(), self.host

        def retry() -> None:
            outcome = self._outcome(command, frame)
            if isinstance(outcome, Later):
                outcome.then(later.resolve)
            else:
                later.resolve(outcome)

        if not host.block(vbucket, retry):
            return Refusal(Status.ETMPFAIL, f"too many requests wait for vbucket {vbucket}")
        later.abandon = lambda: host.unblock(vbucket, retry)
        return later

    def finish(self, frame: Frame, answer: Answer) -> bytes:
        """The bytes of an answer; quiet opcodes leave some out."""
        if isinstance(answer, bytes):
            return answer
        if answer is None:
            return b""
        quiet = COMMANDS[frame.opcode].quiet
        if isinstance(answer, Refusal):
            if quiet is Quiet.MISS and answer.status == Status.KEY_ENOENT:
                return b""
            return self._refuse(answer, frame)
        if isinstance(answer, list):
            return b"".join(pack_reply(reply, frame, self.dialect) for reply in answer)
        if quiet is Quiet.SUCCESS:
            return b""
        return pack_reply(answer, frame, self.dialect)

    def _refuse(self, refusal: Refusal, frame: Frame) -> bytes:
        if refusal.context:
            note(
                "refused",
                logging.DEBUG,
                connection=self.number,
                opcode=frame.name,
                status=refusal.status.name,
                reason=refusal.context,
            )
        if refusal.close:
            self.closing = refusal.context
        return pack_refusal(refusal, frame, json_datatype=self.has(Feature.JSON))

    # -- change streams --------------------------------------------------------------------------

    @property
    def stream_end(self) -> Producer | Replica | None:
        """Our end of a change-stream connection: its producer or its replica."""
        return self.producer if self.producer is not None else self.replica

    def receive_bulk(self, data: memoryview) -> int:
        """Let a replica take a run of items; the number of bytes it took."""
        replica = self.replica
        return 0 if replica is None else replica.receive_bulk(data, self.monotonic)

    def _receive_stream(self, frame: Frame) -> bytes:
        end = self.stream_end
        if end is None:
            return self._stream_without_open(frame)
        if self.replica is not None and not frame.is_reply:
            self.replica.arrived(frame.opcode, frame.size)
        try:
            message = decode(frame, self.dialect)
            replies = end.handle(message, self.monotonic)
        except RemoteProtocolError as error:
            if frame.is_reply:
                self.closing = f"a reply that cannot be read: {error}"
                return b""
            return self._refuse(Refusal(Status(error.status), str(error)), frame)
        if end.closed_reason is not None:
            self.closing = end.closed_reason
        return replies

    def _stream_without_open(self, frame: Frame) -> bytes:
        if frame.magic == Magic.SERVER_REPLY:
            return b""
        if frame.is_reply or frame.magic == Magic.SERVER_REQUEST:
            self.closing = f"magic {frame.magic:02x} from a client that was asked nothing"
            return b""
        return self._refuse(
            Refusal(Status.EINVAL, f"{frame.name} before OPEN on this connection"), frame
        )

    def opened(self, end: Producer | Replica, name: bytes) -> None:
        """The connection is a change-stream connection from now on."""
        if isinstance(end, Replica):
            self.replica = end
        else:
            self.producer = end
        self.stream_name = name
        self.datatypes |= Datatype.JSON
        self.host.listen(name, self)
        note(
            "opened",
            connection=self.number,
            bucket=self.host.name,
            name=name.decode("utf-8", "backslashreplace"),
        )
        if self.node.faults is not None:
            self.node.faults.opened(self)

    def wake(self) -> None:
        """Our end of the streams has something to pull; on any thread."""
        self.link.wake()

    def end(self, reason: str) -> None:
        """Close the connection at once."""
        self.link.end(reason)

    def stream_statistics(self) -> Iterable[tuple[str, str]]:
        """What ``stats dcp`` tells of this connection."""
        end = self.stream_end
        return () if end is None else end.statistics(self.monotonic)

    def close(self) -> None:
        """The connection is gone: let go of everything the session holds."""
        host, end = self._host, self.stream_end
        self.producer = self.replica = None
        if host is not None and self.stream_name:
            host.unlisten(self.stream_name, self)
        if end is not None:
            end.close()

    # -- the cluster map -------------------------------------------------------------------------

    def not_my_vbucket(self) -> Refusal:
        """The refusal that carries the map, once per version for clients that keep it."""
        host = self.host
        version = self.node.map_version(host)
        if self.has(Feature.DEDUPE_NMVB_CLUSTERMAP) and self.map_sent == version:
            return Refusal(Status.NOT_MY_VBUCKET, value=b"")
        self.map_sent = version
        return Refusal(Status.NOT_MY_VBUCKET, value=self.node.map_of(host, self.address))

    def push_map(self, host: BucketHost) -> None:
        """Send the new map of the selected bucket to a client that asked to be told."""
        wanted = self.features & {Feature.CLUSTERMAP_CHANGE, Feature.CLUSTERMAP_CHANGE_BRIEF}
        if host is not self._host or not wanted or not self.has(Feature.DUPLEX):
            return
        version = self.node.map_version(host)
        brief = Feature.CLUSTERMAP_CHANGE not in wanted
        self.map_sent = version
        message = ClustermapChange(
            epoch=version.epoch,
            revision=version.revision,
            key=host.name.encode(),
            value=b"" if brief else self.node.map_of(host, self.address),
            datatype=Datatype.JSON if self.has(Feature.JSON) and not brief else 0,
        )
        # Older dialects have no such message, and their clients cannot ask for it.
        self.link.send(encode(message, Dialect.DCP_7))
