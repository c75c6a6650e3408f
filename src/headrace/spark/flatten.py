"""JSON documents as columns: a few paths of each document, with a type each, on request.

A path is ``name`` or ``outer.inner``. A value that is missing or null is null. A value of another
type than asked for, or a document that is not JSON, never stops a job: the column is null, and the
column ``bad_record`` says what was wrong with the document.

Imports: errors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

BAD_RECORD: Final = "bad_record"
COMPLAINT_SIZE_MAX: Final = 200


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise ValueError
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    return float(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


TYPES: Final[dict[str, tuple[pa.DataType, Callable[[object], object]]]] = {
    "string": (pa.string(), _text),
    "bigint": (pa.int64(), _integer),
    "double": (pa.float64(), _number),
    "boolean": (pa.bool_(), _truth),
}
"""Name of a type -> its Arrow type and how a JSON value becomes it; `string` takes anything."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One column: its name, its path in the document, its type."""

    name: str
    path: tuple[str, ...]
    type: str


@dataclass(frozen=True, slots=True)
class Flattening:
    """The columns asked for."""

    wanted: tuple[Wanted, ...]

    @classmethod
    def of(cls, columns: Mapping[str, str]) -> Flattening:
        """From path -> type; the column is named after the path, dots as underscores."""
        wanted = []
        for path, kind in columns.items():
            if kind not in TYPES:
                raise ConfigError(f"column {path} has type {kind}, allowed {', '.join(TYPES)}")
            wanted.append(Wanted(path.replace(".", "_"), tuple(path.split(".")), kind))
        names = [one.name for one in wanted]
        if len(set(names)) != len(names) or BAD_RECORD in names:
            raise ConfigError(f"columns {', '.join(names)} are not all different")
        return cls(tuple(wanted))

    @property
    def fields(self) -> list[pa.Field]:
        """The columns as Arrow fields; none if nothing was asked for."""
        if not self.wanted:
            return []
        return [
            *(pa.field(one.name, TYPES[one.type][0]) for one in self.wanted),
            pa.field(BAD_RECORD, pa.string()),
        ]

    def columns(
        self, values: pa.ChunkedArray, deleted: pa.ChunkedArray
    ) -> Iterator[tuple[pa.Field, pa.Array]]:
        """Each field with its column; deleted documents are null throughout."""
        if not self.wanted:
            return
        found: list[list[object]] = [[] for _ in range(len(self.wanted) + 1)]
        for value, is_deleted in zip(values.to_pylist(), deleted.to_pylist(), strict=True):
            row = [None] * len(found) if is_deleted else self.row(value)
            for column, one in zip(found, row, strict=True):
                column.append(one)
        for field, column in zip(self.fields, found, strict=True):
            yield field, pa.array(column, field.type)

    def row(self, value: bytes | None) -> list[object]:
        """The columns of one document, the complaint last."""
        try:
            document = json.loads(value or b"")
        except (ValueError, RecursionError) as error:
            return [*([None] * len(self.wanted)), f"not JSON: {error}"[:COMPLAINT_SIZE_MAX]]
        row: list[object] = []
        complaints: list[str] = []
        for one in self.wanted:
            found = _at(document, one.path)
            try:
                row.append(None if found is None else TYPES[one.type][1](found))
            except ValueError:
                row.append(None)
                complaints.append(f"{'.'.join(one.path)} is no {one.type}: {found!r:.40}")
        return [*row, "; ".join(complaints)[:COMPLAINT_SIZE_MAX] or None]


def _at(document: object, path: tuple[str, ...]) -> object:
    for name in path:
        if not isinstance(document, dict):
            return None
        document = document.get(name)
    return document
