"""Scenarios: faults said in advance, one step per line.

    # a consumer's worst day
    at vbucket 3 seqno 500: fail over losing 20
    then after 100ms: cut connection "sync:*"
    next stream-request vbucket 7: rollback to 120

A line is a trigger, a colon and a lever; both are phrases of `headrace.node.fault_table`. Steps
wait for their triggers independently of each other, and each fires once; `then` waits for the step
above it. Names with colons or spaces stand in quotes; `#` begins a comment.

A step whose trigger has a seqno counts `losing` from it, so the branch begins at the same place
whatever was written meanwhile.

Imports: errors, node.fault_table, node.fault_words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.errors import ConfigError
from headrace.node.fault_table import LEVERS, TRIGGERS, Lever, Trigger
from headrace.node.fault_words import Misread, Values, tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from headrace.node.fault_words import Token

SCENARIO_SIZE_MAX: Final = 1024 * 1024
STEPS_MAX: Final = 1_000
NOW: Final = TRIGGERS["now"]
_WITH_SEQNO: Final = frozenset({"seqno", "sent"})

Row = TypeVar("Row", Lever, Trigger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A lever, its values, and when it is pulled."""

    text: str
    trigger: Trigger
    when: Values
    lever: Lever
    values: Values
    line: int = 0


def read_when(text: str) -> tuple[Trigger, Values]:
    """The trigger of a text without its colon; ConfigError with the column."""
    try:
        return _trigger(tokens_of(text), len(text) + 1)
    except Misread as error:
        raise ConfigError(f"column {error.column} of {text!r}: {error}") from error


def read_step(text: str, *, source: str = "step", line: int = 1) -> Step:
    """The step of one line; ConfigError with line and column."""
    try:
        return _step(text, tokens_of(text), line)
    except Misread as error:
        raise ConfigError(f"{source}, line {line}, column {error.column}: {error}") from error


def read_scenario(text: str, *, source: str = "scenario") -> tuple[Step, ...]:
    """Every step of a text, in order; ConfigError for the first line that is wrong."""
    steps: list[Step] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            tokens = tokens_of(line)
        except Misread as error:
            place = f"{source}, line {number}, column {error.column}"
            raise ConfigError(f"{place}: {error}") from error
        if not tokens:
            continue
        step = read_step(line, source=source, line=number)
        if step.trigger.name == "then" and not steps:
            column = tokens[0].column
            raise ConfigError(
                f"{source}, line {number}, column {column}: `then` has no step above it"
            )
        if len(steps) >= STEPS_MAX:
            raise ConfigError(f"{source}, line {number}: over {STEPS_MAX} steps")
        steps.append(step)
    return tuple(steps)


def read_scenario_file(path: Path) -> tuple[Step, ...]:
    """Every step of a file."""
    try:
        if path.stat().st_size > SCENARIO_SIZE_MAX:
            raise ConfigError(f"scenario {path} is over {SCENARIO_SIZE_MAX} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"scenario {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"scenario {path} is not UTF-8: byte {error.start}") from error
    return read_scenario(text, source=str(path))


def planned(
    lever: Lever, values: Values, trigger: Trigger = NOW, when: Values | None = None, text: str = ""
) -> Step:
    """A step of its parts; ConfigError when the lever needs something nobody says."""
    said = dict(values)
    known = when or {}
    if "lose" in said and trigger.name in _WITH_SEQNO and "seqno" not in said:
        reached, lost = int(known["seqno"]), int(said.pop("lose"))
        if lost > reached:
            raise ConfigError(f"losing {lost} of {reached} seqnos")
        said["seqno"] = reached - lost
    given = {name: "" for name in trigger.gives if name in lever.by_name()}
    lever.check({**given, **said})
    return Step(text=text or lever.name, trigger=trigger, when=known, lever=lever, values=said)


def _step(text: str, tokens: Sequence[Token], line: int) -> Step:
    end = len(text) + 1
    colon = next((at for at, token in enumerate(tokens) if _is_colon(token)), len(tokens))
    at_colon = tokens[colon].column if colon < len(tokens) else end
    trigger, when = _trigger(tokens[:colon], at_colon)
    if colon == len(tokens):
        raise Misread("found the end, expected `:` and a lever", end)
    action = tokens[colon + 1 :]
    lever, values = _said(LEVERS.values(), action, end)
    try:
        made = planned(lever, values, trigger, when)
    except ConfigError as error:
        raise Misread(str(error), action[0].column) from error
    return Step(
        text=text.strip(),
        trigger=made.trigger,
        when=made.when,
        lever=made.lever,
        values=made.values,
        line=line,
    )


def _is_colon(token: Token) -> bool:
    return token.text == ":" and not token.quoted


def _trigger(tokens: Sequence[Token], end: int) -> tuple[Trigger, Values]:
    trigger, when = _said(TRIGGERS.values(), tokens, end)
    return trigger, when


def _said(rows: Iterable[Row], tokens: Sequence[Token], end: int) -> tuple[Row, Values]:
    """The row whose phrase the tokens are; else the mistake of the one that came furthest."""
    rows = tuple(rows)
    mistakes: list[Misread] = []
    for row in rows:
        parameters = {parameter.name: parameter for parameter in row.parameters}
        try:
            values = row.phrase.read(tokens, parameters, end)
            if isinstance(row, Trigger):
                _check_trigger(row, values, end)
        except Misread as error:
            mistakes.append(error)
        else:
            return row, values
    furthest = max(error.column for error in mistakes)
    if not tokens or furthest == tokens[0].column:
        found = repr(tokens[0].text) if tokens else "the end"
        heads = ", ".join(dict.fromkeys(f"`{row.phrase.head}`" for row in rows))
        raise Misread(f"found {found}, expected one of {heads}", furthest)
    sentences = dict.fromkeys(str(error) for error in mistakes if error.column == furthest)
    raise Misread("; or ".join(sentences), furthest)


def _check_trigger(trigger: Trigger, values: Values, end: int) -> None:
    missing = [name for name in trigger.needs if name not in values]
    if missing:
        raise Misread(f"found the end, expected {missing[0]}: `{trigger.phrase}`", end)
