"""Lines that a machine can read, whatever a peer puts into them."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError
from headrace.node.logs import FACT_SIZE_MAX, LOGGER, configure, note

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def logger_as_before() -> Iterator[None]:
    before = (LOGGER.handlers[:], LOGGER.level, LOGGER.propagate)
    yield
    LOGGER.handlers[:], LOGGER.propagate = before[0], before[2]
    LOGGER.setLevel(before[1])


def lines(form: str, **facts: object) -> list[str]:
    stream = io.StringIO()
    configure(form, stream=stream)
    note("happened", **facts)  # type: ignore[arg-type]
    return stream.getvalue().splitlines()


def test_a_text_line_has_the_facts_as_pairs() -> None:
    (line,) = lines("text", connection=3, reason="a b")
    assert line.endswith(' info happened connection=3 reason="a b"')


def test_a_json_line_is_an_object() -> None:
    (line,) = lines("json", connection=3, reason="a b")
    told = json.loads(line)
    assert (told["what"], told["connection"], told["reason"]) == ("happened", 3, "a b")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_peer_cannot_write_lines_of_its_own(form: str) -> None:
    (line,) = lines(form, agent="x\n2026 error forged=1", big="y" * 10_000)
    assert len(line) < FACT_SIZE_MAX + 300


def test_what_is_below_the_level_is_not_written() -> None:
    stream = io.StringIO()
    configure("text", level=logging.WARNING, stream=stream)
    note("quiet")
    note("loud", logging.ERROR)
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_an_exception_is_written_with_its_trace() -> None:
    for form in ("text", "json"):
        stream = io.StringIO()
        configure(form, stream=stream)
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            LOGGER.exception("failed", extra={"facts": {"opcode": "GET"}})
        assert "ZeroDivisionError" in stream.getvalue()


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="text, json"):
        configure("xml")
