"""Steps: their states, their limits, and what waits for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError
from headrace.node import fault_steps
from headrace.node.fault_script import read_step
from headrace.node.fault_steps import RunningStep, StepState
from headrace.testing import running_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.testing import RunningNode


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with running_node() as started:
        yield started


def test_a_step_is_settled_once() -> None:
    running = RunningStep(1, read_step("now: clear"))
    running.settle(StepState.FIRED, result={"a": 1})
    running.settle(StepState.CANCELLED)
    assert running.state is StepState.FIRED
    assert running.wait() == {"a": 1}


def test_a_step_that_does_not_fire_is_late() -> None:
    running = RunningStep(1, read_step("now: clear"))
    with pytest.raises(TimeoutError, match=r"did not fire in 0\.01 s"):
        running.wait(0.01)


def test_a_step_shows_where_it_stands(node: RunningNode) -> None:
    step = node.faults.add("at vbucket 1 seqno 3: purge")
    assert step.to_json() == {
        "step": 1,
        "text": "at vbucket 1 seqno 3: purge",
        "state": "waiting",
        "line": 1,
    }


def test_steps_are_limited(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_steps, "STEPS_KEPT_MAX", 2)
    node.faults.add("now: clear")
    node.faults.add("after 1000s: clear")
    with pytest.raises(ConfigError, match="2 steps, limit 2"):
        node.faults.add("now: clear")


def test_then_without_a_step_before_fails(node: RunningNode) -> None:
    step = node.faults.add("then: clear")
    assert step.state is StepState.FAILED


def test_then_after_a_step_that_is_over_is_at_once(node: RunningNode) -> None:
    node.faults.add("now: set state vbucket 0 to dead").wait()
    node.faults.add("then: set state vbucket 0 to active").wait()


def test_a_lever_on_a_thread_of_its_own_is_waited_for(node: RunningNode) -> None:
    assert node.faults.add("now: purge").wait()["compacted"] == 4


def test_requests_are_only_shown_while_someone_waits(node: RunningNode) -> None:
    served = [node.node.serves_runs]
    step = node.faults.add("at vbucket 0 seqno 5: purge")
    served.append(node.node.serves_runs)
    assert node.faults.on_loop(lambda: node.faults.steps.cancel(step))
    served.append(node.node.serves_runs)
    assert served == [True, False, True]
    assert not node.faults.on_loop(lambda: node.faults.steps.cancel(step))
