"""Scenarios as text: every phrase, every mistake with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError
from headrace.node.fault_script import (
    STEPS_MAX,
    read_scenario,
    read_scenario_file,
    read_step,
    read_when,
)
from headrace.wire.opcodes import Opcode, Status, VBucketState

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.node.fault_words import Values

SAID: dict[str, tuple[str, Values, str, Values]] = {
    "at vbucket 3 seqno 500: fail over losing 20": (
        "seqno",
        {"vbucket": 3, "seqno": 500},
        "failover",
        {"seqno": 480},
    ),
    "at vbucket 3 sent 500 to 7: fail over to 490": (
        "sent",
        {"vbucket": 3, "seqno": 500, "connection": "7"},
        "failover",
        {"seqno": 490},
    ),
    "now: fail over losing 5 vbucket 1 of travel": (
        "now",
        {},
        "failover",
        {"vbucket": 1, "lose": 5, "bucket": "travel"},
    ),
    'after 2s: cut connection "sync:*"': (
        "time",
        {"seconds": 2.0},
        "cut",
        {"connection": "sync:*"},
    ),
    "after 250ms: cut in the middle of a frame connection 4 after 100 bytes": (
        "time",
        {"seconds": 0.25},
        "cut",
        {"connection": "4", "size": 100, "middle": True},
    ),
    "next stream-request vbucket 7: rollback to 120": (
        "request",
        {"opcode": Opcode.STREAM_REQ, "vbucket": 7},
        "rollback",
        {"seqno": 120},
    ),
    "next set: refuse with ETMPFAIL for 3 requests": (
        "request",
        {"opcode": Opcode.SET},
        "refuse",
        {"status": Status.ETMPFAIL, "count": 3},
    ),
    "NOW: Refuse opcode 0x53 with 0x82": (
        "now",
        {},
        "refuse",
        {"opcode": Opcode.STREAM_REQ, "status": Status.ENOMEM},
    ),
    "after 100 mutations to slowpoke: slow to 1_000 bytes per second": (
        "mutations",
        {"count": 100, "connection": "slowpoke"},
        "slow",
        {"rate": 1000},
    ),
    "then after 1.5: pause connection x for 10s": (
        "then",
        {"seconds": 1.5},
        "pause",
        {"connection": "x", "seconds": 10.0},
    ),
    "then: resume connection x": ("then", {}, "resume", {"connection": "x"}),
    "at commit 12: crash once durable": ("commit", {"commits": 12}, "crash", {"durable": True}),
    "now: crash after 3 commits": ("now", {}, "crash", {"commits": 3}),
    "now: delay commits by 50ms": ("now", {}, "delay-commits", {"seconds": 0.05}),
    "now: stop persistence": ("now", {}, "stop-persistence", {}),
    "now: start persistence of b": ("now", {}, "start-persistence", {"bucket": "b"}),
    "now: purge vbucket 2 below 40": ("now", {}, "purge", {"vbucket": 2, "seqno": 40}),
    "at vbucket 1 seqno 9: drop cursor": ("seqno", {"vbucket": 1, "seqno": 9}, "drop-cursor", {}),
    "now: set state vbucket 0 to replica": (
        "now",
        {},
        "set-state",
        {"vbucket": 0, "state": VBucketState.REPLICA},
    ),
    "now: clear  # and begin again": ("now", {}, "clear", {}),
}


@pytest.mark.parametrize("text", SAID)
def test_a_line_says_when_and_what(text: str) -> None:
    step = read_step(text)
    assert (step.trigger.name, step.when, step.lever.name, step.values) == SAID[text]


MISTAKES = {
    "at vbucket 3 seqno 500 fail over": (24, "found 'fail', expected `of {bucket}`"),
    "sometimes: clear": (1, "found 'sometimes', expected one of `now`, `at vbucket {vbucket}`"),
    "now: explode": (6, "found 'explode', expected one of `fail over`, `rollback`"),
    "now": (4, "found the end, expected `:` and a lever"),
    "now:": (5, "found the end, expected one of `fail over`"),
    "now: fail": (10, "found the end, expected `over`"),
    "now: fail over losing": (22, "found the end, expected seqno (0..18446744073709551615)"),
    "now: fail over losing few": (23, "lose is 'few'; allowed: 0..18446744073709551615"),
    "now: fail over losing 3": (6, "failover needs vbucket and was given nothing"),
    "now: fail over vbucket 1": (6, "failover needs seqno or lose and was given nothing"),
    "now: fail over vbucket 1 to 2 losing 1": (6, "was given seqno and lose"),
    "now: fail over vbucket 1024 to 3": (24, "vbucket is '1024'; allowed: 0..1023"),
    "at vbucket 3 seqno 5: fail over losing 6": (23, "losing 6 of 5 seqnos"),
    "at vbucket 3: clear": (13, "found the end, expected seqno"),
    "after 2h: clear": (7, "seconds is '2h'; allowed: 2s, 500ms or 1.5"),
    'now: cut connection "sync': (21, "a quote is opened and not closed"),
    "now: clear everything": (12, "found 'everything', expected nothing more"),
    "now: refuse opcode teleport with EINVAL": (20, "opcode is 'teleport'; allowed: a name"),
    "now: refuse opcode set with SUCCESS": (29, "status is 'SUCCESS'; allowed: a name"),
    "now: set state vbucket 0 to asleep": (29, "state is 'asleep'; allowed: active, replica"),
    "now: cut connection 1 connection 2": (23, "found 'connection', expected `after {size} bytes`"),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_names_its_place_and_what_would_be_right(text: str) -> None:
    column, sentence = MISTAKES[text]
    with pytest.raises(ConfigError) as caught:
        read_step(text, source="day.txt", line=4)
    assert str(caught.value).startswith(f"day.txt, line 4, column {column}: ")
    assert sentence in str(caught.value)


def test_a_scenario_is_its_lines_without_comments() -> None:
    steps = read_scenario('# first\n\nnow: clear # why\n  then: cut connection "a # b"\n')
    assert [(step.line, step.lever.name) for step in steps] == [(3, "clear"), (4, "cut")]
    assert steps[1].values == {"connection": "a # b"}
    assert steps[0].text == "now: clear # why"


def test_the_first_wrong_line_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^scenario, line 3, column 6: found 'bang'"):
        read_scenario("now: clear\n\nnow: bang\nnow: boom\n")


def test_then_needs_a_step_above() -> None:
    with pytest.raises(ConfigError, match="line 2, column 3: `then` has no step above it"):
        read_scenario("# nothing\n  then: clear\n")


def test_there_is_a_limit_to_steps() -> None:
    assert len(read_scenario("now: clear\n" * STEPS_MAX)) == STEPS_MAX
    with pytest.raises(ConfigError, match=f"over {STEPS_MAX} steps"):
        read_scenario("now: clear\n" * (STEPS_MAX + 1))


def test_a_trigger_alone_names_its_column() -> None:
    assert read_when("after 2s")[1] == {"seconds": 2.0}
    with pytest.raises(ConfigError, match="column 7 of 'after a while'"):
        read_when("after a while")


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_scenario_file(tmp_path / "none.txt")
    (tmp_path / "bytes").write_bytes(b"now: clear \xff")
    with pytest.raises(ConfigError, match="not UTF-8: byte 11"):
        read_scenario_file(tmp_path / "bytes")
    (tmp_path / "good").write_text("now: clear\n", encoding="utf-8")
    assert len(read_scenario_file(tmp_path / "good")) == 1
