"""One line per thing that happened: a name and its facts, as key=value or as JSON.

`note` is the only way the node writes to the log, so that every line can be searched by its facts.
Facts are values, never sentences with values inside; ``reason`` is the one sentence a line may
have.

Imports: errors.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from typing import TextIO

LOGGER: Final = logging.getLogger("headrace.node")
FORMATS: Final = ("text", "json")
FACT_SIZE_MAX: Final = 512
"""Characters of one fact that are written: peers choose names and agents."""


def note(what: str, /, level: int = logging.INFO, **facts: object) -> None:
    """Write one line: what happened and its facts."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, what, extra={"facts": facts})


class _TextLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = _facts_of(record)
        parts = [self.formatTime(record), record.levelname.lower(), record.getMessage()]
        parts += (f"{name}={_quoted(value)}" for name, value in facts.items())
        return " ".join(parts) + _trace_of(self, record)


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "what": record.getMessage(),
            **{name: _plain(value) for name, value in _facts_of(record).items()},
        }
        if trace := _trace_of(self, record):
            line["trace"] = trace.strip()
        return json.dumps(line, ensure_ascii=False)


def _facts_of(record: logging.LogRecord) -> dict[str, object]:
    facts = getattr(record, "facts", None)
    return facts if isinstance(facts, dict) else {}


def _trace_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return "\n" + formatter.formatException(record.exc_info) if record.exc_info else ""


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | bool | None) else str(value)[:FACT_SIZE_MAX]


def _quoted(value: object) -> str:
    text = str(value)[:FACT_SIZE_MAX]
    # A peer's text must not be able to begin a line or a fact of its own.
    return text if text.isprintable() and text and not set(text) & set(' "=') else json.dumps(text)


def configure(form: str, *, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send the node's lines to ``stream`` (standard error) in that form."""
    if form not in FORMATS:
        raise ConfigError(f"log format {form!r} is unknown; allowed: {', '.join(FORMATS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLine() if form == "json" else _TextLine())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(level)
    LOGGER.propagate = False
