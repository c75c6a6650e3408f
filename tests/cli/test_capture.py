"""headrace capture: what was said is in the file, whoever said it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.capture.conversation import Direction
from headrace.capture.source import open_source
from headrace.capture.walk import walk
from headrace.capture.writer import PcapWriter
from headrace.cli.capture import Forwarder, Recorder
from headrace.client.access import Access
from headrace.client.address import NodeAddress
from headrace.client.kv import KvConnection
from headrace.client.writer import Document
from headrace.wire.dialect import Dialect
from headrace.wire.messages import Mutation, StreamRequest
from tests.cli.node_for_commands import call, node_url, put

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.wire.message import Message


def said(path: Path, direction: Direction) -> list[Message]:
    with open_source(str(path)) as source:
        return [
            item.message
            for item in walk(source, Dialect.DCP_7)
            if item.direction is direction and item.message is not None
        ]


def test_a_reading_is_recorded_whole(tmp_path: Path) -> None:
    file = tmp_path / "talk.pcap"
    with node_url() as url:
        put(url, *(Document(b"k%d" % n, b"v" * 100) for n in range(300)))
        assert "bytes said" in call("capture", url, str(file)).stdout
    mutations = [one for one in said(file, Direction.SERVER_TO_CLIENT) if isinstance(one, Mutation)]
    assert {one.key for one in mutations} == {b"\0k%d" % n for n in range(300)}
    requests = said(file, Direction.CLIENT_TO_SERVER)
    assert sum(isinstance(one, StreamRequest) for one in requests) == 4


def test_any_client_can_be_recorded(tmp_path: Path) -> None:
    file = tmp_path / "talk.pcap"
    with node_url() as url, file.open("wb") as stream:
        port = int(url.split(":")[2].split("/")[0])
        recorder = Recorder(PcapWriter(stream))
        node = NodeAddress("127.0.0.1", port)
        with Forwarder(node, Access(), recorder, 0) as forwarder:
            through = NodeAddress("127.0.0.1", forwarder.port)
            with KvConnection.open(through, Access(), bucket="default") as link:
                assert len(link.seqnos()) == 4
    names = [type(one).__name__ for one in said(file, Direction.CLIENT_TO_SERVER)]
    assert names == ["Hello", "SelectBucket", "GetAllVbSeqnos"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    out = str(tmp_path / "absent" / "x.pcap")
    assert "cannot be written" in call("capture", "couchbase://h/b", out, code=1).stderr
