"""`headrace tables`: what a person or a script sees, and that nothing is lost."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli.tables import since_of
from headrace.errors import ConfigError
from headrace.spark.jobs import LocalRunner
from headrace.spark.sync import Sync, SyncOptions
from headrace.spark.tables.state import StateOptions
from headrace.spark.tables.views import arrow_changes, arrow_state
from headrace.spark.verify import verify
from tests.spark.producer import InMemory, Producer

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def headrace(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["tables", *arguments])
    return done.exit_code, done.stdout, done.stderr


def told(*arguments: str) -> dict[str, Any]:
    code, output, error = headrace(*arguments, "--json")
    assert code == 0, error
    found = json.loads(output)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def producer(tmp_path: Path) -> Producer:
    """A bucket whose tables have several turns, tails and a rollback."""
    producer = Producer.with_vbuckets(4)
    for turn in range(4):
        for number in range(40 if turn == 0 else 3):
            producer.put(number % 4, f"k{number}", f"v{turn}.{number}")
        if turn == 2:
            producer.fail_over(1, 5)
        list(sync_of(producer, tmp_path).once())
    return producer


def sync_of(producer: Producer, path: Path) -> Sync:
    options = SyncOptions(parts=2, state=StateOptions(rebuild_turns=100))
    return Sync(InMemory(producer), path, LocalRunner(), options)


def test_show_tells_what_is_there_and_where_it_stands(producer: Producer, tmp_path: Path) -> None:
    del producer
    record = told("show", str(tmp_path))
    assert (record["turn"], record["vbuckets"], record["parts"]) == (4, 4, 2)
    assert record["changes"]["rows"] == arrow_changes(tmp_path, withdrawn=True).num_rows
    assert record["rolled_back_vbuckets"] == 1
    assert record["state"]["turn"] == 4
    assert record["state"]["tails"] > 0
    code, output, _ = headrace("show", str(tmp_path))
    assert code == 0
    assert "turn                   4" in output


def test_compaction_keeps_every_row_and_merges_the_tails(
    producer: Producer, tmp_path: Path
) -> None:
    before, state = arrow_changes(tmp_path, withdrawn=True), arrow_state(tmp_path)
    dry = told("compact", str(tmp_path), "--dry-run")
    assert dry["files"] == told("show", str(tmp_path))["changes"]["files"], "nothing was done"
    record = told("compact", str(tmp_path))
    assert (record["files_before"], record["files_after"]) == (dry["files"], 2)
    after = told("show", str(tmp_path))
    assert after["state"]["tails"] == 0
    assert after["turn"] == after["state"]["turn"] == 5
    order = [("vbucket", "ascending"), ("epoch", "ascending"), ("seqno", "ascending")]
    assert arrow_changes(tmp_path, withdrawn=True).sort_by(order) == before.sort_by(order)
    assert arrow_state(tmp_path).sort_by("key") == state.sort_by("key")
    assert verify(InMemory(producer), tmp_path, LocalRunner()).count == 0


def test_a_second_compaction_has_nothing_to_do(producer: Producer, tmp_path: Path) -> None:
    del producer
    headrace("compact", str(tmp_path))
    code, output, error = headrace("compact", str(tmp_path))
    assert (code, output, error) == (0, "2 files became 2\n", "")


def test_progress_goes_to_standard_error(producer: Producer, tmp_path: Path) -> None:
    del producer
    _, _, error = headrace("compact", str(tmp_path))
    assert "compact: 2 of 2 parts" in error


def test_retention_forgets_and_the_sync_goes_on(producer: Producer, tmp_path: Path) -> None:
    record = told("retain", str(tmp_path), "--since", "2500-01-01")
    assert record["rows_after"] < record["rows_before"]
    producer.put(0, "k0", "later")
    list(sync_of(producer, tmp_path).once())
    assert verify(InMemory(producer), tmp_path, LocalRunner()).count == 0


def test_vacuum_deletes_what_compaction_left_and_nothing_else(
    producer: Producer, tmp_path: Path
) -> None:
    headrace("compact", str(tmp_path))
    dry = told("vacuum", str(tmp_path), "--hours", "0", "--force", "--dry-run")
    assert dry["files"] > 0 < dry["bytes"]
    record = told("vacuum", str(tmp_path), "--hours", "0", "--force")
    assert (record["files"], record["bytes"]) == (dry["files"], dry["bytes"])
    assert told("vacuum", str(tmp_path), "--hours", "0", "--force")["files"] == 0
    assert verify(InMemory(producer), tmp_path, LocalRunner()).count == 0


def test_a_vacuum_keeps_a_week_unless_told_otherwise(producer: Producer, tmp_path: Path) -> None:
    del producer
    headrace("compact", str(tmp_path))
    assert told("vacuum", str(tmp_path))["files"] == 0


def test_a_table_without_state_is_kept_too(tmp_path: Path) -> None:
    producer = Producer.with_vbuckets(2)
    for turn in range(2):
        producer.put(0, "k", f"v{turn}")
        sync = Sync(InMemory(producer), tmp_path, LocalRunner(), SyncOptions(parts=1, state=None))
        list(sync.once())
    assert told("compact", str(tmp_path))["files_after"] == 1
    assert "state" not in told("show", str(tmp_path))
    assert told("vacuum", str(tmp_path), "--dry-run")["deleted"] == {"changes": []}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["show", "."], "has no changes table"),
        (["compact", "."], "has no changes table"),
        (["vacuum", "."], "has no changes table"),
        (["vacuum", ".", "--hours", "0"], "--force"),
        (["retain", "."], "--days or --since"),
        (["retain", ".", "--days", "1", "--since", "2026-01-01"], "not both"),
        (["retain", ".", "--since", "yesterday"], "expected a time"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = headrace(*arguments)
    assert code == 1
    assert complaint in error
    assert "Traceback" not in error


def test_a_time_is_days_ago_or_given() -> None:
    assert since_of(1.5, None, NOW) == datetime(2026, 1, 29, 12, tzinfo=UTC)
    assert since_of(None, "2025-12-24T00:00:00", NOW) == datetime(2025, 12, 24, tzinfo=UTC)
    with pytest.raises(ConfigError, match="before the year 1"):
        since_of(1e6, None, NOW)
