"""Findings: a verdict, what was found, and advice where something is to be done."""

from __future__ import annotations

from headrace.cli.finding import Verdict, failure, good, warning


def test_a_finding_is_plain_data_for_scripts() -> None:
    assert failure("java", "none", "install one").to_json() == {
        "check": "java",
        "verdict": "fail",
        "found": "none",
        "advice": "install one",
    }


def test_only_what_is_good_needs_no_advice() -> None:
    assert good("a", "b").advice == ""
    assert warning("a", "b", "c").verdict is Verdict.WARN
    assert {one.value for one in Verdict} == {"ok", "warn", "fail"}
