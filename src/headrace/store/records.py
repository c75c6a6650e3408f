"""What the disk's tables hold, byte by byte: keys, headers, checksums.

    journal  key: commit number u64, part u32
             value: HRJ1, crc32, commit u64, part u32, size u32, frames
    blocks   key: vbucket u16, first seqno u64
             value: HRB1, crc32, count u32, stamp u32, first u64, last u64, frames
    meta     key: "bucket", "clean", "v" + vbucket u16, "p" + name
             value: crc32, JSON

All big-endian. A checksum covers everything behind it in its value; a header repeats its key, so
that a value that strayed is noticed. A block's stamp is the low half of the commit that wrote it:
it tells a block from one that took its key meanwhile. `FORMAT` is in "bucket"; a greater one is
refused.

Imports: errors, store.checksum.
"""

from __future__ import annotations

import json
import zlib
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.errors import CorruptRecord
from headrace.store.checksum import crc32

if TYPE_CHECKING:
    from headrace.store.disk import Buffer

FORMAT: Final = 1
JOURNAL_HEADER: Final = Struct(">4sIQII")
BLOCK_HEADER: Final = Struct(">4sIIIQQ")
JOURNAL_KEY: Final = Struct(">QI")
BLOCK_KEY: Final = Struct(">HQ")
_CRC: Final = Struct(">I")
_JOURNAL_MAGIC: Final = b"HRJ1"
_BLOCK_MAGIC: Final = b"HRB1"
_CRC_COVERS_FROM: Final = 8
_STAMP: Final = Struct(">I")
_STAMP_AT: Final = 12

BUCKET_KEY: Final = b"bucket"
CLEAN_KEY: Final = b"clean"


def vbucket_key(vbucket: int) -> bytes:
    """The key of a vbucket's record in the meta table."""
    return b"v" + vbucket.to_bytes(2, "big")


def property_key(name: str) -> bytes:
    """The key of an owner's property in the meta table."""
    return b"p" + name.encode()


def pack_meta(key: bytes, value: object) -> bytes:
    """A JSON value behind its checksum, which covers the key, too."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return _CRC.pack(zlib.crc32(text, zlib.crc32(key))) + text


def unpack_meta(key: bytes, value: Buffer, *, path: str) -> object:
    """The JSON value; CorruptRecord when it is not what was written."""
    record = bytes(value)
    text = record[_CRC.size :]
    if len(record) < _CRC.size or _CRC.unpack_from(record)[0] != zlib.crc32(text, zlib.crc32(key)):
        raise CorruptRecord(
            f"{path}: meta record {key!r} of {len(record)} bytes fails its checksum", path=path
        )
    return json.loads(text)


def pack_journal(commit: int, part: int, frames: memoryview) -> bytes:
    """One part of a group commit."""
    rest = JOURNAL_HEADER.pack(_JOURNAL_MAGIC, 0, commit, part, len(frames))[_CRC_COVERS_FROM:]
    crc = crc32(frames, crc32(rest))
    return b"".join((_JOURNAL_MAGIC, _CRC.pack(crc), rest, frames))


def unpack_journal(key: bytes, value: memoryview, *, path: str) -> tuple[int, memoryview]:
    """The commit number and the frames of a journal entry."""
    size = JOURNAL_HEADER.size
    if len(key) == JOURNAL_KEY.size and len(value) >= size:
        magic, crc, commit, part, length = JOURNAL_HEADER.unpack_from(value)
        if (
            magic == _JOURNAL_MAGIC
            and (commit, part) == JOURNAL_KEY.unpack(key)
            and length == len(value) - size
            and crc == crc32(value[_CRC_COVERS_FROM:])
        ):
            return commit, value[size:]
    raise CorruptRecord(
        f"{path}: journal entry {key.hex()} of {len(value)} bytes fails its checksum", path=path
    )


def fill_block_header(value: memoryview, *, count: int, stamp: int, first: int, last: int) -> None:
    """Write the header of a block whose frames are already in place."""
    BLOCK_HEADER.pack_into(value, 0, _BLOCK_MAGIC, 0, count, stamp, first, last)
    _CRC.pack_into(value, 4, crc32(value[_CRC_COVERS_FROM:]))


def block_stamp(value: memoryview) -> int:
    """The stamp of a block's value, -1 if it is too short to have one."""
    return int(_STAMP.unpack_from(value, _STAMP_AT)[0]) if len(value) >= BLOCK_HEADER.size else -1


def check_block(key: bytes, value: memoryview, *, path: str) -> tuple[int, int, int, int]:
    """The count, stamp, first and last seqno of a sound block; else CorruptRecord."""
    if len(key) == BLOCK_KEY.size and len(value) >= BLOCK_HEADER.size:
        magic, crc, count, stamp, first, last = BLOCK_HEADER.unpack_from(value)
        if (
            magic == _BLOCK_MAGIC
            and BLOCK_KEY.unpack(key)[1] == first
            and crc == crc32(value[_CRC_COVERS_FROM:])
        ):
            return count, stamp, first, last
    raise CorruptRecord(
        f"{path}: block {key.hex()} of {len(value)} bytes fails its checksum", path=path
    )
