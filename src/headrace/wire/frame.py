"""Frames: a 24-byte header and an undivided body, cut out of any split of a byte stream.

    offset  classic (80 81 82 83)      flexible (08 18)
    0       magic                      magic
    1       opcode                     opcode
    2-3     key length                 framing extras length, key length
    4       extras length              extras length
    5       datatype                   datatype
    6-7     vbucket, or status of a reply
    8-11    total body length
    12-15   opaque
    16-23   CAS
    24-     framing extras | extras | key | value

Rules. The header's lengths are the truth on a socket: a frame whose parts do not fit its body ends
the connection, because nothing after it can be found. A body is refused when its header claims more
than the limit, before a byte of it is kept. `FrameBuffer` gives the same frames, and the same error
at the same offset, for every split of the same bytes.

Imports: errors, wire.opcodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Final

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.opcodes import Magic, Opcode, ServerOpcode

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER_SIZE: Final = 24
BODY_SIZE_MAX: Final = 30 * 1024 * 1024
"""Largest body accepted, as in released servers: a 20 MiB value, xattrs and room to spare."""
KEY_SIZE_MAX: Final = 0xFFFF
FLEXIBLE_KEY_SIZE_MAX: Final = 0xFF
FRAMING_SIZE_MAX: Final = 0xFF
EXTRAS_SIZE_MAX: Final = 0xFF

CLASSIC: Final = Struct(">BBHBBHIIQ")
FLEXIBLE: Final = Struct(">BBBBBBHIIQ")

_COMPACT_AT: Final = 256 * 1024
"""Consumed bytes a `FrameBuffer` lets stand before it moves the rest to the front."""
_MAGICS: Final = frozenset(int(magic) for magic in Magic)
_REPLY_MAGICS: Final = frozenset(int(magic) for magic in Magic if magic.is_reply)
_FLEXIBLE_MAGICS: Final = frozenset(int(magic) for magic in Magic if magic.is_flexible)
_MAGIC_NAMES: Final = ", ".join(f"{magic:02x}" for magic in sorted(_MAGICS))


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """One entry of the framing extras: a number and its bytes."""

    id: int
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame: the header's fields and the body cut into its four parts."""

    magic: int
    opcode: int
    datatype: int = 0
    vbucket: int = 0
    """Bytes 6-7: the vbucket of a request, the status of a reply."""
    opaque: int = 0
    cas: int = 0
    framing: bytes = b""
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""

    @property
    def is_reply(self) -> bool:
        """True for the three reply magics."""
        return self.magic in _REPLY_MAGICS

    @property
    def status(self) -> int:
        """Status of a reply; 0 for a request."""
        return self.vbucket if self.is_reply else 0

    @property
    def body_size(self) -> int:
        """Bytes after the header."""
        return len(self.framing) + len(self.extras) + len(self.key) + len(self.value)

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return HEADER_SIZE + self.body_size

    @property
    def name(self) -> str:
        """The opcode's name, or its number."""
        return opcode_name(self.magic, self.opcode)

    def to_bytes(self) -> bytes:
        """Return the frame as it travels, or refuse what a header cannot say."""
        magic, framing, extras, key = self.magic, self.framing, self.extras, self.key
        body = len(framing) + len(extras) + len(key) + len(self.value)
        rest = (len(extras), self.datatype, self.vbucket, body, self.opaque, self.cas)
        try:
            if magic in _FLEXIBLE_MAGICS:
                header = FLEXIBLE.pack(magic, self.opcode, len(framing), len(key), *rest)
            else:
                header = CLASSIC.pack(magic, self.opcode, len(key), *rest)
        except StructError:
            self._check()  # says which number does not fit its place
            raise
        if framing or body > BODY_SIZE_MAX or magic not in _MAGICS:
            self._check()
        return b"".join((header, framing, extras, key, self.value))

    def _check(self) -> None:
        """Refuse with a sentence what a header cannot say; too slow for every frame."""
        flexible = self.magic in _FLEXIBLE_MAGICS
        key_max = FLEXIBLE_KEY_SIZE_MAX if flexible else KEY_SIZE_MAX
        framing_max = FRAMING_SIZE_MAX if flexible else 0
        for what, size, limit in (
            ("framing extras", len(self.framing), framing_max),
            ("extras", len(self.extras), EXTRAS_SIZE_MAX),
            ("a key", len(self.key), key_max),
            ("a body", self.body_size, BODY_SIZE_MAX),
        ):
            if size > limit:
                raise LocalProtocolError(f"{self.name} with {what} of {size} bytes, limit {limit}")
        for what, number, limit in (
            ("opcode", self.opcode, 0xFF),
            ("datatype", self.datatype, 0xFF),
            ("vbucket or status", self.vbucket, 0xFFFF),
            ("opaque", self.opaque, 0xFFFF_FFFF),
            ("cas", self.cas, 0xFFFF_FFFF_FFFF_FFFF),
        ):
            if not 0 <= number <= limit:
                raise LocalProtocolError(f"{what} {number} is outside 0..{limit}")
        if self.magic not in _MAGICS:
            raise LocalProtocolError(f"magic {self.magic:#04x} is none of {_MAGIC_NAMES}")


def opcode_name(magic: int, opcode: int) -> str:
    """Return the name of an opcode under its magic, or its number as 0xNN."""
    known = ServerOpcode if magic in (Magic.SERVER_REQUEST, Magic.SERVER_REPLY) else Opcode
    try:
        return known(opcode).name
    except ValueError:
        return f"0x{opcode:02x}"


def body_lengths(header: bytes | bytearray | memoryview, at: int = 0) -> tuple[int, int, int, int]:
    """Return (framing, extras, key, body) lengths of the header at ``at``.

    Raises RemoteProtocolError, fatal, with the offset of the wrong byte counted from ``at``.
    """
    magic = header[at]
    if magic not in _MAGICS:
        raise RemoteProtocolError(
            f"magic {magic:02x} at byte 0; allowed: {_MAGIC_NAMES}", offset=0, fatal=True
        )
    if magic in _FLEXIBLE_MAGICS:
        framing, key = header[at + 2], header[at + 3]
    else:
        framing, key = 0, (header[at + 2] << 8) | header[at + 3]
    extras = header[at + 4]
    body = int.from_bytes(header[at + 8 : at + 12], "big")
    return framing, extras, key, body


def lengths_error(
    parts: tuple[int, int, int, int], name: str, body_size_max: int
) -> RemoteProtocolError:
    """Return the sentence for parts that do not fit their body, or a body over the limit."""
    framing, extras, key, body = parts
    if body > body_size_max:
        return RemoteProtocolError(
            f"{name} with a body of {body} bytes, limit {body_size_max}",
            offset=8,
            status=0x03,
            fatal=True,
        )
    return RemoteProtocolError(
        f"{name} with framing extras, extras and key of {framing}+{extras}+{key} bytes "
        f"in a body of {body}",
        offset=8,
        fatal=True,
    )


def cut(data: bytes | bytearray | memoryview, at: int, parts: tuple[int, int, int, int]) -> Frame:
    """Return the frame that stands whole at ``at``, its parts' lengths known to fit."""
    framing, extras, key, body = parts
    # Classic and flexible headers differ in the two bytes of lengths alone, which are known here.
    magic, opcode, _, _, datatype, vbucket, _, opaque, cas = CLASSIC.unpack_from(data, at)
    first = HEADER_SIZE + framing
    second = first + extras
    third = second + key
    whole = bytes(data[at : at + HEADER_SIZE + body])
    return Frame(
        magic=magic,
        opcode=opcode,
        datatype=datatype,
        vbucket=vbucket,
        opaque=opaque,
        cas=cas,
        framing=whole[HEADER_SIZE:first],
        extras=whole[first:second],
        key=whole[second:third],
        value=whole[third:],
    )


class FrameBuffer:
    """Any split of bytes in, whole frames out.

    ``offset`` is the place in the whole stream of the next frame. After an error the buffer is
    broken and gives the same error again: nothing behind a wrong header can be found.
    """

    __slots__ = ("_at", "_base", "_body_size_max", "_broken", "_data")

    def __init__(self, *, body_size_max: int = BODY_SIZE_MAX) -> None:
        """Start empty at offset 0."""
        self._data = bytearray()
        self._at = 0
        self._base = 0
        self._body_size_max = body_size_max
        self._broken: RemoteProtocolError | None = None

    @property
    def offset(self) -> int:
        """Offset in the stream of the first byte not yet given out as a frame."""
        return self._base + self._at

    @property
    def pending(self) -> int:
        """Bytes held that are not a whole frame yet."""
        return len(self._data) - self._at

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the stream."""
        if self._at >= _COMPACT_AT or self._at == len(self._data):
            del self._data[: self._at]
            self._base += self._at
            self._at = 0
        self._data += data

    def __iter__(self) -> Iterator[Frame]:
        """Give every frame that is whole by now."""
        while (frame := self.take()) is not None:
            yield frame

    def take(self) -> Frame | None:
        """Give the next whole frame, or None until more bytes come."""
        if self._broken is not None:
            raise self._broken
        data, at = self._data, self._at
        available = len(data) - at
        if available == 0:
            return None
        # A wrong magic is told at its first byte: waiting for 24 would hang on a peer that speaks
        # another protocol and then waits itself.
        if available < HEADER_SIZE:
            if data[at] not in _MAGICS:
                raise self._magic_error(data[at])
            return None
        try:
            parts = body_lengths(data, at)
            if parts[3] > self._body_size_max or parts[0] + parts[1] + parts[2] > parts[3]:
                raise lengths_error(parts, opcode_name(data[at], data[at + 1]), self._body_size_max)
        except RemoteProtocolError as error:
            self._break(error)
            raise
        if available < HEADER_SIZE + parts[3]:
            return None
        self._at = at + HEADER_SIZE + parts[3]
        return cut(data, at, parts)

    def _magic_error(self, magic: int) -> RemoteProtocolError:
        error = RemoteProtocolError(
            f"magic {magic:02x} at byte 0; allowed: {_MAGIC_NAMES}", offset=0, fatal=True
        )
        self._break(error)
        return error

    def _break(self, error: RemoteProtocolError) -> None:
        error.offset = self.offset + (error.offset or 0)
        self._broken = error


def one_frame(data: bytes, *, tolerant: bool = False) -> Frame:
    """Return the single frame that ``data`` is.

    The boundary is known from outside here (a drawing, a file, a test), so a tolerant reader may
    let the real length overrule the header's: the parts are then cut as far as bytes go, and
    `headrace.wire.codec.decode` finds the layout by its total size.
    """
    if len(data) < HEADER_SIZE:
        raise RemoteProtocolError(
            f"{len(data)} bytes where a header has {HEADER_SIZE}", offset=len(data), fatal=True
        )
    framing, extras, key, body = body_lengths(data)
    actual = len(data) - HEADER_SIZE
    name = opcode_name(data[0], data[1])
    if body == actual or not tolerant:
        if body > BODY_SIZE_MAX or framing + extras + key > body:
            raise lengths_error((framing, extras, key, body), name, BODY_SIZE_MAX)
        if body != actual:
            raise RemoteProtocolError(
                f"{name} says a body of {body} bytes and {actual} follow", offset=8, fatal=True
            )
        return cut(data, 0, (framing, extras, key, body))
    framing = min(framing, actual)
    extras = min(extras, actual - framing)
    key = min(key, actual - framing - extras)
    return cut(data, 0, (framing, extras, key, actual))


def split_frames(data: bytes, *, body_size_max: int = BODY_SIZE_MAX) -> list[Frame]:
    """Return the frames that ``data`` holds, which must end at a frame's end."""
    buffer = FrameBuffer(body_size_max=body_size_max)
    buffer.feed(data)
    frames = list(buffer)
    if buffer.pending:
        raise RemoteProtocolError(
            f"{buffer.pending} bytes at offset {buffer.offset} are not a whole frame",
            offset=buffer.offset,
        )
    return frames


def parse_frame_infos(framing: bytes) -> tuple[FrameInfo, ...]:
    """Return the entries of framing extras; nibble 15 of id or length is escaped by a byte."""
    infos = []
    at = 0
    while at < len(framing):
        start = at
        first = framing[at]
        identity, size = first >> 4, first & 0x0F
        at += 1
        if identity == 15:
            identity, at = 15 + _escape(framing, at, start), at + 1
        if size == 15:
            size, at = 15 + _escape(framing, at, start), at + 1
        if at + size > len(framing):
            raise RemoteProtocolError(
                f"frame info {identity} claims {size} bytes and {len(framing) - at} are left",
                offset=HEADER_SIZE + start,
            )
        infos.append(FrameInfo(identity, framing[at : at + size]))
        at += size
    return tuple(infos)


def _escape(framing: bytes, at: int, start: int) -> int:
    if at >= len(framing):
        raise RemoteProtocolError(
            "frame info ends in the middle of an escape", offset=HEADER_SIZE + start
        )
    return framing[at]


def encode_frame_infos(infos: tuple[FrameInfo, ...]) -> bytes:
    """Return framing extras, or refuse ids and lengths that one escape byte cannot say."""
    parts = []
    for info in infos:
        size = len(info.data)
        if not 0 <= info.id <= 15 + 255:
            raise LocalProtocolError(f"frame info id {info.id} is outside 0..{15 + 255}")
        if size > 15 + 255:
            raise LocalProtocolError(f"frame info of {size} bytes, limit {15 + 255}")
        head = bytes([(min(info.id, 15) << 4) | min(size, 15)])
        identity = bytes([info.id - 15]) if info.id >= 15 else b""
        length = bytes([size - 15]) if size >= 15 else b""
        parts.append(head + identity + length + info.data)
    framing = b"".join(parts)
    if len(framing) > FRAMING_SIZE_MAX:
        raise LocalProtocolError(
            f"framing extras of {len(framing)} bytes, limit {FRAMING_SIZE_MAX}"
        )
    return framing
