"""Values of system events, versions 0 and 1; version 2 is a FlatBuffers table and stays bytes.

    0 begin collection   v0: u64 manifest uid, u32 scope, u32 collection    v1: v0 + u32 max ttl
    1 end collection     v0: u64 manifest uid, u32 scope, u32 collection
    3 create scope       v0: u64 manifest uid, u32 scope
    4 drop scope         v0: u64 manifest uid, u32 scope

Only the last event of a manifest change carries the new uid.

Imports: errors, wire.messages, wire.opcodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.opcodes import SystemEventId

if TYPE_CHECKING:
    from headrace.wire.messages import SystemEvent

FLATBUFFERS_VERSION: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDetail:
    """What a system event tells besides its name."""

    manifest_uid: int
    scope_id: int
    collection_id: int | None = None
    max_ttl: int | None = None


_SCOPE: Final = Struct(">QI")
_COLLECTION: Final = Struct(">QII")
_COLLECTION_TTL: Final = Struct(">QIII")
_STRUCTS: Final[dict[tuple[int, int], Struct]] = {
    (SystemEventId.BEGIN_COLLECTION, 0): _COLLECTION,
    (SystemEventId.BEGIN_COLLECTION, 1): _COLLECTION_TTL,
    (SystemEventId.END_COLLECTION, 0): _COLLECTION,
    (SystemEventId.CREATE_SCOPE, 0): _SCOPE,
    (SystemEventId.DROP_SCOPE, 0): _SCOPE,
}


def detail_of(event: SystemEvent) -> EventDetail | None:
    """Return what the event's value says; None for FlatBuffers and for events not known here."""
    struct = _STRUCTS.get((event.event, event.version))
    if struct is None:
        return None
    if len(event.value) != struct.size:
        raise RemoteProtocolError(
            f"system event {event.event} version {event.version} with a value of "
            f"{len(event.value)} bytes; allowed: {struct.size}"
        )
    numbers = struct.unpack(event.value)
    names = ("manifest_uid", "scope_id", "collection_id", "max_ttl")
    return EventDetail(**dict(zip(names, numbers, strict=False)))


def value_of(event: int, version: int, detail: EventDetail) -> bytes:
    """Return the value of a system event."""
    struct = _STRUCTS.get((event, version))
    if struct is None:
        raise LocalProtocolError(f"system event {event} has no version {version}")
    numbers = (detail.manifest_uid, detail.scope_id, detail.collection_id, detail.max_ttl)
    wanted = len(struct.unpack(bytes(struct.size)))
    return struct.pack(*(number or 0 for number in numbers[:wanted]))
