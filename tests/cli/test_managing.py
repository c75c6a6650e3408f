"""What the commands that manage a cluster share: endings, exit codes, bars, places."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Final

import pytest

from headrace.cli.exits import Exit
from headrace.cli.managing import PLACES, Bars, check_revision, report, show_plan
from headrace.cluster.cluster_file import read_cluster_file
from headrace.cluster.mover import Mover
from headrace.cluster.planning import active_move
from headrace.cluster.steps import Ending, Step
from headrace.errors import ConfigError
from tests.cli.node_for_commands import call
from tests.cluster.kit import running_nodes
from tests.cluster.test_runner import PLACES as PASSED

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "replicate": ("{file}", "--once"),
    "replicate SRC DST": ("{file}", "a", "b", "--once"),
    "move": ("{file}", "--vbuckets", "0", "--to", "b"),
    "move --resume": ("{file}", "--resume"),
    "rebalance": ("{file}",),
    "failover": ("{file}", "a"),
}
"""A command -> its words, on a file with the nodes a and b."""
NODES: Final = """
[nodes.a]
url = "couchbase://127.0.0.1:{first}"
[nodes.b]
url = "couchbase://127.0.0.1:{second}"
"""
MISTAKES: Final = {
    "x = ": "is no TOML",
    "": "has None nodes",
    "replica = 1" + NODES: "'replica' is unknown; allowed: revision, buckets",
    "replicas = 2" + NODES: "wants 2 replicas on 2 nodes",
    NODES.replace("second", "first"): "nodes a and b are both at 127.0.0.1:",
    NODES + 'credentials = "nowhere.toml"': "nowhere.toml cannot be read",
    NODES + "leaving = 1": "leaving is 1; allowed: true, false",
    'buckets = ["one", "two"]' + NODES: "there are one, two",
    NODES: "nothing listens at 127.0.0.1:",
}
"""What a cluster file says -> what is said about it; the last is right, and its nodes are down."""


@pytest.mark.parametrize("text", MISTAKES, ids=MISTAKES.values())
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_wrong_with_a_cluster_file_or_its_nodes_is_one_sentence(
    tmp_path: Path, command: str, text: str
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        first, second = one.getsockname()[1], two.getsockname()[1]
    path = tmp_path / "cluster.toml"
    path.write_text(text.format(first=first, second=second))
    words = [word.format(file=path) for word in COMMANDS[command]]
    said = call(command.split()[0], *words, code=Exit.FAILED)
    assert MISTAKES[text] in said.stderr
    assert said.stderr.startswith("headrace: ")
    assert said.stderr.count("\n") == 1
    assert said.stdout == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_journal_that_cannot_be_understood_is_one_sentence(tmp_path: Path, command: str) -> None:
    with running_nodes(tmp_path) as nodes:
        nodes.file.beside("moves.json").write_text("{")
        words = [word.format(file=nodes.path) for word in COMMANDS[command]]
        said = call(command.split()[0], *words, code=Exit.FAILED)
    assert "cannot be understood" in said.stderr
    assert said.stderr.count("\n") == 1


@pytest.mark.parametrize("down", ["a", "b"])
@pytest.mark.parametrize("command", ["replicate", "replicate SRC DST", "move", "rebalance"])
def test_a_node_that_is_down_is_one_sentence_and_nothing_is_changed(
    tmp_path: Path, command: str, down: str
) -> None:
    with running_nodes(tmp_path) as nodes:
        nodes.put("a", 0, range(5))
        call("move", str(nodes.path), "--vbuckets", "1", "--to", "b")
        before = nodes.file.beside("default.map.json").read_bytes()
        port = nodes.running[down].port
        nodes.running[down].stop()
        words = [word.format(file=nodes.path) for word in COMMANDS[command]]
        said = call(command.split()[0], *words, code=Exit.FAILED)
        assert f"node {down}: nothing listens at 127.0.0.1:{port}" in said.stderr
        assert said.stderr.count("\n") == 1
        assert nodes.file.beside("default.map.json").read_bytes() == before
        assert not nodes.file.beside("moves.json").exists()


def mover(ending: Ending | None, text: str = "") -> Mover:
    made = Mover(active_move(3, ("a",), "b"))
    made.ending, made.text = ending, text
    made.step = Step.FINISHED if ending is not None else Step.WRITING
    return made


@pytest.mark.parametrize(
    ("endings", "code"),
    [
        ([], Exit.OK),
        ([Ending.DONE, Ending.DONE], Exit.OK),
        ([Ending.DONE, Ending.PENDING], Exit.PENDING),
        ([Ending.BACKED_OUT, Ending.PENDING], Exit.PENDING),
        ([Ending.DONE, Ending.BACKED_OUT], Exit.INTERRUPTED),
        ([Ending.DONE, None], Exit.INTERRUPTED),
        ([Ending.PENDING, Ending.CONFLICT], Exit.FAILED),
        ([Ending.DONE, Ending.GIVEN_UP], Exit.FAILED),
    ],
)
def test_the_exit_code_is_that_of_the_worst_ending(
    endings: list[Ending | None], code: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report([mover(one) for one in endings], as_json=False, seconds=1.0) == code
    assert f"{len(endings)} moves in 1.0 s" in capsys.readouterr().out


def test_what_is_not_done_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    report([mover(Ending.PENDING, "a cannot be asked")], as_json=False, seconds=1.0)
    assert "vb 3 active: a -> b: pending: a cannot be asked" in capsys.readouterr().err


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    report([mover(Ending.PENDING, "why"), mover(None)], as_json=True, seconds=1.0)
    said = json.loads(capsys.readouterr().out)
    assert [(row["ending"], row["text"]) for row in said["moves"]] == [
        ("pending", "why"),
        ("not begun", ""),
    ]


def test_a_plan_is_a_line_per_move(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan([active_move(3, ("a",), "b")], as_json=False)
    assert capsys.readouterr().out.splitlines() == ["vb 3 active: a -> b", "1 moves"]


def test_every_place_of_a_move_can_be_held() -> None:
    assert set(PASSED) <= set(PLACES)


def test_a_bar_tells_items_left_and_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 20.0])
    monkeypatch.setattr("headrace.cli.managing.time.monotonic", lambda: next(times))
    bars = Bars(shown=True)
    assert bars._told(3, Step.CATCHING_UP, 1000) == "catching-up, 1,000 items left"
    told = bars._told(3, Step.CATCHING_UP, 250)
    assert told == "catching-up, 250 items left, about 3 s"


def test_bars_come_and_go_with_their_moves() -> None:
    with Bars(shown=True) as bars:
        moving = mover(None)
        moving.step, moving.items_left = Step.CATCHING_UP, 10
        bars.show(moving)
        moving.items_left = 5
        bars.show(moving)
        bars.show(mover(Ending.DONE))


def test_a_file_is_acted_upon_in_the_order_of_its_revisions(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    node = '[nodes.a]\nurl = "couchbase://h:1"\n'
    for revision in (2, 2, 3):
        path.write_text(f"revision = {revision}\n{node}")
        check_revision(read_cluster_file(path))
    path.write_text(f"revision = 2\n{node}")
    with pytest.raises(ConfigError, match="revision 3 was acted upon"):
        check_revision(read_cluster_file(path))
