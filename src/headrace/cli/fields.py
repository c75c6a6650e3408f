"""`--field PATH=VALUE`: tests of JSON documents by the values of their fields.

PATH is names separated by dots, numbers for places in lists. VALUE is compared as JSON if it is
some, else as text; `!=`, `>`, `>=`, `<`, `<=` and `~` (a regular expression) are the other
comparisons. A document that is no JSON or lacks the field passes `!=` alone.

Imports: errors.
"""

from __future__ import annotations

import json
import operator
import re
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_FORM: Final = re.compile(r"([^=!<>~]+)(!=|>=|<=|=|>|<|~)(.*)", re.DOTALL)
_MISSING: Final = object()
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def field_test(texts: tuple[str, ...]) -> Callable[[dict[str, object]], bool]:
    """A test of a row's value that all of these must pass."""
    tests = [_one(text) for text in texts]

    def test(row: dict[str, object]) -> bool:
        value = row["value"]
        assert isinstance(value, bytes)
        try:
            document = json.loads(value)
        except ValueError:
            document = _MISSING
        return all(one(document) for one in tests)

    return test


def _one(text: str) -> Callable[[object], bool]:
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"--field {text}; allowed: PATH=VALUE, or one of != > >= < <= ~ in the place of ="
        )
    path, sign, wanted = found.group(1).strip().split("."), found.group(2), found.group(3)
    if sign == "~":
        try:
            pattern = re.compile(wanted)
        except re.error as error:
            raise ConfigError(f"--field {text}: {error}") from error
        return lambda document: (
            isinstance(value := _at(document, path), str) and pattern.search(value) is not None
        )
    expected = _json_or_text(wanted)
    if sign == "=":
        return lambda document: _at(document, path) == expected
    if sign == "!=":
        return lambda document: _at(document, path) != expected
    compare = _ORDER[sign]
    return lambda document: _ordered(compare, _at(document, path), expected)


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _ordered(compare: Callable[[Any, Any], bool], value: object, expected: object) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool):
        return False
    numbers = isinstance(value, int | float) and isinstance(expected, int | float)
    texts = isinstance(value, str) and isinstance(expected, str)
    return (numbers or texts) and compare(value, expected)


def _at(document: object, path: list[str]) -> object:
    for name in path:
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return _MISSING
    return document
