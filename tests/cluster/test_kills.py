"""kill -9 of source, target and manager at every step of a move; all of them are processes.

Afterwards there is one owner, or a pending state that was declared and that `move --resume`
finishes, and nothing is lost (`tests.cluster.killing` says what that means). The few cases that are
not marked run with `make test`, all of them with `make moves`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import TYPE_CHECKING, Final

import pytest

from headrace.cli.exits import Exit
from headrace.cluster.steps import Step
from headrace.wire.opcodes import VBucketState
from tests.cli.node_for_commands import call
from tests.cluster.killing import SECONDS_MAX, Ledger, Stage, Witness, read_all
from tests.cluster.processes import process, process_nodes, wait_paused
from tests.cluster.test_runner import PLACES

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Collection, Iterable, Iterator
    from contextlib import AbstractContextManager

    from _pytest.mark.structures import ParameterSet

S = VBucketState
VBUCKETS: Final = 32
NODE_OF: Final = {"source": "a", "target": "b", "manager": ""}
Case = tuple[str, str]


def cases(chosen: Iterable[Case], always: Collection[Case] = ()) -> list[ParameterSet]:
    """Victims and places, marked but for the few that run ``always``."""
    return [
        pytest.param(*case, marks=() if case in always else (pytest.mark.kills,), id="-".join(case))
        for case in chosen
    ]


Stages = Callable[[str, int], Stage]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    """A pair of nodes per name, used by one case after the other until one fails on it."""
    found: dict[str, Stage] = {}
    with ExitStack() as stack:

        def stage(name: str, replicas: int = 0) -> Stage:
            if name not in found or found[name].is_spoilt or not found[name].unused:
                directory = tmp_path_factory.mktemp(name)
                nodes = stack.enter_context(
                    process_nodes(directory, vbuckets=VBUCKETS, replicas=replicas)
                )
                call("replicate", str(nodes.path), "--once")
                found[name] = Stage(nodes, list(range(VBUCKETS)))
            found[name].is_spoilt = True
            return found[name]

        yield stage


@pytest.fixture(autouse=True)
def impatient_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are away for seconds here: a consumer need not wait longer than that."""
    monkeypatch.setattr("headrace.client.courses.DELAY_SECONDS_MAX", 0.25)


def kill(stage: Stage, manager: subprocess.Popen[str], victim: str) -> int | None:
    """Kill -9; how the manager ended by itself, None if it was the victim."""
    if victim == "manager":
        manager.kill()
        manager.wait(SECONDS_MAX)
        return None
    stage.nodes.nodes[NODE_OF[victim]].kill()
    manager.communicate("\n", timeout=SECONDS_MAX)
    return manager.returncode


def check_declared(stage: Stage, vbucket: int, code: int | None) -> None:
    """A move that is not over stands in the journal, and its manager has said so."""
    if code in (Exit.OK, Exit.INTERRUPTED):
        assert stage.under_way == []
    else:
        assert code in (None, Exit.PENDING)
        assert stage.under_way == [vbucket]
    stage.owners(vbucket)


def mend(stage: Stage, ledger: Ledger, victim: str, code: int | None) -> None:
    """Start again what was killed, and finish the move."""
    if victim != "manager":
        stage.restart(NODE_OF[victim])
    ledger.write(5, persist=True)
    if code == Exit.INTERRUPTED:
        assert stage.owners(ledger.vbucket) == ["a"], "it was backed out"
        call("move", str(stage.nodes.path), "--vbuckets", str(ledger.vbucket), "--to", "b")
    elif code != Exit.OK:
        call("move", str(stage.nodes.path), "--resume")


def check_end(stage: Stage, ledger: Ledger, witness: Witness, victim: str) -> None:
    """Node b owns the vbucket, both know, nothing is lost, no other vbucket was touched."""
    rest = ("a",) if stage.replicas else ()
    assert stage.states(ledger.vbucket) == {"a": S.REPLICA if rest else None, "b": S.ACTIVE}
    assert stage.under_way == []
    rows = stage.map_of("a").rows
    assert stage.map_of("b").rows == rows
    moved = {row for one, row in enumerate(rows) if one not in stage.unused}
    assert moved == {("b", *rest)}
    assert {rows[one] for one in stage.unused} <= {("a", "b") if rest else ("a",)}
    assert ledger.write(5, persist=True) == "b"
    held = read_all(stage.nodes.url, ledger.vbucket)
    ledger.check(held, NODE_OF[victim])
    witness.wait(held)
    assert not witness.rollbacks or ledger.may_be_lost(NODE_OF[victim])
    stage.is_spoilt = False


FEW: Final = (
    ("source", "catching-up"),
    ("source", "active-sent"),
    ("target", "active-answered"),
    ("manager", "active-sent"),
)


@pytest.mark.parametrize(("victim", "place"), cases(product(NODE_OF, PLACES), always=FEW))
def test_whoever_is_killed_wherever_a_move_stands_nothing_is_lost(
    stages: Stages, victim: str, place: str
) -> None:
    stage = stages(victim, 0)
    ledger = Ledger(stage, stage.unused.pop())
    ledger.write(20, persist=True)
    with Witness(stage.nodes.url, ledger.vbucket) as witness:
        with managed(stage, ledger.vbucket, place) as manager:
            wait_paused(manager, place)
            ledger.write(10, persist=True)
            ledger.write(10, persist=False)
            code = kill(stage, manager, victim)
        check_declared(stage, ledger.vbucket, code)
        mend(stage, ledger, victim, code)
        check_end(stage, ledger, witness, victim)


def managed(
    stage: Stage, vbucket: int, *places: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    """`headrace move` from a to b, standing still at places, soon giving up."""
    words = [word for place in places for word in ("--pause-at", place)]
    return process(
        stage.nodes.path, "--vbuckets", str(vbucket), "--to", "b", "--attempts", "2", *words
    )


@pytest.mark.parametrize(
    ("victim", "place"),
    cases(
        [
            ("target", "pending-answered"),
            ("source", "active-sent"),
            ("target", "active-answered"),
            ("source", "ended"),
        ],
        always=[("target", "active-answered")],
    ),
)
def test_a_node_killed_the_moment_a_takeover_comes_to_a_place_loses_nothing(
    stages: Stages, victim: str, place: str
) -> None:
    """Nothing is written in between, which would put on disk what may not be there yet."""
    stage = stages(victim, 0)
    ledger = Ledger(stage, stage.unused.pop())
    ledger.write(20, persist=True)
    with Witness(stage.nodes.url, ledger.vbucket) as witness:
        with managed(stage, ledger.vbucket, place) as manager:
            wait_paused(manager, place)
            code = kill(stage, manager, victim)
        check_declared(stage, ledger.vbucket, code)
        mend(stage, ledger, victim, code)
        check_end(stage, ledger, witness, victim)


@pytest.mark.parametrize(
    ("victim", "place"),
    cases(
        [("source", "pending-answered"), ("target", "active-sent"), ("source", "active-answered")],
        always=[("target", "active-sent")],
    ),
)
def test_a_node_that_is_back_before_its_manager_looks_loses_nothing(
    stages: Stages, victim: str, place: str
) -> None:
    stage = stages(victim, 0)
    ledger = Ledger(stage, stage.unused.pop())
    ledger.write(20, persist=True)
    with Witness(stage.nodes.url, ledger.vbucket) as witness:
        with managed(stage, ledger.vbucket, place) as manager:
            wait_paused(manager, place)
            stage.nodes.nodes[NODE_OF[victim]].kill()
            stage.restart(NODE_OF[victim])
            ledger.write(10, persist=True)
            manager.communicate("\n", timeout=SECONDS_MAX)
        check_declared(stage, ledger.vbucket, manager.returncode)
        if manager.returncode:
            call("move", str(stage.nodes.path), "--resume")
        check_end(stage, ledger, witness, victim)


# -- the replica of a chain becomes its owner, the owner its replica -------------------------------


@pytest.mark.parametrize(("victim", "place"), cases(product(NODE_OF, ("active-sent", "dropping"))))
def test_an_owner_that_stays_as_a_replica_follows_whoever_was_killed(
    stages: Stages, victim: str, place: str
) -> None:
    stage = stages("swap", 1)
    ledger = Ledger(stage, stage.unused.pop())
    ledger.write(20, persist=True)
    with Witness(stage.nodes.url, ledger.vbucket) as witness:
        with managed(stage, ledger.vbucket, place) as manager:
            wait_paused(manager, place)
            ledger.write(10, persist=False)
            code = kill(stage, manager, victim)
        check_declared(stage, ledger.vbucket, code)
        mend(stage, ledger, victim, code)
        check_end(stage, ledger, witness, victim)
    call("replicate", str(stage.nodes.path), "--once")
    assert stage.history("a", ledger.vbucket) == stage.history("b", ledger.vbucket)


# -- steps of a move that does not go well ---------------------------------------------------------


def release(manager: subprocess.Popen[str], place: str) -> None:
    """Let it go on to its next place."""
    assert manager.stdin is not None
    manager.stdin.write("\n")
    manager.stdin.flush()
    wait_paused(manager, place)


@contextmanager
def waiting(stage: Stage, ledger: Ledger) -> Iterator[subprocess.Popen[str]]:
    """The source was killed and is back; the manager waits before its next attempt."""
    with managed(stage, ledger.vbucket, "adding", "waiting") as manager:
        wait_paused(manager, "adding")
        stage.nodes.nodes["a"].kill()
        stage.restart("a")
        release(manager, "waiting")
        yield manager


@contextmanager
def restoring(stage: Stage, ledger: Ledger) -> Iterator[subprocess.Popen[str]]:
    """Somebody pressed Ctrl-C."""
    with managed(stage, ledger.vbucket, "catching-up", "restoring") as manager:
        wait_paused(manager, "catching-up")
        manager.send_signal(signal.SIGINT)
        assert manager.stderr is not None
        assert "backing out" in manager.stderr.readline()
        release(manager, "restoring")
        yield manager


def break_takeover(stage: Stage, vbucket: int) -> None:
    """Nobody serves the vbucket: its manager died between the source's death and the end."""
    with managed(stage, vbucket, "active-sent") as manager:
        wait_paused(manager, "active-sent")
    assert stage.states(vbucket) == {"a": S.DEAD, "b": S.PENDING}


@contextmanager
def resumed(stage: Stage, place: str) -> Iterator[subprocess.Popen[str]]:
    words = ("--resume", "--attempts", "2", "--pause-at", place)
    with process(stage.nodes.path, *words) as manager:
        wait_paused(manager, place)
        yield manager


@contextmanager
def reopening(stage: Stage, ledger: Ledger) -> Iterator[subprocess.Popen[str]]:
    """A manager is about to make the source active again."""
    break_takeover(stage, ledger.vbucket)
    with resumed(stage, "reopening") as manager:
        yield manager


@contextmanager
def promoting(stage: Stage, ledger: Ledger) -> Iterator[subprocess.Popen[str]]:
    """A manager is about to make the target active: by somebody's hand it has more."""
    break_takeover(stage, ledger.vbucket)
    stage.set_state("b", ledger.vbucket, S.ACTIVE)
    assert ledger.write(5, persist=True) == "b"
    stage.set_state("b", ledger.vbucket, S.PENDING)
    with resumed(stage, "promoting") as manager:
        yield manager


BESIDE: Final = {
    "waiting": waiting,
    "restoring": restoring,
    "reopening": reopening,
    "promoting": promoting,
}


@pytest.mark.parametrize(("victim", "place"), cases(product(NODE_OF, BESIDE)))
def test_whoever_is_killed_while_a_broken_move_is_mended_nothing_is_lost(
    stages: Stages, victim: str, place: str
) -> None:
    stage = stages("mended", 0)
    ledger = Ledger(stage, stage.unused.pop())
    ledger.write(20, persist=True)
    with Witness(stage.nodes.url, ledger.vbucket) as witness:
        with BESIDE[place](stage, ledger) as manager:
            ledger.write(10, persist=False)
            code = kill(stage, manager, victim)
        check_declared(stage, ledger.vbucket, code)
        mend(stage, ledger, victim, code)
        check_end(stage, ledger, witness, victim)


def test_every_step_of_a_move_is_one_at_which_parties_are_killed() -> None:
    assert {step.value for step in Step} - {Step.FINISHED.value} <= {*PLACES, *BESIDE}
