"""The failover with loss: chosen so that it can be seen, told from what the tables say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.demo.losing import place_to_lose, snapshots, withdrawn
from headrace.errors import HeadraceError
from headrace.spark.tables.views import arrow_changes
from tests.demo.tables import pipeline, rolled_back

if TYPE_CHECKING:
    from pathlib import Path


def test_the_vbucket_whose_tables_are_furthest_loses_what_they_have() -> None:
    assert place_to_lose({0: 100, 3: 400, 4: 399}) == (3, 340)
    assert place_to_lose({0: 30}) == (0, 15)


def test_a_loss_nobody_could_see_is_refused() -> None:
    with pytest.raises(HeadraceError, match="more --documents"):
        place_to_lose({0: 5})
    with pytest.raises(HeadraceError, match="0 seqnos"):
        place_to_lose({})


def test_what_was_withdrawn_is_what_the_tables_no_longer_show(tmp_path: Path) -> None:
    with pipeline(tmp_path) as found:
        told = rolled_back(found)
        taken = withdrawn(tmp_path, told)
        assert (taken.from_seqno, taken.to_seqno) == (50, 40)
        assert taken.rows == 10
        assert taken.documents == 10
        assert taken.visible == 0
        every, living = arrow_changes(tmp_path, withdrawn=True), arrow_changes(tmp_path)
        assert every.num_rows - living.num_rows == taken.rows + 1, "the rollback is a row, too"
        assert taken.branch != taken.dead_branch


def test_the_example_is_a_document_that_went_back_in_time(tmp_path: Path) -> None:
    with pipeline(tmp_path) as found:
        example = withdrawn(tmp_path, rolled_back(found)).example
    assert example is not None
    assert example.key.startswith("order::0000000")
    assert (example.before, example.after) == ("status shipped", "status paid")


def test_snapshots_tell_which_of_them_were_withdrawn(tmp_path: Path) -> None:
    with pipeline(tmp_path) as found:
        rolled_back(found)
        seen = snapshots(tmp_path, 0)
    dead = [one for one in seen if one.dead]
    assert sum(one.rows for one in dead) == 10
    assert all(one.end > 40 for one in dead)
    assert sum(one.rows for one in seen if not one.dead) == 41
