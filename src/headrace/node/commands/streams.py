"""OPEN: an ordinary connection becomes a change-stream connection.

Flag 01 makes our end a producer; without it we consume, for vbuckets that are replicas. That end
answers every change-stream message from then on. One namespace of names per bucket for both: the
connection that had the name is closed at once.

Imports: wire, node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.node.command import Command
from headrace.node.producer import Producer
from headrace.node.refusal import Refusal
from headrace.node.replica import Replica
from headrace.node.replica_context import ReplicaSettings
from headrace.node.users import Role
from headrace.wire.opcodes import Opcode, OpenFlag, Status

if TYPE_CHECKING:
    from headrace.node.session import Session
    from headrace.wire import messages


def open_(session: Session, message: messages.Open) -> bytes:
    """Let our end of the streams answer; if it accepts, the connection is its own from now on."""
    if session.stream_end is not None:
        raise Refusal(Status.EINVAL, "OPEN twice on one connection")
    end = _producer(session) if message.flags & OpenFlag.PRODUCER else _replica(session)
    replies = end.handle(message, session.monotonic)
    if end.is_open:
        session.opened(end, message.key)
    elif end.closed_reason is not None:
        session.closing = end.closed_reason
    return replies


def _producer(session: Session) -> Producer:
    return Producer(session, session.host, session.monotonic)


def _replica(session: Session) -> Replica:
    """Whoever may make us a consumer may change our vbuckets' states and data."""
    if session.role < Role.ADMIN:
        raise Refusal(Status.EACCESS, "OPEN without flag 0x01 (a consumer) needs the role admin")
    settings = ReplicaSettings(off_loop=session.link.off_loop)
    return Replica(session, session.host, session.monotonic, settings=settings)


ROWS: Final = (Command(opcode=Opcode.OPEN, function=open_, role=Role.READ, bucket=True),)
