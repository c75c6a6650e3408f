"""Whether bytes are one JSON text, for the bulk road: yes, no, or "ask somebody slower".

The kernel is sure of ASCII texts of moderate depth and moderate numbers; it accepts what RFC 8259
does. Bytes above 127, zero bytes (other encodings), deep nesting and very long numbers are left to
the caller's parser, which has opinions about them.

Imports: store.native.
"""

from __future__ import annotations

from typing import Final

from headrace.store.native import kernel, load8

YES: Final = 1
NO: Final = 0
UNSURE: Final = -1
DEPTH_MAX: Final = 60
NUMBER_SIZE_MAX: Final = 1000


@kernel
def skip_space(address: int, at: int, size: int) -> int:
    """The place of the next byte that is no white space."""
    while at < size:
        byte = load8(address + at)
        if byte not in (0x20, 0x09, 0x0A, 0x0D):
            break
        at += 1
    return at


@kernel
def skip_string(address: int, at: int, size: int) -> int:
    """The place behind a string that starts at a quote; -1: not JSON, -2: unsure."""
    at += 1
    while at < size:
        byte = load8(address + at)
        if byte == 0x22:
            return at + 1
        if byte < 0x20:
            return -1
        if byte > 0x7F:
            return -2
        at += 1
        if byte == 0x5C:
            if at >= size:
                return -1
            byte = load8(address + at)
            at += 1
            if byte == 0x75:
                if at + 4 > size:
                    return -1
                for place in range(at, at + 4):
                    digit = load8(address + place) | 0x20
                    if not (0x30 <= digit <= 0x39 or 0x61 <= digit <= 0x66):
                        return -1
                    if load8(address + place) < 0x30:
                        return -1
                at += 4
            elif byte not in (0x22, 0x5C, 0x2F, 0x62, 0x66, 0x6E, 0x72, 0x74):
                return -1
    return -1


@kernel
def skip_digits(address: int, at: int, size: int) -> int:
    """The place behind one digit or more; -1 if there is none."""
    start = at
    while at < size and 0x30 <= load8(address + at) <= 0x39:
        at += 1
    return at if at > start else -1


@kernel
def skip_number(address: int, at: int, size: int) -> int:
    """The place behind a number; -1: not JSON, -2: unsure."""
    start = at
    if load8(address + at) == 0x2D:
        at += 1
    if at < size and load8(address + at) == 0x30:
        at += 1
    else:
        at = skip_digits(address, at, size)
        if at < 0:
            return -1
    if at < size and load8(address + at) == 0x2E:
        at = skip_digits(address, at + 1, size)
        if at < 0:
            return -1
    if at < size and load8(address + at) | 0x20 == 0x65:
        at += 1
        if at < size and load8(address + at) in (0x2B, 0x2D):
            at += 1
        at = skip_digits(address, at, size)
        if at < 0:
            return -1
    return at if at - start <= NUMBER_SIZE_MAX else -2


@kernel
def skip_word(address: int, at: int, size: int) -> int:
    """The place behind true, false or null; -1 if it is none of them."""
    words = (0x74727565, 0x66616C73, 0x6E756C6C)
    if at + 4 > size:
        return -1
    found = 0
    for place in range(at, at + 4):
        found = (found << 8) | load8(address + place)
    if found in (words[0], words[2]):
        return at + 4
    if found == words[1] and at + 5 <= size and load8(address + at + 4) == 0x65:
        return at + 5
    return -1


@kernel
def skip_key(address: int, at: int, size: int) -> int:
    """The place behind a name and its colon; -1: not JSON, -2: unsure."""
    at = skip_space(address, at, size)
    if at >= size or load8(address + at) != 0x22:
        return -1
    at = skip_string(address, at, size)
    if at < 0:
        return at
    at = skip_space(address, at, size)
    if at >= size or load8(address + at) != 0x3A:
        return -1
    return at + 1


@kernel
def may_start(byte: int) -> bool:
    """Whether a JSON text can start with this byte: white space, { [ " - t f n or a digit."""
    return (
        byte in (0x20, 0x09, 0x0A, 0x0D, 0x7B, 0x5B, 0x22, 0x2D, 0x74, 0x66, 0x6E)
        or 0x30 <= byte <= 0x39
    )


@kernel
def check_json(address: int, size: int) -> int:
    """YES, NO or UNSURE."""
    if size == 0 or not may_start(load8(address)):
        return NO
    for place in range(size):
        byte = load8(address + place)
        if byte > 0x7F or byte == 0:
            return UNSURE
    objects = 0  # one bit per open level: 1 is an object, 0 an array
    depth = 0
    at = 0
    while True:
        # A value is due.
        at = skip_space(address, at, size)
        if at >= size:
            return NO
        byte = load8(address + at)
        if byte in (0x7B, 0x5B):
            is_object = byte == 0x7B
            at = skip_space(address, at + 1, size)
            if at < size and load8(address + at) == byte + 2:
                at += 1  # empty
            else:
                depth += 1
                if depth > DEPTH_MAX:
                    return UNSURE
                objects = (objects << 1) | (1 if is_object else 0)
                if is_object:
                    at = skip_key(address, at, size)
                    if at < 0:
                        return NO if at == -1 else UNSURE
                continue
        elif byte == 0x22:
            at = skip_string(address, at, size)
        elif byte == 0x2D or 0x30 <= byte <= 0x39:
            at = skip_number(address, at, size)
        else:
            at = skip_word(address, at, size)
        if at < 0:
            return NO if at == -1 else UNSURE
        # A value has ended: close levels, or go on with the next one.
        while True:
            at = skip_space(address, at, size)
            if depth == 0:
                return YES if at == size else NO
            if at >= size:
                return NO
            byte = load8(address + at)
            at += 1
            if byte == 0x2C:
                if objects & 1:
                    at = skip_key(address, at, size)
                    if at < 0:
                        return NO if at == -1 else UNSURE
                break
            if byte != (0x7D if objects & 1 else 0x5D):
                return NO
            depth -= 1
            objects >>= 1
