"""OPEN: an ordinary connection becomes a change-stream connection.

Its producer answers every change-stream message from then on. One namespace of names per bucket:
the connection that had the name is closed at once.

Imports: wire, node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.node.command import Command
from headrace.node.producer import Producer
from headrace.node.refusal import Refusal
from headrace.node.users import Role
from headrace.wire.opcodes import Opcode, Status

if TYPE_CHECKING:
    from headrace.node.session import Session
    from headrace.wire import messages


def open_(session: Session, message: messages.Open) -> bytes:
    """Let a producer answer; if it accepts, the connection is its own from now on."""
    if session.producer is not None:
        raise Refusal(Status.EINVAL, "OPEN twice on one connection")
    producer = Producer(session, session.host, session.monotonic)
    replies = producer.handle(message, session.monotonic)
    if producer.is_open:
        session.opened(producer, message.key)
    elif producer.closed_reason is not None:
        session.closing = producer.closed_reason
    return replies


ROWS: Final = (Command(opcode=Opcode.OPEN, function=open_, role=Role.READ, bucket=True),)
