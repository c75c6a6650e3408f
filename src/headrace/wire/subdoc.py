"""Sub-document messages: one path, or several, of one document and its xattrs.

    single          extras: path length, path flags, [expiration], [document flags]
                    value: path | value
    multi lookup    value: n x (opcode 1, flags 1, path length 2 | path)
    multi mutation  value: n x (opcode 1, flags 1, path length 2, value length 4 | path | value)
    lookup reply    value: n x (status 2, length 4 | value)
    mutation reply  value: n x (index 1, status 2, and if the status is 0: length 4 | value)

Imports: errors, wire.message.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.message import Reply, Request

PATHS_MAX: Final = 16
"""Paths in one multi command, as released servers allow."""

_LOOKUP: Final = Struct(">BBH")
_MUTATION: Final = Struct(">BBHI")
_LOOKUP_RESULT: Final = Struct(">HI")
_MUTATION_RESULT: Final = Struct(">BH")
_LENGTH: Final = Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSpec:
    """One path of a multi command; ``value`` only for mutations."""

    opcode: int
    flags: int = 0
    path: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupResult:
    """What one path of a lookup found."""

    status: int
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationResult:
    """What one path of a mutation returned, or why it failed."""

    index: int
    status: int
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubdocRequest(Request):
    """One operation on one path of the document ``key``. Answered: SubdocReply.

    ``operation`` is the opcode, one of the SUBDOC_ family.
    """

    operation: int
    key: bytes
    path: bytes = b""
    value: bytes = b""
    path_flags: int = 0
    expiration: int | None = None
    doc_flags: int | None = None

    @property
    def path_length(self) -> int:
        """Length of the path, as the extras carry it."""
        return len(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubdocReply(Reply):
    """What the path held, or what the mutation returned."""

    operation: int
    vb_uuid: int | None = None
    seqno: int | None = None
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubdocMultiLookup(Request):
    """Read several paths of the document ``key``. Answered: SubdocMultiLookupReply."""

    key: bytes
    doc_flags: int | None = None
    specs: tuple[PathSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubdocMultiLookupReply(Reply):
    """One result per path, in order."""

    results: tuple[LookupResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubdocMultiMutation(Request):
    """Change several paths of the document ``key``, all or none. Answered: its reply."""

    key: bytes
    expiration: int | None = None
    doc_flags: int | None = None
    specs: tuple[PathSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubdocMultiMutationReply(Reply):
    """Results of the paths that return one; on failure, the first path that failed."""

    vb_uuid: int | None = None
    seqno: int | None = None
    results: tuple[MutationResult, ...] = ()


def parse_path(value: bytes, fields: dict[str, object]) -> dict[str, object]:
    """Split a single command's value into path and value."""
    size = fields.pop("path_length")
    if not isinstance(size, int) or size > len(value):
        raise RemoteProtocolError(f"path claims {size} bytes and {len(value)} follow", offset=0)
    return {"path": value[:size], "value": value[size:]}


def build_path(message: SubdocRequest) -> bytes:
    """Join path and value of a single command."""
    return message.path + message.value


def parse_lookups(value: bytes, _fields: dict[str, object]) -> dict[str, object]:
    """Return the paths of a multi lookup."""
    specs = []
    at = 0
    while at < len(value):
        opcode, flags, size = _unpack(_LOOKUP, value, at, "lookup path")
        start = at + _LOOKUP.size
        at = start + size
        _check_room(value, start, at, "lookup path")
        specs.append(PathSpec(opcode=opcode, flags=flags, path=value[start:at]))
    return {"specs": _paths(specs)}


def build_lookups(message: SubdocMultiLookup) -> bytes:
    """Return the value of a multi lookup."""
    _check_count(len(message.specs))
    return b"".join(
        _LOOKUP.pack(spec.opcode, spec.flags, len(spec.path)) + spec.path for spec in message.specs
    )


def parse_mutations(value: bytes, _fields: dict[str, object]) -> dict[str, object]:
    """Return the paths of a multi mutation."""
    specs = []
    at = 0
    while at < len(value):
        opcode, flags, path_size, value_size = _unpack(_MUTATION, value, at, "mutation path")
        start = at + _MUTATION.size
        middle = start + path_size
        at = middle + value_size
        _check_room(value, start, at, "mutation path")
        specs.append(
            PathSpec(opcode=opcode, flags=flags, path=value[start:middle], value=value[middle:at])
        )
    return {"specs": _paths(specs)}


def build_mutations(message: SubdocMultiMutation) -> bytes:
    """Return the value of a multi mutation."""
    _check_count(len(message.specs))
    return b"".join(
        _MUTATION.pack(spec.opcode, spec.flags, len(spec.path), len(spec.value))
        + spec.path
        + spec.value
        for spec in message.specs
    )


def parse_lookup_results(value: bytes, _fields: dict[str, object]) -> dict[str, object]:
    """Return the results of a multi lookup."""
    results = []
    at = 0
    while at < len(value):
        status, size = _unpack(_LOOKUP_RESULT, value, at, "lookup result")
        start = at + _LOOKUP_RESULT.size
        at = start + size
        _check_room(value, start, at, "lookup result")
        results.append(LookupResult(status=status, value=value[start:at]))
    return {"results": tuple(results)}


def build_lookup_results(message: SubdocMultiLookupReply) -> bytes:
    """Return the value of a multi lookup's reply."""
    return b"".join(
        _LOOKUP_RESULT.pack(result.status, len(result.value)) + result.value
        for result in message.results
    )


def parse_mutation_results(value: bytes, _fields: dict[str, object]) -> dict[str, object]:
    """Return the results of a multi mutation; a failed one has no length and no value."""
    results = []
    at = 0
    while at < len(value):
        index, status = _unpack(_MUTATION_RESULT, value, at, "mutation result")
        at += _MUTATION_RESULT.size
        content = b""
        if status == 0:
            (size,) = _unpack(_LENGTH, value, at, "mutation result")
            start = at + _LENGTH.size
            at = start + size
            _check_room(value, start, at, "mutation result")
            content = value[start:at]
        results.append(MutationResult(index=index, status=status, value=content))
    return {"results": tuple(results)}


def build_mutation_results(message: SubdocMultiMutationReply) -> bytes:
    """Return the value of a multi mutation's reply."""
    parts = []
    for result in message.results:
        parts.append(_MUTATION_RESULT.pack(result.index, result.status))
        if result.status == 0:
            parts.append(_LENGTH.pack(len(result.value)) + result.value)
        elif result.value:
            raise LocalProtocolError(f"failed path {result.index} cannot carry a value")
    return b"".join(parts)


def _unpack(struct: Struct, value: bytes, at: int, what: str) -> tuple[int, ...]:
    if len(value) - at < struct.size:
        raise RemoteProtocolError(
            f"{what} of {len(value) - at} bytes, its head alone has {struct.size}", offset=at
        )
    return struct.unpack_from(value, at)


def _check_room(value: bytes, start: int, end: int, what: str) -> None:
    if end > len(value):
        raise RemoteProtocolError(
            f"{what} claims {end - start} bytes and {len(value) - start} follow", offset=start
        )


def _paths(specs: list[PathSpec]) -> tuple[PathSpec, ...]:
    if not 1 <= len(specs) <= PATHS_MAX:
        raise RemoteProtocolError(f"{len(specs)} paths, allowed 1..{PATHS_MAX}", offset=0)
    return tuple(specs)


def _check_count(count: int) -> None:
    if not 1 <= count <= PATHS_MAX:
        raise LocalProtocolError(f"{count} paths, allowed 1..{PATHS_MAX}")
