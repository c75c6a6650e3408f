"""Write the generated part of docs/protocol.md from LAYOUTS and the messages' own docstrings.

``python -m tools.reference`` rewrites the page between its two marks; a test fails when the page
says something else than the code does. Everything outside the marks is written by hand.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.wire.codec import LAYOUTS
from headrace.wire.dialect import Dialect
from headrace.wire.layout import (
    REPLY,
    REQUEST,
    SERVER_REPLY,
    SERVER_REQUEST,
    Field,
    Fixed,
    Row,
)
from headrace.wire.opcodes import Opcode, ServerOpcode

if TYPE_CHECKING:
    from headrace.wire.message import Message

PAGE: Final = Path(__file__).parent.parent / "docs" / "protocol.md"
BEGIN: Final = "<!-- generated from src/headrace/wire by `make reference`: begin -->"
END: Final = "<!-- generated: end -->"


def protocol_section() -> str:
    """Return the generated chapter: one section per opcode."""
    parts = []
    for title, opcodes in _chapters():
        parts.append(f"## {title}\n")
        parts.extend(_opcode_section(opcode) for opcode in opcodes)
    parts.append("## Requests of the server (magic 82)\n")
    parts.append(_server_section())
    return "\n".join(parts)


def _chapters() -> list[tuple[str, list[Opcode]]]:
    streams = [opcode for opcode in Opcode if 0x50 <= opcode <= 0x67]
    streams += [Opcode.GET_ALL_VB_SEQNOS, Opcode.FAILOVER_LOG]
    subdocument = [opcode for opcode in Opcode if 0xC5 <= opcode <= 0xD2]
    login = [Opcode.HELLO, Opcode.SASL_LIST_MECHS, Opcode.SASL_AUTH, Opcode.SASL_STEP]
    login += [Opcode.SELECT_BUCKET, Opcode.LIST_BUCKETS, Opcode.GET_ERROR_MAP]
    login += [Opcode.SET_CLUSTER_CONFIG, Opcode.GET_CLUSTER_CONFIG]
    seen = {*streams, *subdocument, *login}
    documents = [
        opcode
        for opcode in Opcode
        if opcode not in seen and (opcode <= 0x1E or 0x91 <= opcode <= 0xA9 or opcode == 0xB6)
    ]
    seen.update(documents)
    rest = [opcode for opcode in Opcode if opcode not in seen]
    return [
        ("Change streams", streams),
        ("Login and configuration", login),
        ("Documents", documents),
        ("Sub-documents", subdocument),
        ("Administration and collections", rest),
    ]


def _opcode_section(opcode: Opcode) -> str:
    lines = [f"### {opcode.name} (0x{opcode:02x})\n"]
    for kind in (REQUEST, REPLY):
        rows = [row for row in LAYOUTS if row.opcode == opcode and row.kind == kind]
        lines.extend(_messages(rows))
    return "\n".join(lines)


def _server_section() -> str:
    lines = []
    for opcode in ServerOpcode:
        lines.append(f"### {opcode.name} (82 0x{opcode:02x})\n")
        for kind in (SERVER_REQUEST, SERVER_REPLY):
            rows = [row for row in LAYOUTS if row.opcode == opcode and row.kind == kind]
            lines.extend(_messages(rows))
    return "\n".join(lines)


def _messages(rows: list[Row]) -> list[str]:
    lines = []
    for message in dict.fromkeys(row.message for row in rows):
        lines.append(f"**{message.__name__}**: {_doc(message)}\n")
        lines += ["| layout | sent in | extras | key | value |", "|---|---|---|---|---|"]
        lines += [_line(row) for row in rows if row.message is message]
        lines.append("")
    return lines


def _doc(message: type[Message]) -> str:
    text = inspect.getdoc(message) or ""
    return " ".join(text.replace("``", "`").split())


def _line(row: Row) -> str:
    extras = _places(row.extras.fields) or "none"
    key = {"no key": "none", "a key": "yes", "a key or none": "optional"}[row.key]
    value = str(row.value)
    if isinstance(row.value, Fixed):
        value = _places(row.value.fields.fields)
    if row.version is not None:
        extras = f"0:1 version = {row.version}"
    return f"| {row.name} | {_dialects(row)} | {extras} | {key} | {value} |"


def _places(fields: tuple[Field, ...]) -> str:
    at, places = 0, []
    for field in fields:
        places.append(f"{at}:{field.size} {field.name}")
        at += field.size
    return ", ".join(places)


def _dialects(row: Row) -> str:
    if not row.speak:
        return "never (only read)"
    order = list(Dialect)
    spoken = [dialect.value for dialect in order if dialect in row.speak]
    if len(spoken) == len(order):
        return "every dialect"
    return ", ".join(spoken)


def with_generated(page: str) -> str:
    """Return the page with its generated part made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or not after:
        raise SystemExit(f"{PAGE.name} lacks its marks {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{protocol_section()}\n{END}{after}"


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(with_generated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name} is up to date\n")


if __name__ == "__main__":
    main()
