r"""Paths into JSON, and changes that leave every other byte of the text as it was.

A path is ``a.b[0].`c.d```: names joined by dots, places in brackets (-1 is the last), a name with
special characters between backticks (a backtick is doubled). The empty path is the whole document.

A change cuts one span out of the text and puts another in; nothing is parsed and printed again, so
numbers, spaces and the order of names stay as their writer left them. Values are skipped with the C
scanner of the `json` package; the text is known to be JSON before it comes here.

Imports: wire.opcodes, node.refusal.
"""

from __future__ import annotations

import json
import re
from json.decoder import JSONDecoder
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from headrace.node.refusal import Refusal
from headrace.wire.opcodes import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH_SIZE_MAX: Final = 1_024
DEPTH_MAX: Final = 32
INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1

Step: TypeAlias = str | int
"""A name in an object, or a place in an array."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_PLACE: Final = re.compile(r"\[(-1|0|[1-9][0-9]{0,9})\]")
_NAME: Final = re.compile(r"[^.\[\]`]+")
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]*)")


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = JSONDecoder(parse_constant=_no_constant)


class Span(NamedTuple):
    """A value in a text: from its first character to the one behind its last."""

    start: int
    end: int


class Entry(NamedTuple):
    """A member of an object or array: where it begins (with its name), its value, its number."""

    start: int
    value: Span
    number: int


def parse_path(path: bytes) -> tuple[Step, ...]:
    """The steps of a path; refused when it is malformed, too long or too deep."""
    if len(path) > PATH_SIZE_MAX:
        raise Refusal(Status.SUBDOC_PATH_E2BIG, f"path of {len(path)} bytes, limit {PATH_SIZE_MAX}")
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(Status.SUBDOC_PATH_EINVAL, "path is not UTF-8") from error
    steps: list[Step] = []
    at = 0
    while at < len(text):
        step, at = _step(text, at, first=not steps)
        steps.append(step)
    if len(steps) > DEPTH_MAX:
        raise Refusal(Status.SUBDOC_PATH_E2BIG, f"path of {len(steps)} steps, limit {DEPTH_MAX}")
    return tuple(steps)


def _step(text: str, at: int, *, first: bool) -> tuple[Step, int]:
    place = _PLACE.match(text, at)
    if place is not None:
        return int(place[1]), place.end()
    if not first:
        if text[at] != ".":
            raise _malformed(text, at)
        at += 1
    if text[at : at + 1] == "`":
        return _quoted(text, at)
    name = _NAME.match(text, at)
    if name is None:
        raise _malformed(text, at)
    return name[0], name.end()


def _quoted(text: str, at: int) -> tuple[str, int]:
    parts = []
    start = at + 1
    while True:
        end = text.find("`", start)
        if end < 0:
            raise _malformed(text, at)
        parts.append(text[start:end])
        if text[end + 1 : end + 2] != "`":
            return "`".join(parts), end + 1
        start = end + 2


def _malformed(text: str, at: int) -> Refusal:
    return Refusal(Status.SUBDOC_PATH_EINVAL, f"path {text!r} is malformed at character {at}")


# -- finding -------------------------------------------------------------------------------------


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _value_at(text: str, at: int) -> Span:
    _, end = _DECODER.raw_decode(text, at)
    return Span(at, end)


def root(text: str) -> Span:
    """The whole document's value."""
    return _value_at(text, _skip(text, 0))


def entries(text: str, container: Span) -> Iterator[tuple[str | None, Entry]]:
    """Each member of an object (with its name) or array (with None)."""
    is_object = text[container.start] == "{"
    at = _skip(text, container.start + 1)
    number = 0
    while text[at] not in "}]":
        start, name = at, None
        if is_object:
            name, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        value = _value_at(text, at)
        yield name, Entry(start, value, number)
        number += 1
        at = _skip(text, value.end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _member(text: str, container: Span, step: Step) -> Entry | None:
    wanted = "{" if isinstance(step, str) else "["
    if text[container.start] != wanted:
        raise Refusal(Status.SUBDOC_PATH_MISMATCH)
    last = None
    for name, entry in entries(text, container):
        if step == (entry.number if isinstance(step, int) else name):
            return entry
        last = entry
    return last if step == -1 else None


class Found(NamedTuple):
    """How far a path leads: the value reached, its entry, and the steps that found nothing."""

    value: Span
    entry: Entry | None
    parent: Span | None
    missing: tuple[Step, ...]


def find(text: str, steps: tuple[Step, ...]) -> Found:
    """Follow a path as far as it goes."""
    value, entry, parent = root(text), None, None
    for place, step in enumerate(steps):
        member = _member(text, value, step)
        if member is None:
            return Found(value, entry, parent, steps[place:])
        value, entry, parent = member.value, member, value
    return Found(value, entry, parent, ())


def existing(text: str, steps: tuple[Step, ...]) -> Found:
    """Follow a path that must exist."""
    found = find(text, steps)
    if found.missing:
        raise Refusal(Status.SUBDOC_PATH_ENOENT)
    return found


def get(text: str, steps: tuple[Step, ...]) -> str:
    """The text of a value."""
    value = existing(text, steps).value
    return text[value.start : value.end]


def count(text: str, steps: tuple[Step, ...]) -> str:
    """The number of members of an object or array, as text."""
    value = existing(text, steps).value
    if text[value.start] not in "{[":
        raise Refusal(Status.SUBDOC_PATH_MISMATCH)
    return str(sum(1 for _ in entries(text, value)))


# -- values --------------------------------------------------------------------------------------


def checked(value: bytes, steps: tuple[Step, ...]) -> str:
    """A value to be put at a path; refused unless it is JSON and fits in depth."""
    try:
        text = value.decode("utf-8")
        parsed = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(Status.SUBDOC_VALUE_CANTINSERT, "the value is not JSON") from error
    if _depth(parsed) + len(steps) > DEPTH_MAX:
        raise Refusal(Status.SUBDOC_VALUE_E2DEEP, f"the value is deeper than {DEPTH_MAX} levels")
    return text.strip(" \t\r\n")


def _checked_list(value: bytes, steps: tuple[Step, ...]) -> str:
    """One or more values with commas between them."""
    return checked(b"[" + value + b"]", steps)[1:-1].strip(" \t\r\n")


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level:
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner.extend(one.values())
            elif isinstance(one, list):
                inner.extend(one)
        if not any(isinstance(one, dict | list) for one in level):
            return depth
        depth, level = depth + 1, inner
    return depth


# -- changing ------------------------------------------------------------------------------------


def _replaced(text: str, span: Span, new: str) -> str:
    return text[: span.start] + new + text[span.end :]


def _appended(text: str, container: Span, member: str) -> str:
    """The text with a member at the end of an object or array."""
    close = container.end - 1
    end = len(text[:close].rstrip(" \t\r\n"))
    comma = "" if end == container.start + 1 else ","
    return text[:end] + comma + member + text[end:]


def _wrapped(steps: tuple[Step, ...], value: str) -> str:
    """A value inside the objects its path still lacks."""
    for step in reversed(steps):
        if not isinstance(step, str):
            raise Refusal(Status.SUBDOC_PATH_ENOENT)
        value = f"{{{json.dumps(step, ensure_ascii=False)}:{value}}}"
    return value


def _created(text: str, found: Found, value: str, *, parents: bool) -> str:
    """The text with a value where a path found nothing."""
    first, rest = found.missing[0], found.missing[1:]
    if rest and not parents:
        raise Refusal(Status.SUBDOC_PATH_ENOENT)
    if not isinstance(first, str):
        raise Refusal(Status.SUBDOC_PATH_ENOENT)
    member = _wrapped(rest, value)
    name = json.dumps(first, ensure_ascii=False)
    return _appended(text, found.value, f"{name}:{member}")


def _needs_name(steps: tuple[Step, ...]) -> None:
    if not steps or not isinstance(steps[-1], str):
        raise Refusal(Status.SUBDOC_PATH_EINVAL, "the path must end with a name")


def _needs_path(steps: tuple[Step, ...]) -> None:
    if not steps:
        raise Refusal(Status.SUBDOC_PATH_EINVAL, "the path must not be empty")


def add(text: str, steps: tuple[Step, ...], value: bytes, *, parents: bool) -> str:
    """The text with a new name; refused when the name is there."""
    _needs_name(steps)
    new = checked(value, steps)
    found = find(text, steps)
    if not found.missing:
        raise Refusal(Status.SUBDOC_PATH_EEXISTS)
    return _created(text, found, new, parents=parents)


def upsert(text: str, steps: tuple[Step, ...], value: bytes, *, parents: bool) -> str:
    """The text with a name set."""
    _needs_name(steps)
    new = checked(value, steps)
    found = find(text, steps)
    if not found.missing:
        return _replaced(text, found.value, new)
    return _created(text, found, new, parents=parents)


def replace(text: str, steps: tuple[Step, ...], value: bytes) -> str:
    """The text with the value at a path changed."""
    _needs_path(steps)
    new = checked(value, steps)
    return _replaced(text, existing(text, steps).value, new)


def remove(text: str, steps: tuple[Step, ...]) -> str:
    """The text without the member at a path, and without the comma it needed."""
    _needs_path(steps)
    found = existing(text, steps)
    entry, parent = found.entry, found.parent
    assert entry is not None
    assert parent is not None
    after = _skip(text, entry.value.end)
    if text[after] == ",":
        return text[: entry.start] + text[_skip(text, after + 1) :]
    before = len(text[: entry.start].rstrip(" \t\r\n"))
    if text[before - 1] == ",":
        before -= 1
    return text[:before] + text[entry.value.end :]


def _array(text: str, value: Span) -> Span:
    if text[value.start] != "[":
        raise Refusal(Status.SUBDOC_PATH_MISMATCH)
    return value


def push(
    text: str, steps: tuple[Step, ...], value: bytes, *, parents: bool, first: bool = False
) -> str:
    """The text with values at an end of an array; the array is made if parents may be."""
    new = _checked_list(value, steps)
    if not new:
        raise Refusal(Status.SUBDOC_VALUE_CANTINSERT, "there is no value to push")
    found = find(text, steps)
    if found.missing:
        if not parents:
            raise Refusal(Status.SUBDOC_PATH_ENOENT)
        return _created(text, found, f"[{new}]", parents=True)
    array = _array(text, found.value)
    if not first:
        return _appended(text, array, new)
    start = array.start + 1
    comma = "" if text[_skip(text, start)] == "]" else ","
    return text[:start] + new + comma + text[start:]


def insert(text: str, steps: tuple[Step, ...], value: bytes) -> str:
    """The text with values before the place a path names, or at the end of the array."""
    if not steps or not isinstance(steps[-1], int) or steps[-1] < 0:
        raise Refusal(Status.SUBDOC_PATH_EINVAL, "the path must end with a place, not negative")
    new = _checked_list(value, steps)
    array = _array(text, existing(text, steps[:-1]).value)
    entry = _member(text, array, steps[-1])
    if entry is not None:
        return text[: entry.start] + new + "," + text[entry.start :]
    if sum(1 for _ in entries(text, array)) != steps[-1]:
        raise Refusal(Status.SUBDOC_PATH_ENOENT)
    return _appended(text, array, new)


def add_unique(text: str, steps: tuple[Step, ...], value: bytes, *, parents: bool) -> str:
    """The text with a value in an array that has only simple values and not this one."""
    new = json.loads(checked(value, steps))
    if isinstance(new, dict | list):
        raise Refusal(Status.SUBDOC_VALUE_CANTINSERT, "only simple values can be unique")
    found = find(text, steps)
    if not found.missing:
        array = _array(text, found.value)
        for one in json.loads(text[array.start : array.end]):
            if isinstance(one, dict | list):
                raise Refusal(Status.SUBDOC_PATH_MISMATCH)
            # 1, 1.0 and true are equal in Python and three values in JSON.
            if one == new and type(one) is type(new):
                raise Refusal(Status.SUBDOC_PATH_EEXISTS)
    return push(text, steps, value, parents=parents)


def counter(text: str, steps: tuple[Step, ...], value: bytes, *, parents: bool) -> tuple[str, str]:
    """The text with a number changed by a delta, and the new number."""
    _needs_path(steps)
    delta = _delta(value)
    found = find(text, steps)
    if found.missing:
        new = str(delta)
        return _created(text, found, new, parents=parents), new
    old = text[found.value.start : found.value.end]
    if not _INTEGER.fullmatch(old):
        raise Refusal(Status.SUBDOC_PATH_MISMATCH)
    if not INTEGER_MIN <= int(old) <= INTEGER_MAX:
        raise Refusal(Status.SUBDOC_NUM_ERANGE)
    number = int(old) + delta
    if not INTEGER_MIN <= number <= INTEGER_MAX:
        raise Refusal(Status.SUBDOC_VALUE_CANTINSERT, "the number would leave 64 bits")
    return _replaced(text, found.value, str(number)), str(number)


def _delta(value: bytes) -> int:
    text = value.decode("ascii", "replace").strip()
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or int(text) == 0:
        raise Refusal(Status.SUBDOC_DELTA_EINVAL, f"delta {text!r} is no integer, or 0")
    if not INTEGER_MIN <= int(text) <= INTEGER_MAX:
        raise Refusal(Status.SUBDOC_DELTA_EINVAL, f"delta {text} leaves 64 bits")
    return int(text)
