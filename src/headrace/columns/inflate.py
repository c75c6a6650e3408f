"""Snappy values of a batch, inflated without an object per value.

A value with the snappy bit is a snappy block: its inflated size as a varint, then literals and
copies of what was already inflated. The kernel inflates the rows that have the bit, moves the rest,
and clears the bit. What it accepts is what `headrace.wire.values.inflate` accepts.

Rules.
- A value that does not inflate, or claims more than the limit, stays as it came, bit and all, and
  its row is reported.
- A claim is believed only as far as the value could keep it: three bytes of snappy make 64 at the
  most. So a batch grows by `GROWTH_MAX` at the most, whatever it claims.
- Nothing is read outside a value and nothing written outside the room its claim was given.

Imports: columns.machine, wire.opcodes.
"""

from __future__ import annotations

from typing import Final

from headrace.columns.machine import (
    compiled,
    copy,
    host32,
    store8,
    store32,
    store64,
    wire8,
)
from headrace.wire.opcodes import Datatype

GROWTH_MAX: Final = 22
"""A value is never inflated to more than this many times its size: 64 bytes for every 3."""
SNAPPY: Final = int(Datatype.SNAPPY)
FAILED: Final = -1
VARINT_MAX: Final = 5
LITERAL, NEAR, FAR, FARTHEST = 0, 1, 2, 3
"""Kinds of elements: the low two bits of a tag."""


@compiled
def _little(at: int, size: int) -> int:
    """Return a little-endian number of 1 to 4 bytes."""
    number = 0
    for index in range(size):
        number |= wire8(at + index) << (8 * index)
    return number


@compiled
def _varint_size(at: int, end: int) -> int:
    for index in range(min(end - at, VARINT_MAX)):
        if wire8(at + index) < 0x80:
            return index + 1
    return 0


@compiled
def _claim(at: int, size: int, size_max: int) -> int:
    """Return the inflated size that a value claims and could keep, or FAILED."""
    prefix = _varint_size(at, at + size)
    if prefix == 0:
        return FAILED
    claim = 0
    for index in range(prefix):
        claim |= (wire8(at + index) & 0x7F) << (7 * index)
    return claim if claim <= min(size_max, GROWTH_MAX * size) else FAILED


@compiled
def _repeat(target: int, distance: int, size: int) -> None:
    """Copy what stands ``distance`` bytes before; it may overlap and then repeats itself."""
    if distance >= size:
        copy(target, target - distance, size)
    else:
        for index in range(size):
            store8(target + index, wire8(target + index - distance))


@compiled
def _inflate_one(at: int, size: int, target: int, claim: int) -> int:
    """Inflate a value to exactly ``claim`` bytes; return ``claim``, or FAILED."""
    end = at + size
    at += _varint_size(at, end)
    written = 0
    while at < end:
        tag = wire8(at)
        at += 1
        kind = tag & 3
        if kind == LITERAL:
            length = (tag >> 2) + 1
            if length > 60:
                width = length - 60
                # The model reads four bytes whatever the width; a real literal is longer than that.
                if end - at < 4:
                    return FAILED
                length = _little(at, width) + 1
                at += width
            if length > end - at or length > claim - written:
                return FAILED
            copy(target + written, at, length)
            at += length
        else:
            width = kind if kind != FARTHEST else 4
            if end - at < width:
                return FAILED
            length = (tag >> 2) + 1
            distance = _little(at, width)
            if kind == NEAR:
                length = 4 + ((tag >> 2) & 7)
                distance |= (tag >> 5) << 8
            at += width
            if distance == 0 or distance > written or length > claim - written:
                return FAILED
            _repeat(target + written, distance, length)
        written += length
    return claim if written == claim else FAILED


def measure(offsets: int, values: int, datatypes: int, rows: int, size_max: int) -> int:
    """Return the room that `inflate` needs; offsets, values and datatypes are addresses."""
    room = 0
    for row in range(rows):
        first = host32(offsets + 4 * row)
        size = host32(offsets + 4 * row + 4) - first
        if wire8(datatypes + row) & SNAPPY:
            size = max(size, _claim(values + first, size, size_max))
        room += size
    return room


def inflate(
    offsets: int, values: int, datatypes: int, rows: int, size_max: int, target: int, failures: int
) -> int:
    """Inflate into ``target``, rewrite offsets and datatypes in place, list the rows that failed.

    Returns how many did. All but the numbers of rows and bytes are addresses.
    """
    written = failed = 0
    first = host32(offsets)
    for row in range(rows):
        after = host32(offsets + 4 * row + 4)
        size = after - first
        store32(offsets + 4 * row, written)
        claim = FAILED
        datatype = wire8(datatypes + row)
        if datatype & SNAPPY:
            claim = _claim(values + first, size, size_max)
            if claim != FAILED:
                claim = _inflate_one(values + first, size, target + written, claim)
            if claim == FAILED:
                store64(failures + 8 * failed, row)
                failed += 1
            else:
                store8(datatypes + row, datatype & ~SNAPPY)
                written += claim
        if claim == FAILED:
            copy(target + written, values + first, size)
            written += size
        first = after
    store32(offsets + 4 * rows, written)
    return failed
