"""A document open for work on its parts: body, xattrs, virtual xattrs, macros.

* Xattrs are JSON values under a name of at most 16 bytes; a path into them starts with that name.
* Names with ``$`` are virtual: ``$document`` (what the node knows of the document), ``$vbucket``
  and ``$XTOC`` (the list of xattrs). They are read, never written.
* A macro is a whole JSON string: ``"${Mutation.CAS}"``, ``"${Mutation.seqno}"``,
  ``"${Mutation.value_crc32c}"`` become what this very change is given; ``"${$document.CAS}"`` and
  its like what the document was before.
* Paths are worked on as text (`headrace.node.paths`): bytes outside the change stay as they are.

Imports: wire, node.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.node import paths
from headrace.node.documents import is_json
from headrace.node.refusal import Refusal
from headrace.wire.opcodes import Datatype, Opcode, Status, SubdocFlag

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.paths import Step
    from headrace.store import Item, VBucket

XATTR_NAME_SIZE_MAX: Final = 16
XATTRS_SIZE_MAX: Final = 1024 * 1024
PATH_FLAGS: Final = int(SubdocFlag.MKDIR_P | SubdocFlag.XATTR_PATH | SubdocFlag.EXPAND_MACROS)
REPLACE_BODY_WITH_XATTR: Final = 0xD3
_POLYNOMIAL: Final = 0x82F6_3B78
_DATATYPE_NAMES: Final = (
    (Datatype.JSON, "json"),
    (Datatype.SNAPPY, "snappy"),
    (Datatype.XATTR, "xattr"),
)


def _crc_table() -> tuple[int, ...]:
    table = []
    for number in range(256):
        value = number
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE: Final = _crc_table()


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum of a value."""
    value = 0xFFFF_FFFF
    for byte in data:
        value = _CRC_TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFF_FFFF


class Identity(NamedTuple):
    """The CAS and seqno a change is about to be given."""

    cas: int
    seqno: int

    @property
    def cas_text(self) -> str:
        """As ``${Mutation.CAS}`` writes it: the bytes in the order of a little-endian machine."""
        return "0x" + self.cas.to_bytes(8, "little").hex()


@dataclass(slots=True)
class OpenDocument:
    """A document taken apart; ``body`` None: there is none."""

    vbucket: VBucket
    item: Item | None
    xattrs: dict[str, bytes]
    body: bytes | None
    deleted: bool = False
    changed_body: bool = False
    _text: str | None = field(default=None, repr=False)

    # -- body ------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """The body as JSON text; DOC_NOTJSON when it is none."""
        if self._text is None:
            if self.body is None:
                raise Refusal(Status.SUBDOC_PATH_ENOENT)
            if not is_json(self.body):
                raise Refusal(Status.SUBDOC_DOC_NOTJSON)
            self._text = self.body.decode("utf-8")
        return self._text

    def set_body(self, body: bytes | None) -> None:
        """Replace the whole body."""
        self.body = body
        self.changed_body = True
        self._text = None

    def set_text(self, text: str) -> None:
        """Replace the body by JSON text."""
        self.body = text.encode("utf-8")
        self._text = text
        self.changed_body = True

    # -- xattrs ----------------------------------------------------------------------------------

    def xattr_text(self, name: str) -> str:
        """An object that holds the xattr under its name, or is empty."""
        if name not in self.xattrs:
            return "{}"
        return f"{{{json.dumps(name, ensure_ascii=False)}:{self.xattrs[name].decode('utf-8')}}}"

    def set_xattr_text(self, name: str, text: str) -> None:
        """Take the xattr out of such an object again; it goes when the object is empty."""
        found = paths.find(text, (name,))
        if found.missing:
            self.xattrs.pop(name, None)
        else:
            self.xattrs[name] = text[found.value.start : found.value.end].encode("utf-8")
        size = sum(len(key) + len(value) for key, value in self.xattrs.items())
        if size > XATTRS_SIZE_MAX:
            raise Refusal(Status.E2BIG, f"xattrs of {size} bytes, limit {XATTRS_SIZE_MAX}")

    # -- virtual xattrs --------------------------------------------------------------------------

    def virtual(self, name: str) -> str:
        """A virtual xattr as an object that holds it under its name."""
        if name == "$document":
            return json.dumps({name: self._document()})
        if name == "$vbucket":
            return json.dumps({name: {"HLC": {"now": str(self.vbucket.max_cas // 10**9)}}})
        if name == "$XTOC":
            return json.dumps({name: list(self.xattrs)})
        raise Refusal(Status.SUBDOC_XATTR_UNKNOWN_VATTR)

    def _document(self) -> dict[str, object]:
        item = self.item
        if item is None:
            raise Refusal(Status.SUBDOC_PATH_ENOENT)
        body = self.body or b""
        return {
            "CAS": f"{item.cas:#018x}",
            "datatype": [name for bit, name in _DATATYPE_NAMES if item.datatype & bit] or ["raw"],
            "deleted": item.deleted,
            "exptime": item.expiry,
            "flags": item.flags,
            "last_modified": str(item.cas // 10**9),
            "revid": str(item.rev),
            "seqno": f"{item.seqno:#018x}",
            "value_bytes": len(body),
            "value_crc32c": f"{crc32c(body):#010x}",
            "vbucket_uuid": f"{self.vbucket.failover_log.newest.uuid:#018x}",
        }


class PathWork(NamedTuple):
    """One path of a command, ready to be carried out."""

    opcode: int
    flags: int
    path: bytes
    value: bytes

    @property
    def is_xattr(self) -> bool:
        """Whether the path leads into an xattr."""
        return bool(self.flags & SubdocFlag.XATTR_PATH)


def check_flags(work: PathWork) -> None:
    """Refuse flags that do not exist or do not go together."""
    if work.flags & ~PATH_FLAGS:
        raise Refusal(Status.EINVAL, f"path flags {work.flags:#04x}, known {PATH_FLAGS:#04x}")
    if work.flags & SubdocFlag.EXPAND_MACROS and not work.is_xattr:
        raise Refusal(Status.SUBDOC_XATTR_INVALID_FLAG_COMBO)


def _steps(work: PathWork) -> tuple[Step, ...]:
    steps = paths.parse_path(work.path)
    if not work.is_xattr:
        return steps
    if not steps or not isinstance(steps[0], str):
        raise Refusal(Status.XATTR_EINVAL, "an xattr path starts with the xattr's name")
    if len(steps[0].encode("utf-8")) > XATTR_NAME_SIZE_MAX and not steps[0].startswith("$"):
        raise Refusal(
            Status.XATTR_EINVAL, f"xattr name {steps[0]!r}, limit {XATTR_NAME_SIZE_MAX} bytes"
        )
    return steps


# -- looking up ----------------------------------------------------------------------------------


def look_up(document: OpenDocument, work: PathWork) -> bytes:
    """What one path of a lookup finds."""
    check_flags(work)
    if work.opcode == Opcode.GET:
        if work.path or work.is_xattr:
            raise Refusal(Status.EINVAL, "GET of a whole document takes no path")
        if document.body is None:
            raise Refusal(Status.SUBDOC_PATH_ENOENT)
        return document.body
    reader = READERS.get(work.opcode)
    if reader is None:
        raise Refusal(Status.SUBDOC_INVALID_COMBO)
    steps = _steps(work)
    if work.is_xattr:
        name = str(steps[0])
        text = document.virtual(name) if name.startswith("$") else document.xattr_text(name)
    else:
        text = document.text
    if not steps and work.opcode != Opcode.SUBDOC_GET_COUNT:
        raise Refusal(Status.SUBDOC_PATH_EINVAL, "the path must not be empty")
    return reader(text, steps).encode("utf-8")


def _exists(text: str, steps: tuple[Step, ...]) -> str:
    paths.existing(text, steps)
    return ""


READERS: Final[dict[int, Callable[[str, tuple[Step, ...]], str]]] = {
    Opcode.SUBDOC_GET: paths.get,
    Opcode.SUBDOC_EXISTS: _exists,
    Opcode.SUBDOC_GET_COUNT: paths.count,
}


# -- changing ------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The text after a change, and what the change returns (b"" for nothing)."""

    text: str
    value: bytes = b""


def _counter(text: str, steps: tuple[Step, ...], value: bytes, parents: bool) -> Outcome:
    changed, number = paths.counter(text, steps, value, parents=parents)
    return Outcome(changed, number.encode())


WRITERS: Final[dict[int, Callable[[str, tuple[Step, ...], bytes, bool], Outcome]]] = {
    Opcode.SUBDOC_DICT_ADD: lambda text, steps, value, parents: Outcome(
        paths.add(text, steps, value, parents=parents)
    ),
    Opcode.SUBDOC_DICT_UPSERT: lambda text, steps, value, parents: Outcome(
        paths.upsert(text, steps, value, parents=parents)
    ),
    Opcode.SUBDOC_DELETE: lambda text, steps, _value, _parents: Outcome(paths.remove(text, steps)),
    Opcode.SUBDOC_REPLACE: lambda text, steps, value, _parents: Outcome(
        paths.replace(text, steps, value)
    ),
    Opcode.SUBDOC_ARRAY_PUSH_LAST: lambda text, steps, value, parents: Outcome(
        paths.push(text, steps, value, parents=parents)
    ),
    Opcode.SUBDOC_ARRAY_PUSH_FIRST: lambda text, steps, value, parents: Outcome(
        paths.push(text, steps, value, parents=parents, first=True)
    ),
    Opcode.SUBDOC_ARRAY_INSERT: lambda text, steps, value, _parents: Outcome(
        paths.insert(text, steps, value)
    ),
    Opcode.SUBDOC_ARRAY_ADD_UNIQUE: lambda text, steps, value, parents: Outcome(
        paths.add_unique(text, steps, value, parents=parents)
    ),
    Opcode.SUBDOC_COUNTER: _counter,
}
ARRAY_OPCODES: Final = frozenset(
    {
        Opcode.SUBDOC_ARRAY_PUSH_LAST,
        Opcode.SUBDOC_ARRAY_PUSH_FIRST,
        Opcode.SUBDOC_ARRAY_ADD_UNIQUE,
    }
)


def first_body(works: list[PathWork]) -> str:
    """What a new document begins as: an array when the first path says so, else an object."""
    for work in works:
        if not work.is_xattr:
            rooted = work.path.startswith(b"[") or (not work.path and work.opcode in ARRAY_OPCODES)
            return "[]" if rooted else "{}"
    return "{}"


def change(
    document: OpenDocument, work: PathWork, identity: Callable[[], Identity], *, creating: bool
) -> bytes:
    """Carry out one path of a mutation; what it returns."""
    check_flags(work)
    if work.opcode in WHOLE:
        WHOLE[work.opcode](document, work)
        return b""
    writer = WRITERS.get(work.opcode)
    if writer is None:
        raise Refusal(Status.SUBDOC_INVALID_COMBO)
    steps = _steps(work)
    parents = creating or bool(work.flags & SubdocFlag.MKDIR_P)
    if not work.is_xattr:
        if document.body is None:
            raise Refusal(Status.SUBDOC_PATH_ENOENT)
        outcome = writer(document.text, steps, work.value, parents)
        document.set_text(outcome.text)
        return outcome.value
    name = str(steps[0])
    if name.startswith("$"):
        raise Refusal(Status.SUBDOC_XATTR_CANT_MODIFY_VATTR)
    value = work.value
    if work.flags & SubdocFlag.EXPAND_MACROS:
        value = expand(document, value, identity())
    outcome = writer(document.xattr_text(name), steps, value, parents)
    document.set_xattr_text(name, outcome.text)
    return outcome.value


def _set_whole(document: OpenDocument, work: PathWork) -> None:
    _check_whole(work)
    document.set_body(work.value)


def _add_whole(document: OpenDocument, work: PathWork) -> None:
    _check_whole(work)
    if document.item is not None and not document.deleted:
        raise Refusal(Status.KEY_EEXISTS)
    document.set_body(work.value)


def _delete_whole(document: OpenDocument, work: PathWork) -> None:
    _check_whole(work)
    document.set_body(None)


def _replace_with_xattr(document: OpenDocument, work: PathWork) -> None:
    if not work.is_xattr:
        raise Refusal(Status.SUBDOC_XATTR_INVALID_FLAG_COMBO)
    steps = _steps(work)
    document.set_text(paths.get(document.xattr_text(str(steps[0])), steps))


def _check_whole(work: PathWork) -> None:
    if work.path or work.is_xattr:
        raise Refusal(Status.EINVAL, "an operation on the whole document takes no path")


WHOLE: Final[dict[int, Callable[[OpenDocument, PathWork], None]]] = {
    Opcode.SET: _set_whole,
    Opcode.ADD: _add_whole,
    Opcode.DELETE: _delete_whole,
    REPLACE_BODY_WITH_XATTR: _replace_with_xattr,
}


def expand(document: OpenDocument, value: bytes, identity: Identity) -> bytes:
    """A macro's value, as JSON; anything that does not look like a macro stays as it is."""
    text = value.decode("utf-8", "replace").strip()
    if not (text.startswith('"${') and text.endswith('}"')):
        return value
    name = text[3:-2]
    if name.startswith("$document"):
        return _document_macro(document, name)
    made = {
        "Mutation.CAS": lambda: identity.cas_text,
        "Mutation.seqno": lambda: f"{identity.seqno:#018x}",
        "Mutation.value_crc32c": lambda: f"{crc32c(document.body or b''):#010x}",
    }.get(name)
    if made is None:
        raise Refusal(Status.SUBDOC_XATTR_UNKNOWN_MACRO)
    return json.dumps(made()).encode()


def _document_macro(document: OpenDocument, name: str) -> bytes:
    try:
        return paths.get(document.virtual("$document"), paths.parse_path(name.encode())).encode()
    except Refusal as refusal:
        raise Refusal(Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO) from refusal
