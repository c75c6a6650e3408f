"""The plain way with one frame: build it, take it apart, rewrite it for a reader.

`rewrite_frame` does all that the kernel in `headrace.store.rewrite` does, one frame at a time,
and what the kernel leaves to it: system events, and values whose xattrs or compression change.

Imports: store.layout, store.model, store.transform, wire.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.store import layout as at
from headrace.store.model import SystemEventView
from headrace.store.transform import Compression
from headrace.wire.values import deflate, inflate, join_xattrs, split_collection, split_xattrs

if TYPE_CHECKING:
    from headrace.store.transform import Transform

CLASSIC: Final = Struct(">BBHBBHIIQ")
FLEXIBLE: Final = Struct(">BBBBBBHIIQ")
MUTATION_FIELDS: Final = Struct(">QQIIIHB")
DELETION_FIELDS: Final = Struct(">QQIB")
EXPIRATION_FIELDS: Final = Struct(">QQI")
PREPARE_FIELDS: Final = Struct(">QQIIIBBB")
EVENT_FIELDS: Final = Struct(">QIB")
ABORT_FIELDS: Final = Struct(">QQ")
MARKER_FIELDS: Final = Struct(">QQI")
ADVANCED_FIELDS: Final = Struct(">Q")


class Parts(NamedTuple):
    """A frame at rest, taken apart."""

    opcode: int
    datatype: int
    vbucket: int
    note: int
    cas: int
    extras: bytes
    key: bytes
    value: bytes

    @property
    def seqno(self) -> int:
        """The item's own seqno."""
        place = 8 if self.opcode in (at.COMMIT, at.ABORT) else 0
        return int.from_bytes(self.extras[place : place + 8], "big")


def build_frame(
    opcode: int,
    *,
    vbucket: int,
    extras: bytes,
    key: bytes = b"",
    value: bytes = b"",
    datatype: int = 0,
    note: int = 0,
    cas: int = 0,
) -> bytes:
    """A frame at rest; ``note`` goes where the opaque will be."""
    header = CLASSIC.pack(
        at.MAGIC,
        opcode,
        len(key),
        len(extras),
        datatype,
        vbucket,
        len(extras) + len(key) + len(value),
        note,
        cas,
    )
    return b"".join((header, extras, key, value))


def split_frame(frame: bytes | memoryview) -> Parts:
    """Take one whole frame at rest apart."""
    _, opcode, key_size, extras_size, datatype, vbucket, _, note, cas = CLASSIC.unpack_from(frame)
    key_at = at.HEADER + extras_size
    value_at = key_at + key_size
    return Parts(
        opcode,
        datatype,
        vbucket,
        note,
        cas,
        bytes(frame[at.HEADER : key_at]),
        bytes(frame[key_at:value_at]),
        bytes(frame[value_at:]),
    )


def rewrite_frame(frame: bytes | memoryview, transform: Transform) -> bytes | None:
    """What a reader gets of one frame at rest; None: nothing."""
    parts = split_frame(frame)
    if parts.opcode == at.SYSTEM_EVENT:
        return _event(parts, transform) if transform.collections else None
    if parts.opcode in (at.PREPARE, at.ABORT) and not transform.sync_writes:
        return None
    collection, bare_key = split_collection(parts.key)
    if not transform.collections:
        if collection != 0:
            return None
        parts = parts._replace(key=bare_key)
    elif transform.only_collections is not None and collection not in transform.only_collections:
        return None
    if transform.commits and parts.note & at.COMMITTED and parts.opcode != at.PREPARE:
        prepared = parts.seqno - (parts.note & at.COMMIT_DISTANCE_MAX)
        extras = ABORT_FIELDS.pack(prepared, parts.seqno)
        return _assemble(
            parts._replace(opcode=at.COMMIT, extras=extras, value=b"", datatype=0, cas=0), transform
        )
    parts = _with_layout(_with_value(parts, transform), transform)
    return _assemble(parts._replace(datatype=parts.datatype & transform.datatype_mask), transform)


def _event(parts: Parts, transform: Transform) -> bytes | None:
    seqno, event, version = EVENT_FIELDS.unpack(parts.extras)
    if transform.system_event is not None:
        shown = SystemEventView(seqno, event, version, parts.note, parts.key, parts.value)
        chosen = transform.system_event(shown)
        if chosen is None:
            return None
        version, key, value = chosen
        parts = parts._replace(
            extras=EVENT_FIELDS.pack(seqno, event, version), key=key, value=value
        )
    return _assemble(parts, transform)


def _with_value(parts: Parts, transform: Transform) -> Parts:
    value, datatype = parts.value, parts.datatype
    if not value:
        return parts
    if datatype & at.DATATYPE_XATTR and (transform.values or transform.xattrs):
        value, datatype = _with_xattrs(value, datatype, parts.opcode, transform)
    elif not transform.values:
        value, datatype = b"", datatype if transform.keep_datatype else 0
    if value and transform.compression is Compression.INFLATE and datatype & at.DATATYPE_SNAPPY:
        value, datatype = inflate(value), datatype & ~at.DATATYPE_SNAPPY
    if value and transform.compression is Compression.DEFLATE and not datatype & at.DATATYPE_SNAPPY:
        shorter = deflate(value)
        if len(shorter) < len(value):
            value, datatype = shorter, datatype | at.DATATYPE_SNAPPY
    return parts._replace(value=value, datatype=datatype)


def _with_xattrs(
    value: bytes, datatype: int, opcode: int, transform: Transform
) -> tuple[bytes, int]:
    """The value with those of its xattrs and that document the reader is entitled to."""
    deleted = opcode in (at.DELETION, at.EXPIRATION)
    system_only = deleted and not transform.deleted_user_xattrs
    if transform.values and transform.xattrs and not system_only:
        return value, datatype
    snappy = datatype & at.DATATYPE_SNAPPY
    pairs, document = split_xattrs(inflate(value) if snappy else value)
    if not transform.xattrs:
        pairs = {}
    elif system_only:
        pairs = {name: content for name, content in pairs.items() if name.startswith("_")}
    if not transform.values:
        document = b""
    bare = datatype & ~at.DATATYPE_SNAPPY
    if pairs:
        value = join_xattrs(pairs, document)
    else:
        value, bare = document, bare & ~at.DATATYPE_XATTR
    if not value:
        return b"", datatype if transform.keep_datatype and not transform.values else 0
    if not transform.values and not transform.keep_datatype:
        bare = at.DATATYPE_XATTR
    return (deflate(value), bare | at.DATATYPE_SNAPPY) if snappy else (value, bare)


def _with_layout(parts: Parts, transform: Transform) -> Parts:
    if parts.opcode == at.MUTATION:
        return parts._replace(extras=parts.extras[: transform.mutation_extras])
    if parts.opcode not in (at.DELETION, at.EXPIRATION):
        return parts
    opcode, size = parts.opcode, transform.deletion_extras
    if opcode == at.EXPIRATION:
        if not transform.expiry_opcode:
            opcode = at.DELETION
        elif size == at.DELETION_EXTRAS:
            size = at.EXPIRATION_EXTRAS
    kept = parts.extras[: 20 if transform.deletion_extras == at.DELETION_EXTRAS else 16]
    return parts._replace(opcode=opcode, extras=kept.ljust(size, b"\0"))


def _assemble(parts: Parts, transform: Transform) -> bytes:
    """The frame as it goes to the socket."""
    framing, keys = b"", (at.MAGIC, parts.opcode, len(parts.key))
    packer = CLASSIC
    if transform.stream_id is not None:
        framing, packer = b"\x22" + transform.stream_id.to_bytes(2, "big"), FLEXIBLE
        keys = (at.FLEXIBLE_MAGIC, parts.opcode, len(framing), len(parts.key))  # type: ignore[assignment]
    size = len(framing) + len(parts.extras) + len(parts.key) + len(parts.value)
    header = packer.pack(
        *keys,
        len(parts.extras),
        parts.datatype,
        parts.vbucket,
        size,
        transform.opaque,
        parts.cas,
    )
    return b"".join((header, framing, parts.extras, parts.key, parts.value))
