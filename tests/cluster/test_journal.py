"""The journal: what is in it survives, one manager at a time holds it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from headrace.cluster.journal import Entry, Journal, read_entries, write_durably
from headrace.cluster.planning import Kind, Move, active_move
from headrace.cluster.steps import Step
from headrace.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

REPLICA = Move(
    vbucket=4, kind=Kind.REPLICA, source=None, target="c", before=("a", None), after=("a", "c")
)


def entry(vbucket: int = 1, step: Step = Step.WRITING) -> Entry:
    return Entry(bucket="default", move=active_move(vbucket, ("a", "b"), "b"), step=step)


def test_what_was_noted_is_found_by_the_next_manager(tmp_path: Path) -> None:
    path = tmp_path / "moves.json"
    other = Entry(bucket="orders", move=REPLICA, step=Step.CATCHING_UP)
    with Journal(path) as journal:
        journal.note(entry(1), entry(2), other)
        journal.note(entry(2, Step.TAKING_OVER))
    with Journal(path) as journal:
        assert journal.entries == (entry(1), entry(2, Step.TAKING_OVER), other)
    assert read_entries(path) == journal.entries


def test_a_journal_without_moves_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "moves.json"
    with Journal(path) as journal:
        journal.note(entry(1))
        journal.forget("orders", 1)
        assert path.is_file()
        journal.forget("default", 1)
        assert not path.exists()
    assert read_entries(path) == ()


def test_a_second_manager_is_refused_while_one_runs(tmp_path: Path) -> None:
    with (
        Journal(tmp_path / "moves.json"),
        pytest.raises(ClusterError, match="another manager holds"),
    ):
        Journal(tmp_path / "moves.json")
    with Journal(tmp_path / "moves.json"):
        pass


def test_a_crash_while_writing_leaves_the_journal_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "moves.json"
    with Journal(path) as journal:
        journal.note(entry(1))

        def fail(_number: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(ConfigError, match="cannot be written"):
                journal.note(entry(2))
        assert read_entries(path) == (entry(1),)


def test_nothing_is_written_when_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "moves.json"
    with Journal(path) as journal:
        journal.note(entry(1))
        path.write_bytes(b"marked")
        journal.note(entry(1))
        assert path.read_bytes() == b"marked"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot be understood"),
        ('{"format": 2, "moves": []}', "has format 2, this one is 1"),
        ('{"format": 1, "moves": [{}]}', "cannot be understood"),
        ('{"format": 1, "moves": [{"before": 1, "after": 2}]}', "cannot be understood"),
    ],
)
def test_a_journal_that_cannot_be_read_is_not_taken_for_empty(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "moves.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        Journal(path)
    path.unlink()
    with Journal(path):
        pass  # and the lock was let go


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    write_durably(path, b"one")
    write_durably(path, json.dumps({"two": 2}).encode())
    assert json.loads(path.read_bytes()) == {"two": 2}
    assert [one.name for one in tmp_path.iterdir()] == ["map.json"]
