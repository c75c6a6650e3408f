"""The form of a layout row: which fields stand where, and which dialects say it.

A message has one row per layout. A row gives the extras as a sequence of fields, whether there is a
key, and the shape of the value. ``speak`` are the dialects that may send the row, ``hear`` those
that understand it; a row nobody speaks is history and only read. Shapes of values:

    Nothing     must be empty
    Bytes       kept as they are, with a least length
    Fixed       a fixed run of fields, like extras
    Repeated    n records of one struct
    Custom      a parser and a builder of its own (records with lengths inside)

Imports: errors, wire.dialect, wire.message.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Final

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.dialect import ALL, Dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import IntEnum, IntFlag

    from headrace.wire.message import Message

REQUEST: Final = "request"
REPLY: Final = "reply"
SERVER_REQUEST: Final = "server request"
SERVER_REPLY: Final = "server reply"

SIZES: Final = {"B": 1, "H": 2, "I": 4, "Q": 8}


@dataclass(frozen=True, slots=True)
class Field:
    """An unsigned big-endian number with a name.

    ``codes`` names its values for people. ``wire`` translates: what stands on the wire -> what the
    message says, for the few numbers whose meaning changed between dialects. ``absent`` marks
    bytes that mean nothing: sent as 0, ignored when read. ``needed`` forbids a writer to fill in a
    0 for a message that does not say it: a marker without a purge seqno must not claim 0.
    """

    name: str
    code: str
    codes: type[IntEnum] | type[IntFlag] | None = None
    wire: Mapping[int, int] | None = None
    absent: bool = False
    needed: bool = False

    @property
    def size(self) -> int:
        """Bytes it takes."""
        return SIZES[self.code]

    def read(self, number: int, strict: bool) -> int:
        """Return what the message says for a number on the wire."""
        if self.wire is None:
            return number
        if number in self.wire:
            return self.wire[number]
        if strict:
            allowed = ", ".join(str(known) for known in sorted(self.wire))
            raise RemoteProtocolError(f"{self.name} {number}; allowed: {allowed}")
        return number

    def write(self, number: int) -> int:
        """Return the number on the wire for what the message says."""
        if self.wire is None:
            return number
        for on_wire, said in self.wire.items():
            if said == number:
                return on_wire
        allowed = ", ".join(str(known) for known in sorted(self.wire.values()))
        raise LocalProtocolError(f"{self.name} {number} has no number here; allowed: {allowed}")


class Fields:
    """A run of fields with fixed places."""

    __slots__ = ("fields", "names", "plain", "struct")

    def __init__(self, *fields: Field) -> None:
        """Lay the fields one after the other."""
        self.fields = fields
        self.names = tuple(field.name for field in fields if not field.absent)
        self.struct = Struct(">" + "".join(field.code for field in fields))
        self.plain = all(field.wire is None and not field.absent for field in fields)

    @property
    def size(self) -> int:
        """Bytes of the whole run."""
        return self.struct.size

    def read(self, data: bytes, strict: bool) -> dict[str, object]:
        """Return name -> number of exactly ``size`` bytes."""
        numbers = self.struct.unpack(data)
        if self.plain:
            return dict(zip(self.names, numbers, strict=True))
        return {
            field.name: field.read(number, strict)
            for field, number in zip(self.fields, numbers, strict=True)
            if not field.absent
        }

    def read_prefix(self, data: bytes) -> dict[str, object]:
        """Return the fields that are whole in ``data``, as a tolerant reader takes them."""
        found: dict[str, object] = {}
        at = 0
        for field in self.fields:
            if at + field.size > len(data):
                break
            if not field.absent:
                number = int.from_bytes(data[at : at + field.size], "big")
                found[field.name] = field.read(number, strict=False)
            at += field.size
        return found

    def write(self, message: Message) -> bytes:
        """Return the bytes of the message's fields; an unset one is 0."""
        if self.plain:
            try:
                return self.struct.pack(*[getattr(message, name) or 0 for name in self.names])
            except StructError:
                pass  # the long way says which field it is
        numbers = []
        for field in self.fields:
            number = 0 if field.absent else getattr(message, field.name)
            number = 0 if number is None else field.write(number)
            limit = (1 << (8 * field.size)) - 1
            if not 0 <= number <= limit:
                raise LocalProtocolError(f"{field.name} {number} is outside 0..{limit}")
            numbers.append(number)
        return self.struct.pack(*numbers)

    def offset(self, name: str) -> int:
        """Return the place of a field in the run."""
        at = 0
        for field in self.fields:
            if field.name == name:
                return at
            at += field.size
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Nothing:
    """No value at all."""

    def fits(self, size: int) -> bool:
        """Tell whether a value of this size can be read."""
        return size == 0

    def __str__(self) -> str:
        """Say what is allowed."""
        return "no value"


@dataclass(frozen=True, slots=True)
class Bytes:
    """Any bytes, kept as they are."""

    at_least: int = 0

    def fits(self, size: int) -> bool:
        """Tell whether a value of this size can be read."""
        return size >= self.at_least

    def __str__(self) -> str:
        """Say what is allowed."""
        return f"a value of at least {self.at_least} bytes" if self.at_least else "any value"


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value that is a fixed run of fields."""

    fields: Fields

    def fits(self, size: int) -> bool:
        """Tell whether a value of this size can be read."""
        return size == self.fields.size

    def __str__(self) -> str:
        """Say what is allowed."""
        return f"a value of {self.fields.size} bytes"


@dataclass(frozen=True, slots=True)
class Repeated:
    """A value that is n records of the same struct."""

    name: str
    record: Struct
    make: Callable[..., object]
    parts: Callable[..., tuple[int, ...]]
    at_least: int = 0
    label: str = "records"

    def fits(self, size: int) -> bool:
        """Tell whether a value of this size can be read."""
        return size % self.record.size == 0 and size >= self.at_least * self.record.size

    def read(self, value: bytes) -> tuple[object, ...]:
        """Return the records."""
        return tuple([self.make(*numbers) for numbers in self.record.iter_unpack(value)])

    def write(self, records: tuple[object, ...]) -> bytes:
        """Return the bytes of the records."""
        if len(records) < self.at_least:
            raise LocalProtocolError(f"{len(records)} {self.label}, at least {self.at_least}")
        return b"".join(self.record.pack(*self.parts(record)) for record in records)

    def __str__(self) -> str:
        """Say what is allowed."""
        least = f", n >= {self.at_least}" if self.at_least else ""
        return f"a value of n x {self.record.size} bytes{least}"


@dataclass(frozen=True, slots=True)
class Custom:
    """A value with lengths inside: parsed and built by functions.

    ``parse(frame value, fields read so far)`` returns more fields; ``build(message)`` the bytes.
    """

    names: tuple[str, ...]
    parse: Callable[[bytes, dict[str, object]], dict[str, object]]
    build: Callable[..., bytes]
    label: str

    def fits(self, size: int) -> bool:
        """Tell whether a value of this size can be read; the parser decides."""
        return size >= 0

    def __str__(self) -> str:
        """Say what is allowed."""
        return self.label


Value = Nothing | Bytes | Fixed | Repeated | Custom

NO_KEY: Final = "no key"
SOME_KEY: Final = "a key"
ANY_KEY: Final = "a key or none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layout of one message."""

    message: type[Message]
    opcode: int
    kind: str
    name: str
    extras: Fields
    key: str = NO_KEY
    value: Value
    speak: frozenset[Dialect] = ALL
    hear: frozenset[Dialect] = ALL
    statuses: frozenset[int] = frozenset({0})
    """Statuses of a reply that this row reads; every other status is an ErrorReply."""
    fixed: tuple[tuple[str, object], ...] = ()
    """Fields the opcode itself says, such as quiet."""
    version: int | None = None
    """First extras byte that tells rows of the same sizes apart (snapshot marker V2.x)."""

    def fits(self, extras: bytes, key_size: int, value_size: int) -> bool:
        """Tell whether parts of these sizes are this layout."""
        if len(extras) != self.extras.struct.size or not self.value.fits(value_size):
            return False
        if self.version is not None and extras[0] != self.version:
            return False
        return self.key == ANY_KEY or (self.key == SOME_KEY) == (key_size > 0)

    def needed_names(self) -> frozenset[str]:
        """Names of the fields that a message must say to be written by this row."""
        fields = self.extras.fields
        if isinstance(self.value, Fixed):
            fields += self.value.fields.fields
        return frozenset(field.name for field in fields if field.needed)

    def optional_names(self) -> frozenset[str]:
        """Names of the number fields that this row carries."""
        names = set(self.extras.names)
        if isinstance(self.value, Fixed):
            names.update(self.value.fields.names)
        return frozenset(names)
