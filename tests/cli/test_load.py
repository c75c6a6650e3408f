"""headrace load: files and made-up documents arrive."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.cli.load import early
from headrace.client.bucket import connect
from tests.cli.node_for_commands import call, node_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def url() -> Iterator[str]:
    with node_url() as found:
        yield found


def rows(url: str) -> dict[str, dict[str, object]]:
    with connect(url) as bucket:
        return {
            row["key"].decode(): row
            for batch in bucket.changes(until="now")
            for row in batch.to_pylist()
        }


def test_made_up_documents_arrive(url: str) -> None:
    said = call("load", url, "--generate", "500", "--size", "100").stdout
    assert said.startswith("500 writes, ")
    found = rows(url)
    assert len(found) == 500
    assert all(len(row["value"]) == 100 for row in found.values())  # type: ignore[arg-type]


def test_a_rate_spreads_writes_over_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("headrace.cli.load.time.sleep", waited.append)
    call("load", url, "--generate", "50", "--rate", "10")
    assert len(waited) == 49, "each write but the first is due a tenth of a second after another"
    assert len(rows(url)) == 50


def test_a_write_waits_until_it_is_due_and_one_that_is_late_does_not() -> None:
    assert early(0, 100.0, 0.0) == 0
    assert early(1, 100.0, 0.0) == 0, "a turn is written at once"
    assert early(10, 100.0, 0.02) == pytest.approx(0.08)
    assert early(10, 100.0, 5.0) == 0


def test_deletes_and_expiry_are_shares(url: str) -> None:
    words = ["--keys", "50", "--deletes", "0.3", "--expiring", "0.5", "--expiry", "1000"]
    call("load", url, "--generate", "1000", *words)
    found = rows(url)
    assert 0 < sum(row["event"] == 2 for row in found.values()) < 50
    assert 0 < sum(bool(row["expiry"]) for row in found.values()) < 50


def test_lines_of_a_file_arrive_under_their_keys(url: str, tmp_path: Path) -> None:
    file = tmp_path / "people.jsonl"
    file.write_text('{"id": 1, "name": "Ada"}\n\n{"id": 2, "name": "Alan"}\n', encoding="utf-8")
    call("load", url, str(file), "--key-field", "user::{id}")
    found = rows(url)
    value = found["user::1"]["value"]
    assert isinstance(value, bytes)
    assert json.loads(value)["name"] == "Ada"
    assert set(found) == {"user::1", "user::2"}


def test_mistakes_are_sentences(url: str, tmp_path: Path) -> None:
    assert "either FILE or --generate" in call("load", url, code=1).stderr
    file = tmp_path / "x.jsonl"
    file.write_text("{}\n", encoding="utf-8")
    refused = call("load", url, str(file), "--key-field", "id", code=1)
    assert "row 1 has no field 'id' for its key" in refused.stderr
