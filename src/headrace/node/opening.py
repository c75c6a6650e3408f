"""OPEN: which flags go together, and what they mean for the streams of the connection.

Rules: a flag the dialect does not have, one that was withdrawn (notifier, the collections
prototype, point-in-time recovery) and a combination that contradicts itself are EINVAL. A name
has 1 to 250 bytes. A value is for consumers only: a JSON object with datatype JSON and the one key
``consumer_name``.

Spec: docs/protocol.md, "OPEN".

Imports: protocol, wire.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.protocol.decision import Refused
from headrace.wire.dialect import ALL, Dialect, since
from headrace.wire.opcodes import Datatype, OpenFlag, Status

if TYPE_CHECKING:
    from headrace.wire.messages import Open

NAME_SIZE_MAX: Final = 250

FLAGS: Final[dict[OpenFlag, frozenset[Dialect]]] = {
    OpenFlag.PRODUCER: ALL,
    OpenFlag.INCLUDE_XATTRS: since(Dialect.DCP_5),
    OpenFlag.NO_VALUE: since(Dialect.DCP_5),
    OpenFlag.INCLUDE_DELETE_TIMES: since(Dialect.DCP_5),
    OpenFlag.NO_VALUE_KEEP_DATATYPE: since(Dialect.DCP_7),
    OpenFlag.INCLUDE_DELETED_USER_XATTRS: since(Dialect.DCP_7),
    OpenFlag.SKIP_DELETES_IN_BACKFILL: since(Dialect.DCP_7),
}
"""The flags there are, and the dialects that have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """What OPEN asked for; ``producer`` says that our end produces."""

    name: str
    producer: bool
    xattrs: bool = False
    values: bool = True
    keep_datatype: bool = False
    delete_times: bool = False
    deleted_user_xattrs: bool = False
    skip_deletes: bool = False
    consumer_name: str = ""
    flags: int = 0


def _refused(reason: str) -> Refused:
    return Refused(Status.EINVAL, reason)


def read_open(message: Open, *, dialect: Dialect, collections: bool) -> OpenOptions | Refused:
    """What an OPEN asks for, or why it is refused."""
    if not 1 <= len(message.key) <= NAME_SIZE_MAX:
        return _refused(f"name of {len(message.key)} bytes, allowed 1..{NAME_SIZE_MAX}")
    flags = message.flags
    refusal = _check_flags(flags, dialect=dialect, collections=collections)
    if refusal is not None:
        return refusal
    consumer_name = _consumer_name(message)
    if isinstance(consumer_name, Refused):
        return consumer_name
    return OpenOptions(
        name=message.key.decode("utf-8", "backslashreplace"),
        producer=bool(flags & OpenFlag.PRODUCER),
        xattrs=bool(flags & OpenFlag.INCLUDE_XATTRS),
        values=not flags & (OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_KEEP_DATATYPE),
        keep_datatype=bool(flags & OpenFlag.NO_VALUE_KEEP_DATATYPE),
        delete_times=bool(flags & OpenFlag.INCLUDE_DELETE_TIMES),
        deleted_user_xattrs=bool(flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS),
        skip_deletes=bool(flags & OpenFlag.SKIP_DELETES_IN_BACKFILL),
        consumer_name=consumer_name,
        flags=int(flags),
    )


def _check_flags(flags: int, *, dialect: Dialect, collections: bool) -> Refused | None:
    known = sum(int(flag) for flag, dialects in FLAGS.items() if dialect in dialects)
    if flags & ~known:
        return _refused(f"open flags {flags:#x}; {dialect.value} allows {known:#x}")
    without_value = OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_KEEP_DATATYPE
    if flags & without_value == without_value:
        return _refused("open flags 0x08 and 0x40 exclude each other")
    if flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS and not flags & OpenFlag.INCLUDE_XATTRS:
        return _refused("open flag 0x100 (user xattrs of deletes) needs 0x04 (xattrs)")
    if flags & OpenFlag.SKIP_DELETES_IN_BACKFILL and not (
        flags & OpenFlag.PRODUCER and collections
    ):
        return _refused("open flag 0x200 (skip deletes) needs 0x01 (producer) and collections")
    return None


def _consumer_name(message: Open) -> str | Refused:
    """The consumer name in the value; "" without a value."""
    if not message.value:
        return ""
    if message.flags & OpenFlag.PRODUCER:
        return _refused("OPEN of a producer with a value; only a consumer may have one")
    if not message.datatype & Datatype.JSON:
        return _refused("the value of OPEN needs datatype JSON")
    try:
        value = json.loads(message.value)
    except (ValueError, RecursionError):
        return _refused("the value of OPEN is not JSON")
    if not isinstance(value, dict) or value.keys() != {"consumer_name"}:
        return _refused("the value of OPEN must be an object with consumer_name alone")
    name = value["consumer_name"]
    if not isinstance(name, str) or not name:
        return _refused("consumer_name must be a text that is not empty")
    return name
