"""A slice of `make soak`: a node is killed under load and loses nothing it promised."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.soak.crash import Soak

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_node_keeps_its_promises(tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADRACE_SOAK_SEED", "1"))
    soak = Soak(tmp_path / "data", seed)
    for _ in range(ROUNDS):
        soak.round()
    assert soak.ledger.promised, "something was promised"
    assert soak.ledger.durable, "something was durable"
    assert all(copy.seqno > 0 for copy in soak.copies)
