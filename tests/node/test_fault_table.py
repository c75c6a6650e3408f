"""The tables agree with the code that stands behind them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.node.fault_script import read_scenario, read_step
from headrace.node.fault_steps import Steps
from headrace.node.fault_table import LEVERS, TRIGGERS
from headrace.node.faults import Faults


@pytest.mark.parametrize("name", LEVERS)
def test_a_lever_is_a_method_with_the_same_parameters(name: str) -> None:
    lever = LEVERS[name]
    signature = inspect.signature(getattr(Faults, lever.method))
    assert set(signature.parameters) - {"self"} == set(lever.by_name())
    required = {
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is inspect.Parameter.empty and parameter.name != "self"
    }
    assert required == {choice[0] for choice in lever.needs if len(choice) == 1}


@pytest.mark.parametrize("name", LEVERS)
def test_every_parameter_of_a_lever_can_be_said(name: str) -> None:
    lever = LEVERS[name]
    slots = set(re.findall(r"\{(\w+)\}", str(lever.phrase)))
    assert slots | {flag for _, flag in lever.phrase.flags} == set(lever.by_name())


@pytest.mark.parametrize("name", [*LEVERS, *TRIGGERS])
def test_no_two_groups_of_a_phrase_begin_alike(name: str) -> None:
    for table in (LEVERS, TRIGGERS):
        if name in table:
            phrase = table[name].phrase
            texts = (*phrase.groups, *(text for text, _ in phrase.flags))
            first = [text.split(" ")[0] for text in texts]
            assert len(set(first)) == len(first)


def test_every_trigger_is_armed_by_something() -> None:
    assert set(Steps.ARM) == set(TRIGGERS)
    assert set(Steps.LOOK) <= set(TRIGGERS)


@pytest.mark.parametrize("name", TRIGGERS)
def test_what_a_trigger_needs_and_gives_are_its_parameters(name: str) -> None:
    trigger = TRIGGERS[name]
    known = {parameter.name for parameter in trigger.parameters}
    assert set(trigger.needs) <= known
    assert set(trigger.gives) <= known
    assert set(re.findall(r"\{(\w+)\}", str(trigger.phrase))) == known


def test_a_lever_that_lacks_something_says_what() -> None:
    with pytest.raises(ConfigError, match="cut needs connection and was given nothing"):
        LEVERS["cut"].check({})
    with pytest.raises(ConfigError, match="failover needs seqno or lose and was given seqno and"):
        LEVERS["failover"].check({"vbucket": 1, "seqno": 1, "lose": 1})


def test_what_a_trigger_gives_need_not_be_repeated() -> None:
    assert read_step("next stream-request: cut").values == {}
    with pytest.raises(ConfigError, match="cut needs connection"):
        read_step("after 2s: cut")


GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "guide" / "faults.md"


def test_the_guide_names_every_lever_and_says_a_scenario_that_can_be_read() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\| `.*", text, re.MULTILINE))))
    assert set(LEVERS) <= named
    (scenario,) = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(read_scenario(scenario)) == 5
    for line in re.findall(r'add\("(.*)"\)', text):
        read_step(line)
    heads = {str(trigger.phrase.head).split(" ")[0] for trigger in TRIGGERS.values()}
    assert heads <= set(re.findall(r"^\| `(\w+)", text, re.MULTILINE))
