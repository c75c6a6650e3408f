"""System events as FlatBuffers tables (version 2), for readers that asked for them.

A buffer here is: the root's offset (4 bytes), the vtable, padding, the table, its string. A table
begins with its distance from its vtable; the vtable says where each field lies in the table, 0 for
one that has its default. Numbers are little-endian and aligned to their size.

    Collection         uid u64, scopeId u32, collectionId u32, ttlValid bool, maxTtl u32,
                       name string, history bool, defaultCollectionMVS u64, metered bool,
                       flushUid u64
    DroppedCollection  uid u64, scopeId u32, collectionId u32, systemCollection bool
    Scope              uid u64, scopeId u32, name string
    DroppedScope       uid u64, scopeId u32, systemScope bool

Events are stored in versions 0 and 1; what those do not say (history) comes from the manifest.

Imports: wire, node.manifest.
"""

from __future__ import annotations

from struct import Struct, pack
from typing import TYPE_CHECKING, Final

from headrace.wire.messages import SystemEvent
from headrace.wire.opcodes import SystemEventId
from headrace.wire.system_events import FLATBUFFERS_VERSION, detail_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.manifest import Manifest
    from headrace.store.model import SystemEventView

U64: Final = Struct("<Q")
U32: Final = Struct("<I")
BOOL: Final = Struct("<?")
TEXT: Final = U32
"""A string is an offset in the table."""

COLLECTION: Final = (U64, U32, U32, BOOL, U32, TEXT, BOOL, U64, BOOL, U64)
DROPPED_COLLECTION: Final = (U64, U32, U32, BOOL)
SCOPE: Final = (U64, U32, TEXT)
DROPPED_SCOPE: Final = (U64, U32, BOOL)

_ROOT_SIZE: Final = 4
_TABLE_HEAD_SIZE: Final = 4


def build_table(fields: tuple[Struct, ...], values: tuple[int | bool | str | None, ...]) -> bytes:
    """The buffer of one table; a value of 0, False or None is left to its default."""
    vtable_at, vtable_size = _ROOT_SIZE, 4 + 2 * len(fields)
    table_at = vtable_at + vtable_size
    # The first field follows the table's head and must be aligned to eight.
    table_at += -(table_at + _TABLE_HEAD_SIZE) % 8
    places = [0] * len(fields)
    table_size = _TABLE_HEAD_SIZE
    for slot in sorted(range(len(fields)), key=lambda one: -fields[one].size):
        if values[slot]:
            places[slot] = table_size
            table_size += fields[slot].size
    text_at = table_at + table_size + -(table_at + table_size) % 4
    buffer = bytearray(text_at)
    U32.pack_into(buffer, 0, table_at)
    vtable = pack(f"<{2 + len(fields)}H", vtable_size, table_size, *places)
    buffer[vtable_at : vtable_at + vtable_size] = vtable
    U32.pack_into(buffer, table_at, table_at - vtable_at)
    for place, field, value in zip(places, fields, values, strict=True):
        if not place:
            continue
        if isinstance(value, str):
            encoded = value.encode()
            U32.pack_into(buffer, table_at + place, len(buffer) - (table_at + place))
            buffer += U32.pack(len(encoded)) + encoded + b"\0"
            buffer += bytes(-len(buffer) % 4)
        else:
            field.pack_into(buffer, table_at + place, value)
    return bytes(buffer)


def event_rewriter(
    manifest: Callable[[], Manifest],
) -> Callable[[SystemEventView], tuple[int, bytes, bytes] | None]:
    """A function that turns stored events into version 2; ``manifest()`` is the newest one."""

    def rewrite(event: SystemEventView) -> tuple[int, bytes, bytes] | None:
        if event.version == FLATBUFFERS_VERSION:
            return event.version, event.key, event.value
        table = _table_of(event, manifest())
        return None if table is None else (FLATBUFFERS_VERSION, event.key, table)

    return rewrite


def _table_of(event: SystemEventView, manifest: Manifest) -> bytes | None:
    detail = detail_of(
        SystemEvent(
            by_seqno=event.seqno,
            event=event.event,
            version=event.version,
            key=event.key,
            value=event.value,
        )
    )
    if detail is None:
        return None
    uid, scope, name = detail.manifest_uid, detail.scope_id, event.key.decode("utf-8", "replace")
    # A system scope or collection has a name that begins with an underscore, which drops lack.
    if event.event == SystemEventId.BEGIN_COLLECTION:
        known = manifest.collections.get(event.subject)
        history = bool(known is not None and known.history)
        has_ttl = detail.max_ttl is not None
        return build_table(
            COLLECTION,
            (
                uid,
                scope,
                event.subject,
                has_ttl,
                detail.max_ttl or 0,
                name,
                history,
                0,
                False,
                0,
            ),
        )
    if event.event == SystemEventId.END_COLLECTION:
        return build_table(DROPPED_COLLECTION, (uid, scope, event.subject, False))
    if event.event == SystemEventId.CREATE_SCOPE:
        return build_table(SCOPE, (uid, scope, name))
    return build_table(DROPPED_SCOPE, (uid, scope, False))
