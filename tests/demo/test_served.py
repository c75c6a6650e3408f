"""A node in its own process: it serves, it fails on demand, and it never outlives its owner."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.client.bucket import connect
from headrace.client.writer import Document
from headrace.demo.served import ServedNode
from headrace.errors import CannotConnect, HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).resolve().parents[2] / "src"
END_SECONDS_MAX = 60.0


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedNode]:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    started = ServedNode(tmp_path, vbuckets=2)
    started.start()
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


def process_of(node: ServedNode) -> int:
    assert node._process is not None
    return node._process.pid


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_it_serves_and_a_lever_can_be_pulled(node: ServedNode) -> None:
    with connect(node.url) as bucket, bucket.writer() as writer:
        for number in range(40):
            writer.put(Document(b"key-%d" % number, b"{}"))
        writer.flush()
        before = bucket.seqnos()[0]
        answer = node.pull("failover", vbucket=0, lose=3)
        assert answer["seqno"] == before - 3
        assert bucket.seqnos()[0] == before - 3


def test_a_refused_lever_is_a_sentence(node: ServedNode) -> None:
    with pytest.raises(HeadraceError, match="vbucket"):
        node.pull("failover", vbucket=77, lose=1)


def test_stopping_ends_the_process_and_removes_its_secrets(node: ServedNode) -> None:
    process = process_of(node)
    assert node.admin_file.stat().st_mode & 0o077 == 0
    node.stop()
    node.stop()
    assert not is_there(process)
    assert not node.admin_file.exists()


def test_a_node_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    broken = ServedNode(tmp_path, vbuckets=5_000)
    broken.start()
    try:
        with pytest.raises(CannotConnect, match=r"exit code .*vbuckets"):
            broken.wait_ready()
    finally:
        broken.stop()


def test_it_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from headrace.demo.served import ServedNode\n"
        "node = ServedNode(Path(sys.argv[1]), vbuckets=2); node.start(); node.wait_ready()\n"
        "print(node._process.pid, flush=True); time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    )
    with owner:
        assert owner.stdout is not None
        process = int(owner.stdout.readline())
        assert is_there(process)
        owner.kill()
        owner.wait()
    deadline = time.monotonic() + END_SECONDS_MAX
    while is_there(process):
        assert time.monotonic() < deadline, "the node outlived its owner"
        time.sleep(0.05)
