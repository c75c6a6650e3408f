"""Exit codes: those a shell and a script expect."""

from __future__ import annotations

from headrace.cli.exits import MEANINGS, Exit


def test_the_codes_are_those_of_the_shell() -> None:
    assert (Exit.OK, Exit.FAILED, Exit.USAGE, Exit.INTERRUPTED) == (0, 1, 2, 130)


def test_every_code_has_one_meaning() -> None:
    assert set(MEANINGS) == set(Exit)
    assert len(set(MEANINGS.values())) == len(Exit)
