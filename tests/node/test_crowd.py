"""Slices of `make soak`: many streams, and a reader that never reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.soak.crowd import VBUCKETS, many_readers, never_reading

if TYPE_CHECKING:
    from pathlib import Path


def test_everyone_in_a_crowd_gets_everything(tmp_path: Path) -> None:
    report = many_readers(tmp_path / "data", connections=20, documents=3)
    assert report.mutations == 20 * VBUCKETS * 6


@pytest.mark.slow
def test_a_reader_that_never_reads_costs_the_quota_at_most(tmp_path: Path) -> None:
    """Six quotas of documents pass it; when it reads at last, nothing is missing."""
    report = never_reading(tmp_path / "data", megabytes=96, quota_mb=16)
    assert report.mutations == 96 * 1024 // 4
