"""Offsets: one text for one meaning, and nothing rounded."""

from __future__ import annotations

import json

import pytest

from headrace.errors import ConfigError
from headrace.history import SEQNO_MAX, BranchId, FailoverLog, Seqno, VBucketId
from headrace.spark.offsets import INITIAL, Entry, Fall, Offset, thinned
from headrace.spark.positions import START, Claim

LOG = FailoverLog.of((2222, 6), (1111, 0))
HIGH = Seqno(SEQNO_MAX)


def entry(seqno: int, *, known: bool = False, pending: bool = False, fall: bool = False) -> Entry:
    honest = thinned(START.accepted(LOG).advanced(Seqno(4), LOG).advanced(Seqno(9), LOG))
    return Entry(
        Claim(LOG.newest.uuid, Seqno(seqno), honest, known),
        Seqno(9),
        pending,
        Fall(BranchId(1111), Seqno(12)) if fall else None,
    )


@pytest.mark.parametrize(
    "one",
    [
        entry(12),
        entry(9, known=True),
        entry(12, pending=True, fall=True),
        entry(SEQNO_MAX, pending=True),
        Entry(Claim(BranchId(0), Seqno(0), thinned(START), known=True), Seqno(0)),
        Entry(Claim(BranchId(SEQNO_MAX), HIGH, thinned(START.accepted(LOG))), HIGH),
    ],
)
def test_an_entry_survives_text(one: Entry) -> None:
    assert Entry.from_text(one.to_text()) == one


def test_a_thousand_vbuckets_survive_sparks_log_in_any_order() -> None:
    offset = Offset(7, {VBucketId(vb): entry(vb + 9) for vb in reversed(range(1024))})
    text = json.dumps(offset.to_json())
    assert Offset.from_json(json.loads(text)) == offset
    other = Offset(7, {VBucketId(vb): entry(vb + 9) for vb in range(1024)})
    assert json.dumps(other.to_json()) == text
    assert len(text) < 200_000


def test_the_initial_offset_is_a_constant() -> None:
    assert INITIAL.to_json() == {"format": 1, "plan": 0, "vbuckets": {}}
    assert INITIAL.is_initial
    assert Offset.from_json(INITIAL.to_json()) == INITIAL


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"format": 2, "plan": 1, "vbuckets": {}},
        {"format": 1, "plan": 1, "vbuckets": {"0": "junk"}},
        {"format": 1, "plan": "x", "vbuckets": {}},
        {"format": 1, "plan": 1, "vbuckets": []},
    ],
)
def test_an_offset_of_someone_else_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="Spark checkpoint"):
        Offset.from_json(value)


def test_few_boundaries_are_kept_and_the_newest_is_one_of_them() -> None:
    position = START
    for seqno in range(1, 60):
        position = position.advanced(Seqno(seqno), LOG)
    kept = [mark.seqno for mark in thinned(position).boundaries]
    assert len(kept) <= 4
    assert kept[-1] == 59
