"""Layout rows of wire as a table of numbers that the kernel walks by.

A form is one layout row of a message that makes a row, moves the snapshot in force, or ends it. It
says how long each part must be and where each field stands, counted from the extras' first byte (a
marker V2 has its fields in the value; it has no key, so the count runs on). Forms of an opcode
stand in the order of LAYOUTS and the first that fits is the one, as in `headrace.wire.codec`. The
dialect chooses which rows are in the table; the kernel knows no dialect.

Imports: columns.schema, wire.dialect, wire.layout(s), wire.messages, wire.opcodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.columns.schema import Event, Presence
from headrace.wire import messages as m
from headrace.wire.layout import ANY_KEY, NO_KEY, REQUEST, SOME_KEY, Bytes, Field, Fixed, Row
from headrace.wire.layouts import STREAM_ROWS
from headrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.wire.dialect import Dialect
    from headrace.wire.message import Message

ABSENT: Final = -1
"""Place of a field that a form does not have."""
ANY_SIZE: Final = 1 << 40
CODES_MAX: Final = 4
"""Most numbers that a translated field may have."""


class Kind(IntEnum):
    """What the kernel does with a frame that fits a form."""

    ROW = 1
    MARKER = 2
    UNMARK = 3


class Part(IntEnum):
    """Numbers of a form; a name with a size in `PLACED` holds the place of a field."""

    EXTRAS_SIZE = 0
    KEY_RULE = 1
    VALUE_MIN = 2
    VALUE_MAX = 3
    VERSION = 4
    KIND = 5
    EVENT = 6
    PRESENCE = 7
    PREFIXED = 8
    SEQNO = 9
    REV = 10
    FLAGS = 11
    EXPIRY = 12
    LOCK_TIME = 13
    NMETA = 14
    NRU = 15
    DELETE_TIME = 16
    PREPARED = 17
    DURABILITY = 18
    DELETED = 19
    SYSTEM_EVENT = 20
    SYSTEM_VERSION = 21
    START = 22
    END = 23
    MARKER_FLAGS = 24
    MAX_VISIBLE = 25
    HIGH_COMPLETED = 26
    PURGE = 27
    HIGH_PREPARED = 28
    TIMESTAMP = 29
    CODED = 30
    CODES = 31
    FIRST_CODE = 32


FORM_NUMBERS: Final = Part.FIRST_CODE + 2 * CODES_MAX


class KeyRule(IntEnum):
    """Whether a form has a key."""

    NONE = 0
    SOME = 1
    ANY = 2


_KEY_RULES: Final = {NO_KEY: KeyRule.NONE, SOME_KEY: KeyRule.SOME, ANY_KEY: KeyRule.ANY}

PLACED: Final[dict[str, tuple[Part, int]]] = {
    "by_seqno": (Part.SEQNO, 8),
    "commit_seqno": (Part.SEQNO, 8),
    "abort_seqno": (Part.SEQNO, 8),
    "rev_seqno": (Part.REV, 8),
    "flags": (Part.FLAGS, 4),
    "expiration": (Part.EXPIRY, 4),
    "lock_time": (Part.LOCK_TIME, 4),
    "nmeta": (Part.NMETA, 2),
    "nru": (Part.NRU, 1),
    "delete_time": (Part.DELETE_TIME, 4),
    "prepared_seqno": (Part.PREPARED, 8),
    "durability": (Part.DURABILITY, 1),
    "deleted": (Part.DELETED, 1),
    "event": (Part.SYSTEM_EVENT, 4),
    "version": (Part.SYSTEM_VERSION, 1),
    "start_seqno": (Part.START, 8),
    "end_seqno": (Part.END, 8),
    "max_visible_seqno": (Part.MAX_VISIBLE, 8),
    "high_completed_seqno": (Part.HIGH_COMPLETED, 8),
    "purge_seqno": (Part.PURGE, 8),
    "high_prepared_seqno": (Part.HIGH_PREPARED, 8),
    "timestamp": (Part.TIMESTAMP, 8),
}
"""Field of a message -> its number in a form, and the size the kernel reads."""

_PRESENCES: Final = {
    Part.REV: Presence.REVISION,
    Part.FLAGS: Presence.DOCUMENT,
    Part.NRU: Presence.NRU,
    Part.DELETE_TIME: Presence.DELETE_TIME,
    Part.PREPARED: Presence.RESOLUTION,
    Part.DURABILITY: Presence.PREPARE,
    Part.SYSTEM_EVENT: Presence.SYSTEM,
}
"""The field that stands for its group."""

EVENTS: Final[dict[type[Message], Event]] = {
    m.Mutation: Event.MUTATION,
    m.Deletion: Event.DELETION,
    m.Expiration: Event.EXPIRATION,
    m.Prepare: Event.PREPARE,
    m.Commit: Event.COMMIT,
    m.Abort: Event.ABORT,
    m.SystemEvent: Event.SYSTEM_EVENT,
    m.SeqnoAdvanced: Event.SEQNO_ADVANCED,
}
"""Messages that make a row."""

UNMARKING: Final[tuple[type[Message], ...]] = (m.StreamEnd, m.OsoSnapshot)
"""Messages after which no marker is in force."""

COUNTED: Final = frozenset(range(Opcode.STREAM_END, Opcode.CACHE_TRANSFER_END + 1)) - {
    Opcode.FLUSH,
    Opcode.NOOP,
    Opcode.BUFFER_ACK,
    Opcode.CONTROL,
    Opcode.SEQNO_ACKNOWLEDGED,
}
"""Requests of a producer that fill the consumer's flow-control window; replies never do."""
SURCHARGE: Final = {Opcode.PREPARE: 2}
"""Bytes counted beyond the wire size: released servers count two too many for a prepare."""


class Entry(IntEnum):
    """Numbers of an opcode in the index."""

    FIRST = 0
    COUNT = 1
    COUNTED = 2
    SURCHARGE = 3


INDEX_NUMBERS: Final = len(Entry)

# The layout that nearly every frame of a stream has: the kernel reads it with constants.
_COMMON: Final = {
    Part.EXTRAS_SIZE: 31,
    Part.KEY_RULE: KeyRule.SOME,
    Part.VALUE_MIN: 0,
    Part.VALUE_MAX: ANY_SIZE,
    Part.SEQNO: 0,
    Part.REV: 8,
    Part.FLAGS: 16,
    Part.EXPIRY: 20,
    Part.LOCK_TIME: 24,
    Part.NMETA: 28,
    Part.NRU: 30,
    Part.CODED: ABSENT,
}


@dataclass(frozen=True, slots=True)
class Forms:
    """The table of one dialect."""

    forms: NDArray[np.int64]
    """One line per form."""
    index: NDArray[np.int64]
    """One line per opcode: first form, number of forms, whether its bytes are counted."""
    common: bool
    """True when the first form of a mutation is the one the kernel has constants for."""


@cache
def forms_of(dialect: Dialect) -> Forms:
    """Return the forms that this dialect hears."""
    lines: list[list[int]] = []
    index = np.zeros((256, INDEX_NUMBERS), dtype=np.int64)
    for opcode in COUNTED:
        index[opcode, Entry.COUNTED] = 1
        index[opcode, Entry.SURCHARGE] = SURCHARGE.get(Opcode(opcode), 0)
    for row in STREAM_ROWS:
        if row.kind != REQUEST or dialect not in row.hear or _kind(row) is None:
            continue
        if index[row.opcode, Entry.COUNT] == 0:
            index[row.opcode, Entry.FIRST] = len(lines)
        # The index names a run: rows of one opcode stand together in LAYOUTS.
        assert index[row.opcode, Entry.FIRST] + index[row.opcode, Entry.COUNT] == len(lines)
        index[row.opcode, Entry.COUNT] += 1
        lines.append(_form(row))
    forms = np.array(lines, dtype=np.int64)
    first = forms[index[Opcode.MUTATION, Entry.FIRST]]
    common = all(first[number] == wanted for number, wanted in _COMMON.items())
    forms.flags.writeable = index.flags.writeable = False
    return Forms(forms, index, common)


def _kind(row: Row) -> Kind | None:
    if row.message in EVENTS:
        return Kind.ROW
    if row.message is m.SnapshotMarker:
        return Kind.MARKER
    return Kind.UNMARK if row.message in UNMARKING else None


def _form(row: Row) -> list[int]:
    form = [ABSENT] * FORM_NUMBERS
    form[Part.EXTRAS_SIZE] = row.extras.size
    form[Part.KEY_RULE] = _KEY_RULES[row.key]
    form[Part.VALUE_MIN], form[Part.VALUE_MAX] = _value_sizes(row)
    form[Part.VERSION] = ABSENT if row.version is None else row.version
    kind = _kind(row)
    assert kind is not None
    form[Part.KIND] = kind
    form[Part.EVENT] = EVENTS.get(row.message, 0)
    # A system event's key is a name, every other key is a document's.
    form[Part.PREFIXED] = row.key == SOME_KEY
    form[Part.CODES] = 0
    for field, place in _fields(row):
        _place(form, kind, field, place)
    groups = (group for number, group in _PRESENCES.items() if form[number] != ABSENT)
    form[Part.PRESENCE] = int(sum(groups))
    return form


def _value_sizes(row: Row) -> tuple[int, int]:
    if isinstance(row.value, Bytes):
        return row.value.at_least, ANY_SIZE
    size = row.value.fields.size if isinstance(row.value, Fixed) else 0
    return size, size


def _fields(row: Row) -> list[tuple[Field, int]]:
    fields = list(row.extras.fields)
    if isinstance(row.value, Fixed):
        assert row.key == NO_KEY
        fields += row.value.fields.fields
    places = np.cumsum([0, *(field.size for field in fields)])
    placed = zip(fields, places[:-1].tolist(), strict=True)
    return [(field, place) for field, place in placed if not field.absent]


def _place(form: list[int], kind: Kind, field: Field, place: int) -> None:
    if kind != Kind.UNMARK:
        number, size = PLACED[field.name]
        if kind == Kind.MARKER and number == Part.FLAGS:
            number = Part.MARKER_FLAGS
        assert field.size == size
        form[number] = place
    if field.wire is not None:
        assert field.size == 4
        assert form[Part.CODED] == ABSENT
        assert len(field.wire) <= CODES_MAX
        form[Part.CODED] = place
        form[Part.CODES] = len(field.wire)
        codes = [code for pair in field.wire.items() for code in pair]
        form[Part.FIRST_CODE : Part.FIRST_CODE + len(codes)] = codes
