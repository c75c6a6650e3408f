"""The gate: nothing passes before it is on disk, and nobody is asked too often."""

from __future__ import annotations

from headrace.client.gate import ASK_SECONDS, Gate


def test_what_is_not_known_to_be_on_disk_waits() -> None:
    disk = {0: 0}
    gate = Gate(lambda branches: {vbucket: disk[vbucket] for vbucket in branches})
    assert gate.allows({})
    assert not gate.allows({0: 5})
    assert gate.ask({0: 7}, now=0.0)
    assert not gate.allows({0: 5})
    disk[0] = 5
    assert not gate.ask({0: 7}, now=ASK_SECONDS / 2), "asked a moment ago"
    assert gate.ask({0: 7}, now=2 * ASK_SECONDS)
    assert gate.allows({0: 5})
    assert not gate.allows({0: 6})
    gate.forget(0)
    assert not gate.allows({0: 5}), "a new history: what was known is void"


def test_a_branch_nobody_knows_is_never_on_disk() -> None:
    gate = Gate(lambda _: {})
    gate.ask({0: 7}, now=0.0)
    assert not gate.allows({0: 1})
