"""headrace status: vbuckets, consumers, progress."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.cli.status import Consumer, Status, VBucket, bar, record
from headrace.client.bucket import connect
from headrace.client.tokens import TokenFile
from headrace.client.writer import Document
from tests.cli.node_for_commands import call, node_url, put

if TYPE_CHECKING:
    from pathlib import Path


def test_a_table_and_json_tell_where_things_stand(tmp_path: Path) -> None:
    with node_url() as url:
        put(url, *(Document(b"k%d" % n, b"1") for n in range(40)))
        with connect(url) as bucket:
            TokenFile(tmp_path / "t").save(bucket.tokens_at_beginning())
            reader = bucket.follow(since="beginning", name="a-reader")
            for _ in range(40):
                next(reader)
            told = json.loads(call("status", url, "--json", "--tokens", str(tmp_path / "t")).stdout)
            assert sum(one["high_seqno"] for one in told["vbuckets"]) == 40
            by_name = {one["name"]: one for one in told["consumers"]}
            assert by_name["a-reader"]["lag"] == 0
            assert by_name["tokens"]["lag"] == 40
            assert by_name["tokens"]["progress"] == 0.0
            table = call("status", url, "--once").stdout
            assert "a-reader" in table
            assert "4 vbuckets on 1 node" in table


def test_progress_is_a_share_of_the_history() -> None:
    status = Status("b", 1, [VBucket(0, high_seqno=10), VBucket(1, high_seqno=30)], [])
    half = Consumer("c", {0: 10, 1: 10})
    assert (half.lag(status.highs), half.progress(status.highs)) == (20, 0.5)
    assert Consumer("d").progress(status.highs) == 1.0
    assert record(status)["consumers"] == []
    assert bar(0.5, 4) == "[yellow]██[/][dim]░░[/]  50.0%"
