"""`headrace verify`: 0 and a sum, or 1 and every difference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.testing import running_node
from tests.cli.test_bars import calling, on_terminal
from tests.cli.test_sync import headrace
from tests.spark.conftest import numbered, url_of, write

if TYPE_CHECKING:
    from pathlib import Path


def test_differences_are_lines_and_an_exit_code(tmp_path: Path) -> None:
    with running_node(vbuckets=4) as node:
        write(node, numbered(60))
        headrace("sync", url_of(node), str(tmp_path), "--master", "none")
        code, output = headrace("verify", url_of(node), str(tmp_path), "--master", "none")
        assert (code, output.splitlines()[-1]) == (
            0,
            "60 documents compared, 60 rows of changes, 0 differences",
        )
        node.faults.failover(vbucket=0, lose=2)
        code, output = headrace(
            "verify", url_of(node), str(tmp_path), "--master", "none", "--show", "1"
        )
        assert code == 1
        assert "branch: vbucket 0" in output
        assert "... and 2 more" in output
        assert "3 differences" in output


def test_no_tables_are_a_sentence(tmp_path: Path) -> None:
    code, output = headrace("verify", "couchbase://h/b", str(tmp_path), "--master", "none")
    assert code == 1
    assert "no state table" in output


def test_a_bar_says_how_far_it_is_and_json_stays_clean(tmp_path: Path) -> None:
    with running_node(vbuckets=4) as node:
        write(node, numbered(60))
        headrace("sync", url_of(node), str(tmp_path), "--master", "none", "--parts", "2")
        words = ("verify", url_of(node), str(tmp_path), "--master", "none", "--json")
        code, output, drawn = on_terminal(*calling(*words))
        assert (code, json.loads(output)["documents"]) == (0, 60)
        assert "comparing" in drawn
        assert "2 of 2 parts" in drawn
        assert headrace(*words) == (0, output), "without a terminal there is the answer alone"
