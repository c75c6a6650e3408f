"""headrace move, as a person calls it, and as a process that is killed."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Final

import pytest

from headrace.cli.exits import Exit
from headrace.cluster.journal import read_entries
from headrace.wire.opcodes import VBucketState
from tests.cli.node_for_commands import call
from tests.cluster.kit import Nodes, running_nodes
from tests.cluster.processes import process, wait_paused
from tests.cluster.test_runner import KEYS, PLACES, check_moved

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

S = VBucketState
SECONDS_MAX: Final = 60


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running_nodes(tmp_path) as found:
        found.put("a", 1, KEYS)
        yield found


def test_vbuckets_move_and_the_command_says_so(nodes: Nodes) -> None:
    said = call("move", str(nodes.path), "--vbuckets", "0-1", "--from", "a", "--to", "b")
    assert "2 moves in" in said.output
    assert "2 done" in said.output
    check_moved(nodes)


def test_for_scripts_there_is_json(nodes: Nodes) -> None:
    said = call("move", str(nodes.path), "--vbuckets", "1", "--to", "b", "--json")
    (row,) = json.loads(said.stdout)["moves"]
    assert (row["vbucket"], row["from"], row["to"], row["ending"]) == (1, "a", "b", "done")


def test_a_dry_run_says_the_moves_and_changes_nothing(nodes: Nodes) -> None:
    said = call("move", str(nodes.path), "--vbuckets", "1,3", "--to", "b", "--dry-run")
    assert said.stdout.splitlines() == ["vb 1 active: a -> b", "vb 3 active: a -> b", "2 moves"]
    assert nodes.states(1) == {"a": S.ACTIVE, "b": S.ACTIVE}, "not even the empty ones are touched"
    plan = call("move", str(nodes.path), "--vbuckets", "1", "--to", "b", "--dry-run", "--json")
    (row,) = json.loads(plan.stdout)["moves"]
    assert (row["before"], row["after"]) == (["a"], ["b"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give either --vbuckets and --to, or --resume"),
        (("--resume", "--to", "b"), "give either --vbuckets and --to, or --resume"),
        (("--vbuckets", "0"), "give --vbuckets and --to"),
        (("--vbuckets", "0", "--to", "z"), "node 'z' is not in"),
        (("--vbuckets", "0-9", "--to", "b"), "vbuckets '0-9'; allowed: 0..3"),
        (("--vbuckets", "x", "--to", "b"), "allowed: all, or numbers and ranges"),
        (("--vbuckets", "0", "--to", "b", "--from", "b"), "vbucket 0 is active on a, not on b"),
        (("--vbuckets", "0", "--to", "b", "--bucket", "x"), "bucket 'x' is not in"),
    ],
)
def test_a_mistake_is_one_sentence(nodes: Nodes, words: tuple[str, ...], sentence: str) -> None:
    said = call("move", str(nodes.path), *words, code=Exit.FAILED)
    assert sentence in said.stderr
    assert said.stderr.count("\n") == 1


def test_an_interrupted_move_is_finished_before_another_begins(nodes: Nodes) -> None:
    with process(nodes.path, "--vbuckets", "1", "--to", "b", "--pause-at", "closing") as running:
        wait_paused(running, "closing")
        said = call("move", str(nodes.path), "--resume", code=Exit.FAILED)
        assert "another manager holds" in said.stderr
        running.kill()
        running.wait(SECONDS_MAX)
    said = call("move", str(nodes.path), "--vbuckets", "2", "--to", "b", code=Exit.FAILED)
    assert "1 moves were interrupted; finish them first" in said.stderr
    assert "1 done" in call("move", str(nodes.path), "--resume").output
    check_moved(nodes)
    assert call("move", str(nodes.path), "--resume").output == "nothing was interrupted\n"


@pytest.mark.parametrize("place", PLACES)
def test_a_manager_killed_at_any_place_leaves_what_resuming_finishes(
    nodes: Nodes, place: str
) -> None:
    with process(nodes.path, "--vbuckets", "1", "--to", "b", "--pause-at", place) as running:
        wait_paused(running, place)
        running.kill()
        running.wait(SECONDS_MAX)
    active = [name for name, state in nodes.states(1).items() if state is S.ACTIVE]
    assert len(active) <= 1
    entries = read_entries(nodes.file.beside("moves.json"))
    assert [entry.move.vbucket for entry in entries] == [1]
    call("move", str(nodes.path), "--resume")
    check_moved(nodes)


def test_ctrl_c_backs_out(nodes: Nodes) -> None:
    with process(
        nodes.path, "--vbuckets", "0-3", "--to", "b", "--pause-at", "catching-up"
    ) as running:
        wait_paused(running, "catching-up")
        running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        assert "backing out" in running.stderr.readline()
        output, _ = running.communicate("\n", timeout=SECONDS_MAX)
        assert running.returncode == Exit.INTERRUPTED
        assert "backed out" in output
    assert nodes.states(1) == {"a": S.ACTIVE, "b": None}
    assert read_entries(nodes.file.beside("moves.json")) == ()
    assert nodes.held("a", 1, KEYS) == set(KEYS)


def test_a_stale_copy_of_the_cluster_file_is_refused(nodes: Nodes) -> None:
    text = nodes.path.read_text()
    nodes.path.write_text("revision = 5\n" + text)
    call("move", str(nodes.path), "--vbuckets", "1", "--to", "b")
    nodes.path.write_text("revision = 4\n" + text)
    said = call("move", str(nodes.path), "--vbuckets", "1", "--to", "a", code=Exit.FAILED)
    assert "has revision 4, and revision 5 was acted upon" in said.stderr
