"""The options of `format("dcp")`: their names, what they may be, and what they are when not given.

Spark gives options as text and without regard to case. Everything is checked here, before anything
is opened; a wrong one is a ConfigError that names it.

Imports: errors, spark.flatten.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.errors import ConfigError
from headrace.spark.flatten import Flattening

if TYPE_CHECKING:
    from collections.abc import Mapping

Choice = TypeVar("Choice", bound=Enum)

PARTITIONS_MAX: Final = 1024
PARTITIONS_DEFAULT: Final = 8
POLL_SECONDS: Final = 0.5
PATIENCE_SECONDS: Final = 120.0


class Values(Enum):
    """What becomes of a document's bytes."""

    BINARY = "binary"
    STRING = "string"
    JSON = "json"
    NONE = "none"


class Snapshots(Enum):
    """Whether a batch holds whole snapshots or stops exactly where it was planned to."""

    WHOLE = "whole"
    EXACT = "exact"


OPTIONS: Final[dict[str, str]] = {
    "url": "connection string: couchbase://host[:port][,host...]/bucket, couchbases:// for TLS",
    "bucket": "the bucket, when the url does not name it",
    "user": "who we are; the password comes from the environment (HEADRACE_PASSWORD)",
    "credentialsFile": "file with the user on one line and the password on the next",
    "collections": "only these, as scope.name, comma between them",
    "scope": "only this scope",
    "keyPrefix": "only documents whose key begins so",
    "events": "only these events, comma between them; rollback rows always come",
    "start": "beginning, now, a time (ISO 8601), or the path of a token file",
    "snapshots": "whole or exact",
    "values": "binary, string, json or none",
    "columns": "for values=json: path:type, comma between them",
    "maxRowsPerBatch": "rows a micro-batch is planned for",
    "maxBytesPerBatch": "bytes a micro-batch is planned for",
    "partitions": "tasks that read at most",
    "pollSeconds": "how long the planner waits for news before it says there is none",
    "patienceSeconds": "how long a task waits for a source that is away",
    "stateDirectory": "directory all executors can write to, for the positions they reached",
    "reportHost": "address of the planner's machine for executors on other machines",
    "mode": "of the sink: upsert, delete or change",
    "keyColumn": "of the sink: the column of keys",
    "valueColumn": "of the sink: the column of documents; without it a row becomes JSON",
    "collection": "of the sink: the collection to write to, as scope.name",
}
"""Name -> what it is."""
SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname"})
"""Options that Spark hands on though they are its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a reader, checked."""

    url: str
    bucket: str | None
    user: str | None
    credentials_file: str | None
    collections: tuple[str, ...]
    scope: str | None
    key_prefix: str
    events: frozenset[str]
    start: str
    snapshots: Snapshots
    values: Values
    flattening: Flattening
    rows_max: int | None
    bytes_max: int | None
    partitions: int
    poll_seconds: float
    patience_seconds: float
    state_directory: str | None
    report_host: str

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """From Spark's options; ConfigError names the first that is wrong."""
        given = checked_names(options)
        values = _choice(given, "values", Values, Values.BINARY)
        flattening = Flattening.of(_columns(given.get("columns", "")))
        if (values is Values.JSON) != bool(flattening.wanted):
            raise ConfigError("values=json and columns=path:type,... go together")
        if given.get("collections") and given.get("scope"):
            raise ConfigError("collections and scope are both given; one of them narrows a stream")
        return cls(
            url=required(given, "url"),
            bucket=given.get("bucket"),
            user=given.get("user"),
            credentials_file=given.get("credentialsfile"),
            collections=_list(given.get("collections", "")),
            scope=given.get("scope"),
            key_prefix=given.get("keyprefix", ""),
            events=frozenset(_list(given.get("events", ""))),
            start=_start(given.get("start", "beginning")),
            snapshots=_choice(given, "snapshots", Snapshots, Snapshots.WHOLE),
            values=values,
            flattening=flattening,
            rows_max=_limit(given, "maxRowsPerBatch"),
            bytes_max=_limit(given, "maxBytesPerBatch"),
            partitions=_limit(given, "partitions", PARTITIONS_MAX)
            or min(PARTITIONS_DEFAULT, os.cpu_count() or 1),
            poll_seconds=_seconds(given, "pollSeconds", POLL_SECONDS),
            patience_seconds=_seconds(given, "patienceSeconds", PATIENCE_SECONDS),
            state_directory=given.get("statedirectory"),
            report_host=given.get("reporthost", "127.0.0.1"),
        )


def checked_names(options: Mapping[str, str]) -> dict[str, str]:
    """The options by lower-case name; an unknown one is refused."""
    known = {name.lower(): name for name in OPTIONS}
    given = {}
    for name, value in options.items():
        if name.lower() == "password":
            raise ConfigError(
                "option password is refused, options are shown in plans; set HEADRACE_PASSWORD "
                "or give credentialsFile"
            )
        if name.lower() not in known and name.lower() not in SPARKS_OWN:
            raise ConfigError(f"option {name} is unknown; allowed: {', '.join(OPTIONS)}")
        given[name.lower()] = value
    return given


def required(given: Mapping[str, str], name: str) -> str:
    """An option that has no default."""
    value = given.get(name.lower())
    if not value:
        raise ConfigError(f"option {name} is missing: {OPTIONS[name]}")
    return value


def _list(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())


def _columns(text: str) -> dict[str, str]:
    found = {}
    for one in _list(text):
        path, mark, kind = one.rpartition(":")
        if not mark or not path:
            raise ConfigError(f"option columns has {one!r}, expected path:type")
        found[path] = kind.strip()
    return found


def _choice(given: Mapping[str, str], name: str, kind: type[Choice], default: Choice) -> Choice:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        return kind(text.lower())
    except ValueError:
        allowed = ", ".join(str(one.value) for one in kind)
        raise ConfigError(f"option {name} is {text!r}, allowed: {allowed}") from None


def _limit(given: Mapping[str, str], name: str, most: int = 2**62) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ConfigError(f"option {name} is {text!r}, allowed: 1..{most}")
    return int(text)


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name.lower())
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 86_400:
        raise ConfigError(f"option {name} is {text!r}, allowed: seconds, 0 to a day")
    return seconds


def _start(text: str) -> str:
    """Check a start now; the planner finds its seqnos later."""
    if text in ("beginning", "now") or start_time(text) is not None or Path(text).is_file():
        return text
    raise ConfigError(
        f"option start is {text!r}, allowed: beginning, now, a time such as "
        "2026-01-31T12:00:00Z, or the path of a token file"
    )


def start_time(text: str) -> datetime | None:
    """The time a start names; None if it is no time. Without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
