"""docs/protocol.md says what the layout rows say."""

from __future__ import annotations

import pytest

from headrace.wire.opcodes import Opcode
from tools.reference import PAGE, protocol_section, with_generated


def test_the_page_is_what_the_code_says() -> None:
    """`make reference` brings it up to date."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_generated(page)


def test_every_opcode_has_one_section() -> None:
    section = protocol_section()
    for opcode in Opcode:
        assert section.count(f"### {opcode.name} (0x{opcode:02x})\n") == 1, opcode.name


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match="lacks its marks"):
        with_generated("# no marks\n")
