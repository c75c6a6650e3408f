"""headrace replicate: the three ways to call it, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import pytest

from headrace.cli.exits import Exit
from headrace.wire import admin
from headrace.wire.opcodes import VBucketState
from tests.cli.node_for_commands import call
from tests.cluster.kit import Nodes, running_nodes
from tests.cluster.processes import SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

S = VBucketState
KEYS: Final = range(20)
SECONDS_MAX: Final = 30.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running_nodes(tmp_path, replicas=1) as found:
        found.put("a", 1, KEYS)
        yield found


def held(nodes: Nodes, name: str, vbucket: int) -> int:
    with nodes.link(name) as link:
        return int(link.stats(f"vbucket-seqno {vbucket}")[f"vb_{vbucket}:abs_high_seqno"])


def test_as_many_replicas_as_the_file_wants(nodes: Nodes) -> None:
    said = call("replicate", str(nodes.path), "--once", "--json")
    last = json.loads(said.stdout.splitlines()[-1])
    assert (last["streams"], last["caught_up"], last["lag"], last["problems"]) == (4, 4, 0, [])
    assert nodes.states(1) == {"a": S.ACTIVE, "b": S.REPLICA}
    assert held(nodes, "b", 1) == 20


def test_some_vbuckets_from_one_node_to_another(nodes: Nodes) -> None:
    nodes.write_file(replicas=0)
    said = call("replicate", str(nodes.path), "a", "b", "--vbuckets", "1-2", "--once")
    assert said.stdout.startswith("2 of 2 replicas have caught up, in ")
    assert nodes.state("b", 1) is S.REPLICA
    assert nodes.state("b", 3) is None
    with nodes.link("a") as link:
        rows = json.loads(link.cluster_map() or b"")["vBucketServerMap"]["vBucketMap"]
    assert rows == [[0, -1], [0, 1], [0, 1], [0, -1]]


def test_two_urls_without_a_file_or_a_map(nodes: Nodes) -> None:
    urls = [f"couchbase://127.0.0.1:{nodes.running[name].port}" for name in "ab"]
    call("replicate", *urls, "--vbuckets", "1", "--once")
    assert nodes.states(1) == {"a": S.ACTIVE, "b": S.REPLICA}
    assert held(nodes, "b", 1) == 20
    assert nodes.state("b", 2) is S.ACTIVE, "nothing else is touched"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("a", "a"), "SRC and DST are both a"),
        (("a", "z"), "node 'z' is not in"),
        (("a", "b", "c"), "4 places; wanted is CLUSTER_FILE"),
    ],
)
def test_a_mistake_is_one_sentence(nodes: Nodes, words: tuple[str, ...], sentence: str) -> None:
    said = call("replicate", str(nodes.path), *words, "--once", code=Exit.FAILED)
    assert sentence in said.stderr
    assert said.stderr.count("\n") == 1


def test_a_node_that_was_failed_over_and_is_back_is_a_replica_again(nodes: Nodes) -> None:
    call("replicate", str(nodes.path), "--once")
    nodes.put("a", 1, range(100, 110), b"only here")
    nodes.running["a"].crash()
    call("failover", str(nodes.path), "a")
    nodes.put("b", 1, range(200, 205))
    nodes.running["a"].restart()
    assert nodes.states(1) == {"a": S.ACTIVE, "b": S.ACTIVE}, "it does not know yet"
    last = json.loads(
        call("replicate", str(nodes.path), "--once", "--json").stdout.splitlines()[-1]
    )
    assert (last["caught_up"], last["lag"], last["problems"]) == (4, 0, [])
    assert nodes.states(1) == {"a": S.REPLICA, "b": S.ACTIVE}
    assert nodes.log("a", 1) == nodes.log("b", 1)
    call("move", str(nodes.path), "--vbuckets", "1", "--to", "a")
    assert nodes.held("a", 1, range(100, 110)) == set(), "rolled back"
    assert nodes.held("a", 1, range(300)) == {*KEYS, *range(200, 205)}


def test_ctrl_c_stops_it_and_replicas_stay(nodes: Nodes) -> None:
    command = [sys.executable, "-m", "headrace", "replicate", str(nodes.path), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if json.loads(line)["caught_up"] == 4:
                break
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 0
    assert errors == "headrace: stopped; replicas stay as they are\n"
    assert nodes.states(1) == {"a": S.ACTIVE, "b": S.REPLICA}


@pytest.mark.parametrize("as_json", [True, False])
def test_a_stream_that_is_opened_again_is_told(nodes: Nodes, as_json: bool) -> None:
    command = [sys.executable, "-m", "headrace", "replicate", str(nodes.path)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "--json"] if as_json else command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as running:
        try:
            wait_for(lambda: nodes.state("b", 1) is S.REPLICA and held(nodes, "b", 1) == 20)
            with nodes.link("b") as link:
                dead = admin.SetVBucket(vbucket=1, state=int(S.DEAD))
                link.ask(dead, admin.SetVBucketReply)
            assert running.stdout is not None
            assert running.stderr is not None
            if as_json:
                said = next(
                    notices for line in running.stdout if (notices := json.loads(line)["notices"])
                )[0]
            else:
                said = running.stderr.readline().removeprefix("headrace: ").rstrip()
            wait_for(lambda: nodes.state("b", 1) is S.REPLICA)
        finally:
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=60)
    assert said == "a -> b, vb 1: the copy was changed by others; its stream is opened again"


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)
