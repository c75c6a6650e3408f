"""`headrace history`: one key's life, from a table and from a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.history import line_of
from headrace.spark.lives import Moment
from headrace.testing import running_node
from headrace.wire.values import vbucket_of
from tests.cli.test_sync import headrace
from tests.spark.conftest import url_of, write

if TYPE_CHECKING:
    from pathlib import Path


def test_a_life_with_a_rollback_is_printed(tmp_path: Path) -> None:
    with running_node(vbuckets=4) as node:
        for value in (b"one", b"two"):
            write(node, [("key", value)])
            headrace("sync", url_of(node), str(tmp_path), "--master", "none")
        node.faults.failover(vbucket=vbucket_of(b"key", 4), lose=1)
        write(node, [("key", b"three")])
        headrace("sync", url_of(node), str(tmp_path), "--master", "none")
        code, output = headrace("history", str(tmp_path), "key")
        assert code == 0
        lines = output.splitlines()
        assert [line.split()[1] for line in lines] == ["0", "0", "1", "1"]
        assert "'two'  withdrawn" in lines[1]
        assert "rollback of vbucket" in lines[2]
        code, output = headrace("history", url_of(node), "key")
        assert code == 0
        assert "'three'" in output.splitlines()[-1]
        code, output = headrace("history", url_of(node), "nobody")
        assert code == 1
        assert "'nobody' is not in" in output


def test_a_long_value_is_cut() -> None:
    moment = Moment(1, 0, 2, 3, "mutation", b"x" * 500, 1, 1, None, None, False)
    assert len(line_of(moment)) < 160
