"""The table of commands: complete, and its rows make sense."""

from __future__ import annotations

import pytest

from headrace.node.command import Command, Quiet
from headrace.node.commands import COMMANDS
from headrace.node.session import STREAM_OPCODES
from headrace.node.users import Role
from headrace.wire.opcodes import Opcode

BEFORE_LOGIN = {
    Opcode.HELLO,
    Opcode.SASL_LIST_MECHS,
    Opcode.SASL_AUTH,
    Opcode.SASL_STEP,
    Opcode.SELECT_BUCKET,
    Opcode.GET_ERROR_MAP,
    Opcode.VERSION,
    Opcode.KV_NOOP,
    Opcode.QUIT,
    Opcode.QUITQ,
}


def test_every_opcode_there_is_has_an_answer() -> None:
    assert set(COMMANDS) | STREAM_OPCODES == {int(opcode) for opcode in Opcode}
    assert not set(COMMANDS) & STREAM_OPCODES


def test_what_needs_no_login_is_a_short_list() -> None:
    assert {opcode for opcode, row in COMMANDS.items() if row.role == Role.NONE} == BEFORE_LOGIN


@pytest.mark.parametrize("row", COMMANDS.values(), ids=lambda row: row.opcode.name)
def test_quiet_opcodes_have_a_rule_and_others_have_none(row: Command) -> None:
    quiet = row.opcode.name.endswith("Q") or "Q_" in row.opcode.name
    assert (row.quiet is not None) == (quiet and row.opcode != Opcode.QUITQ)
    if row.quiet is Quiet.SUCCESS:
        assert row.role >= Role.WRITE, "reads never hide a success"
