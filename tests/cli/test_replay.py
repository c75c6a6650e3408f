"""headrace replay: a recorded client against a live node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.replay import Difference, be_consumer
from headrace.client.writer import Document
from headrace.wire.dialect import Dialect
from tests.cli.node_for_commands import call, node_url, put

if TYPE_CHECKING:
    from pathlib import Path


def test_the_same_node_answers_the_same_and_another_does_not(tmp_path: Path) -> None:
    file = str(tmp_path / "talk.pcap")
    with node_url() as url:
        put(url, *(Document(b"k%d" % n, b"1") for n in range(40)))
        call("capture", url, file)
        assert call("replay", file, "--to", url).stdout == "0 answers differ\n"
    with node_url(vbuckets=1) as other:
        differences = be_consumer(file, other, None, Dialect.DCP_7)
        assert {one.request for one in differences} == {"STREAM_REQ"}
        assert {one.vbucket for one in differences} >= {1, 2, 3}
        call("replay", file, "--to", other, code=3)


def test_a_difference_is_a_line() -> None:
    line = str(Difference(3, "STREAM_REQ", 7, recorded=0, live=7))
    assert line == "request 3 STREAM_REQ of vbucket 7: recorded ok, live NOT_MY_VBUCKET"


def test_a_file_without_a_consumer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(bytes.fromhex("800a0000" + "00" * 20))
    assert "no consumer" in call("replay", str(file), "--to", "couchbase://h/b", code=1).stderr
