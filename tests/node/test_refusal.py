"""Refusals say their status and, where it helps, why."""

from __future__ import annotations

from headrace.node.refusal import Blocked, Refusal
from headrace.wire.opcodes import Status


def test_a_refusal_reads_as_its_status_and_reason() -> None:
    assert str(Refusal(Status.EINVAL, "too short")) == "EINVAL: too short"
    assert str(Refusal(Status.KEY_ENOENT)) == "KEY_ENOENT"
    assert str(Blocked(7)) == "vbucket 7 is pending"
