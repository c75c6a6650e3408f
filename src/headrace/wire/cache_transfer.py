"""Records of a CACHE_TRANSFER value: n items, each with its lengths inside.

    0:8 cas  8:8 by_seqno  16:8 rev_seqno  24:4 value length  28:4 flags  32:4 expiration
    36:2 key length (at least 2: a collection prefix and a byte)  38:1 datatype  39:1 cache hint
    40: key | value

Imports: errors, wire.messages.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.messages import CachedItem, CacheTransfer

RECORD: Final = Struct(">QQQIIIHBB")
KEY_SIZE_MIN: Final = 2


def parse(value: bytes, _fields: dict[str, object]) -> dict[str, object]:
    """Return the items of a value, which must hold at least one."""
    items: list[CachedItem] = []
    at = 0
    while at < len(value) or not items:
        if len(value) - at < RECORD.size:
            raise RemoteProtocolError(
                f"cached item of {len(value) - at} bytes, its head alone has {RECORD.size}",
                offset=at,
            )
        item, at = _item(value, at)
        items.append(item)
    return {"items": tuple(items)}


def _item(value: bytes, at: int) -> tuple[CachedItem, int]:
    cas, by_seqno, rev, value_size, flags, expiration, key_size, datatype, hint = (
        RECORD.unpack_from(value, at)
    )
    start = at + RECORD.size
    end = start + key_size + value_size
    if key_size < KEY_SIZE_MIN:
        raise RemoteProtocolError(
            f"cached item with a key of {key_size} bytes, at least {KEY_SIZE_MIN}", offset=at + 36
        )
    if end > len(value):
        raise RemoteProtocolError(
            f"cached item claims {key_size}+{value_size} bytes and {len(value) - start} follow",
            offset=at + 24,
        )
    item = CachedItem(
        cas=cas,
        by_seqno=by_seqno,
        rev_seqno=rev,
        flags=flags,
        expiration=expiration,
        datatype=datatype,
        cache_hint=hint,
        key=value[start : start + key_size],
        value=value[start + key_size : end],
    )
    return item, end


def build(message: CacheTransfer) -> bytes:
    """Return the value that holds the message's items."""
    if not message.items:
        raise LocalProtocolError("cache transfer of no item, at least 1")
    parts = []
    for item in message.items:
        if not KEY_SIZE_MIN <= len(item.key) <= 0xFFFF:
            raise LocalProtocolError(
                f"cached item with a key of {len(item.key)} bytes, allowed {KEY_SIZE_MIN}..65535"
            )
        head = RECORD.pack(
            item.cas,
            item.by_seqno,
            item.rev_seqno,
            len(item.value),
            item.flags,
            item.expiration,
            len(item.key),
            item.datatype,
            item.cache_hint,
        )
        parts.append(head + item.key + item.value)
    return b"".join(parts)
