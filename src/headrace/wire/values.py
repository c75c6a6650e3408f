"""What keys and values are made of: collection prefixes, xattr blocks, snappy, the key's vbucket.

Imports: errors.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final

from headrace.errors import LocalProtocolError, RemoteProtocolError

COLLECTION_PREFIX_SIZE_MAX: Final = 5
COLLECTION_ID_MAX: Final = 0xFFFF_FFFF
VALUE_SIZE_MAX: Final = 21 * 1024 * 1024
"""20 MiB of document and 1 MiB of system xattrs: the most a value may inflate to."""
VBUCKETS_DEFAULT: Final = 1024

_WORD: Final = Struct(">I")


def split_collection(key: bytes) -> tuple[int, bytes]:
    """Return the collection id a key starts with (unsigned LEB128, shortest form) and the rest."""
    collection = 0
    for index in range(min(len(key), COLLECTION_PREFIX_SIZE_MAX)):
        byte = key[index]
        collection |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if index and byte == 0:
                raise RemoteProtocolError(
                    f"collection prefix {key[: index + 1].hex()} is not in its shortest form",
                    offset=index,
                )
            if collection > COLLECTION_ID_MAX:
                raise RemoteProtocolError(
                    f"collection id {collection:#x}, limit {COLLECTION_ID_MAX:#x}", offset=index
                )
            return collection, key[index + 1 :]
    raise RemoteProtocolError(
        f"collection prefix {key[:COLLECTION_PREFIX_SIZE_MAX].hex()!r} does not end within "
        f"{COLLECTION_PREFIX_SIZE_MAX} bytes",
        offset=0,
    )


def join_collection(collection: int, key: bytes) -> bytes:
    """Return ``key`` behind its collection id in the shortest form."""
    if not 0 <= collection <= COLLECTION_ID_MAX:
        raise LocalProtocolError(f"collection id {collection} is outside 0..{COLLECTION_ID_MAX}")
    prefix = bytearray()
    while collection >= 0x80:
        prefix.append((collection & 0x7F) | 0x80)
        collection >>= 7
    prefix.append(collection)
    return bytes(prefix) + key


def split_xattrs(value: bytes) -> tuple[dict[str, bytes], bytes]:
    """Return the xattrs of a value that has the xattr datatype, and its document (may be empty)."""
    if len(value) < 4:
        raise RemoteProtocolError(
            f"xattr block of {len(value)} bytes, its length alone has 4", offset=len(value)
        )
    (total,) = _WORD.unpack_from(value)
    if total > len(value) - 4:
        raise RemoteProtocolError(
            f"xattr block claims {total} bytes and {len(value) - 4} follow", offset=0
        )
    pairs: dict[str, bytes] = {}
    at, end = 4, 4 + total
    while at < end:
        name, content, at = _xattr_pair(value, at, end)
        if name in pairs:
            raise RemoteProtocolError(f"xattr {name!r} stands twice", offset=at)
        pairs[name] = content
    return pairs, value[end:]


def _xattr_pair(value: bytes, at: int, end: int) -> tuple[str, bytes, int]:
    if end - at < 4:
        raise RemoteProtocolError(
            f"xattr pair of {end - at} bytes, its length alone has 4", offset=at
        )
    (size,) = _WORD.unpack_from(value, at)
    start, stop = at + 4, at + 4 + size
    if stop > end:
        raise RemoteProtocolError(
            f"xattr pair claims {size} bytes and {end - start} follow", offset=at
        )
    pair = value[start:stop]
    zero = pair.find(b"\0")
    if zero < 1 or size < 3 or pair[-1] != 0 or zero == size - 1:
        raise RemoteProtocolError(
            "xattr pair is not a name, a zero byte, a value and a zero byte", offset=start
        )
    try:
        name = pair[:zero].decode("utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("xattr name is not UTF-8", offset=start) from error
    return name, pair[zero + 1 : -1], stop


def join_xattrs(pairs: dict[str, bytes], document: bytes) -> bytes:
    """Return a value with the xattr block ``pairs`` before ``document``."""
    parts = []
    for name, content in pairs.items():
        encoded = name.encode("utf-8")
        if not encoded or b"\0" in encoded or b"\0" in content:
            raise LocalProtocolError(f"xattr {name!r} is empty or holds a zero byte")
        parts.append(
            _WORD.pack(len(encoded) + len(content) + 2) + encoded + b"\0" + content + b"\0"
        )
    block = b"".join(parts)
    return _WORD.pack(len(block)) + block + document


def inflated_size(value: bytes) -> int:
    """Return the size a snappy value claims to inflate to."""
    size = 0
    for index in range(min(len(value), 5)):
        size |= (value[index] & 0x7F) << (7 * index)
        if value[index] < 0x80:
            return size
    raise RemoteProtocolError("snappy value does not start with its length", offset=0)


def inflate(value: bytes, *, size_max: int = VALUE_SIZE_MAX) -> bytes:
    """Return the bytes behind a snappy value; refuse one that claims more than ``size_max``."""
    from cramjam import snappy  # loaded where it is used: most readers never meet snappy

    size = inflated_size(value)
    if size > size_max:
        raise RemoteProtocolError(f"snappy value claims {size} bytes, limit {size_max}", offset=0)
    try:
        return bytes(snappy.decompress_raw(value))
    except Exception as error:  # cramjam has no narrower class to catch
        raise RemoteProtocolError(f"snappy value does not inflate: {error}", offset=0) from error


def deflate(value: bytes) -> bytes:
    """Return ``value`` as snappy."""
    from cramjam import snappy

    return bytes(snappy.compress_raw(value))


def vbucket_of(key: bytes, vbuckets: int = VBUCKETS_DEFAULT) -> int:
    """Return the vbucket of a key (without collection prefix) among ``vbuckets``."""
    return ((zlib.crc32(key) >> 16) & 0x7FFF) % vbuckets
