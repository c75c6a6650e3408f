"""Every command a node answers, by opcode: one small function each, one file per family.

A function takes the session and the message, and returns a reply or raises a `Refusal`; see
`headrace.node.replies`. What opcode needs which role, and what a quiet twin leaves out, is in the
rows at the end of each file.

Imports: errors, history, wire, protocol, store, node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.node.commands import (
    admin,
    collections,
    history,
    login,
    meta,
    reading,
    stats,
    streams,
    subdoc,
    writing,
)

if TYPE_CHECKING:
    from headrace.node.command import Command

COMMANDS: Final[dict[int, Command]] = {
    int(row.opcode): row
    for family in (
        admin,
        collections,
        history,
        login,
        meta,
        reading,
        stats,
        streams,
        subdoc,
        writing,
    )
    for row in family.ROWS
}
"""Opcode -> the row that answers it; what is not here is UNKNOWN_COMMAND."""
