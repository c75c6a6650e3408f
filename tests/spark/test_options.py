"""The options of the format: checked before anything is opened."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.spark.options import OPTIONS, Snapshots, SourceOptions, Values, start_time

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "spark.md"
URL = {"url": "couchbase://h/b"}


def test_defaults_are_everything_from_the_beginning_as_bytes() -> None:
    options = SourceOptions.of(URL)
    assert (options.start, options.snapshots) == ("beginning", Snapshots.WHOLE)
    assert (options.values, options.rows_max) == (Values.BINARY, None)
    assert 1 <= options.partitions <= 8


def test_names_have_no_case() -> None:
    options = SourceOptions.of({"URL": "u", "MAXROWSPERBATCH": "10", "Values": "STRING"})
    assert (options.url, options.rows_max, options.values) == ("u", 10, Values.STRING)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "option url is missing"),
        ({**URL, "colour": "red"}, "option colour is unknown"),
        ({**URL, "password": "x"}, "option password is refused"),
        ({**URL, "values": "xml"}, "allowed: binary, string, json, none"),
        ({**URL, "values": "json"}, "go together"),
        ({**URL, "columns": "a:bigint"}, "go together"),
        ({**URL, "values": "json", "columns": "a"}, "expected path:type"),
        ({**URL, "values": "json", "columns": "a:int"}, "has type int"),
        ({**URL, "snapshots": "half"}, "allowed: whole, exact"),
        ({**URL, "maxRowsPerBatch": "0"}, "maxRowsPerBatch is '0'"),
        ({**URL, "partitions": "9999"}, "partitions is '9999'"),
        ({**URL, "pollSeconds": "soon"}, "pollSeconds is 'soon'"),
        ({**URL, "start": "yesterday"}, "option start is 'yesterday'"),
        ({**URL, "collections": "a.b", "scope": "a"}, "both given"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        SourceOptions.of(given)


def test_a_start_is_a_word_a_time_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text("{}")
    for start in ("beginning", "now", "2026-01-31T12:00:00Z", str(path)):
        assert SourceOptions.of({**URL, "start": start}).start == start
    assert start_time("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC)
    assert start_time("now") is None


def test_lists_are_taken_apart() -> None:
    options = SourceOptions.of({**URL, "collections": "a.b, c.d", "events": "mutation,deletion"})
    assert options.collections == ("a.b", "c.d")
    assert options.events == {"mutation", "deletion"}


def test_every_option_has_a_meaning() -> None:
    assert all(OPTIONS.values())


def options_table() -> str:
    """The options as the guide shows them."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in OPTIONS.items()]
    return "\n".join(["| option | what it is |", "|---|---|", *rows])


def test_the_guide_has_every_option_as_the_code_has_it() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    shown = text.partition("<!-- options -->\n")[2].partition("\n<!-- end of options -->")[0]
    assert shown == options_table()
