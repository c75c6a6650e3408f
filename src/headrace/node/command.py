"""One row of the table of commands: who may send it, what it needs, which function answers it.

Imports: wire.opcodes, node.users.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from headrace.node.users import Role
from headrace.wire.opcodes import FrameInfoId, Opcode

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.replies import Outcome
    from headrace.node.session import Session

WRITE_INFOS: Final = frozenset({FrameInfoId.DURABILITY, FrameInfoId.PRESERVE_TTL})
"""Frame infos of a command that changes a document."""


NO_INFOS: Final = frozenset[FrameInfoId]()


class Quiet(Enum):
    """Which reply a quiet opcode leaves out."""

    SUCCESS = auto()
    MISS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One opcode: ``role`` NONE needs no login, ``bucket`` needs one selected."""

    opcode: Opcode
    # Each function takes its own message class; the codec's table is what ties opcode and class.
    function: Callable[[Session, Any], Outcome]
    role: Role = Role.NONE
    bucket: bool = False
    quiet: Quiet | None = None
    infos: frozenset[FrameInfoId] = frozenset()


def reading(
    function: Callable[[Session, Any], Outcome], opcode: Opcode, quiet: Opcode | None = None
) -> tuple[Command, ...]:
    """The rows of a command that reads a bucket, and of its quiet twin."""
    rows = [Command(opcode=opcode, function=function, role=Role.READ, bucket=True)]
    if quiet is not None:
        rows.append(
            Command(opcode=quiet, function=function, role=Role.READ, bucket=True, quiet=Quiet.MISS)
        )
    return tuple(rows)


def writing(
    function: Callable[[Session, Any], Outcome],
    opcode: Opcode,
    quiet: Opcode | None = None,
    *,
    infos: frozenset[FrameInfoId] = WRITE_INFOS,
) -> tuple[Command, ...]:
    """The rows of a command that changes documents, and of its quiet twin."""
    return tuple(
        Command(
            opcode=number,
            function=function,
            role=Role.WRITE,
            bucket=True,
            quiet=rule,
            infos=infos,
        )
        for number, rule in ((opcode, None), (quiet, Quiet.SUCCESS))
        if number is not None
    )


def administering(
    function: Callable[[Session, Any], Outcome], opcode: Opcode, *, bucket: bool = True
) -> tuple[Command, ...]:
    """The row of a command for administrators."""
    return (Command(opcode=opcode, function=function, role=Role.ADMIN, bucket=bucket),)
