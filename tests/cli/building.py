"""Items made by hand for tests of what is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.capture.conversation import Connection, Direction, Endpoint, RoleEvidence
from headrace.capture.walk import Item
from headrace.errors import RemoteProtocolError
from headrace.wire.codec import decode, to_frame
from headrace.wire.dialect import Dialect

if TYPE_CHECKING:
    from headrace.wire.frame import Frame
    from headrace.wire.message import Message

CLIENT = Endpoint("10.0.0.1", 40000)
SERVER = Endpoint("10.0.0.2", 11210)
CONNECTION = Connection(1, CLIENT, SERVER, RoleEvidence.HANDSHAKE, complete_start=True)
FILE = Connection(1, None, None, RoleEvidence.NONE, complete_start=True, name="x.hex")
THERE, BACK = Direction.CLIENT_TO_SERVER, Direction.SERVER_TO_CLIENT


def item_of(
    message: Message,
    *,
    direction: Direction = BACK,
    connection: Connection = CONNECTION,
    offset: int = 0,
    time: int | None = 0,
    dialect: Dialect = Dialect.DCP_7,
) -> Item:
    """The item of a message that was sent."""
    frame = to_frame(message, dialect, historic=True)
    return item_of_frame(frame, direction, connection, offset, time, dialect)


def item_of_frame(
    frame: Frame,
    direction: Direction = BACK,
    connection: Connection = CONNECTION,
    offset: int = 0,
    time: int | None = 0,
    dialect: Dialect = Dialect.DCP_7,
) -> Item:
    """The item of a frame, understood or not."""
    data = frame.to_bytes()
    try:
        message = decode(frame, dialect)
    except RemoteProtocolError as error:
        return Item(
            connection, direction, offset, time, data, frame, error=error, error_at=error.offset
        )
    return Item(connection, direction, offset, time, data, frame, message)
