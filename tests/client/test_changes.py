"""What the application gets: keys, values and xattrs taken apart, and sentences."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime

import pytest

from headrace.client.changes import (
    Change,
    Kind,
    Rollback,
    Stretch,
    Trouble,
    cas_time,
    change_of,
    vbucket_names,
)
from headrace.history import ZERO, BranchId, ResumeToken, Seqno, SnapshotRange
from headrace.wire import messages as m
from headrace.wire.values import deflate, join_xattrs


def change(**fields: object) -> m.Mutation:
    named: dict[str, object] = {"by_seqno": 7, "key": b"\x08key", "value": b"{}"}
    return m.Mutation(**(named | fields))  # type: ignore[arg-type] # the test's own words


def test_a_key_loses_its_collection_and_a_value_its_packing() -> None:
    value = deflate(join_xattrs({"_sync": b"1"}, b'{"a":1}'))
    found = change_of(change(value=value, datatype=7, cas=5 << 30), ZERO, collections=True)
    assert (found.kind, found.key, found.collection_id) == (Kind.MUTATION, b"key", 8)
    assert (found.value, found.xattrs, found.datatype) == (b'{"a":1}', {"_sync": b"1"}, 5)


def test_without_collections_the_key_is_whole() -> None:
    found = change_of(change(), ZERO, collections=False)
    assert (found.key, found.collection_id) == (b"\x08key", None)


def test_what_does_not_come_apart_is_left_as_it_came() -> None:
    """One broken document must not keep everybody from the changes behind it."""
    broken = change_of(change(value=b"\xff\xff", datatype=6, key=b"\xff"), ZERO, collections=True)
    assert (broken.value, broken.key, broken.xattrs) == (b"\xff\xff", b"\xff", None)
    empty = change_of(change(value=b"", datatype=4), ZERO, collections=True)
    assert (empty.value, empty.datatype, empty.xattrs) == (b"", 4, None)


def test_extended_metadata_is_cut_off() -> None:
    assert change_of(change(value=b"{}meta", nmeta=4), ZERO, collections=True).value == b"{}"


def test_every_kind_has_its_seqno() -> None:
    commit = m.Commit(prepared_seqno=3, commit_seqno=9, key=b"\0k")
    found = change_of(commit, ZERO, collections=True)
    assert (found.kind, found.seqno, found.prepared_seqno) == (Kind.COMMIT, 9, 3)
    event = m.SystemEvent(by_seqno=2, event=0, version=0, key=b"beer")
    assert change_of(event, ZERO, collections=True).key == b"beer"


def test_a_cas_is_a_time() -> None:
    assert cas_time(1_700_000_000_000_000_000) == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert cas_time(0) is None
    assert cas_time(2**64 - 1) is not None
    assert change_of(change(cas=0), ZERO, collections=True).time is None


def made(seqno: int, stretch: Stretch, **fields: object) -> Change:
    """A change as rows become one: of all its fields at once."""
    named = {"vbucket": 1, "seqno": seqno, "kind": Kind.MUTATION, "key": b"k", "value": b"{}"}
    numbers = dict.fromkeys(("cas", "rev", "flags", "expiry", "delete_time", "datatype"), 0)
    every = {**named, **numbers, **fields, "stretch": stretch}
    return tuple.__new__(Change, [every.get(name) for name in Change._fields])


def test_a_change_makes_its_token_of_what_its_run_has_in_common() -> None:
    span = SnapshotRange(Seqno(1), Seqno(9))
    last = ResumeToken(BranchId(7), Seqno(6), span, Seqno(2))
    stretch = Stretch(last, span)
    assert made(4, stretch).token == ResumeToken(BranchId(7), Seqno(4), span, Seqno(2))
    assert made(6, stretch).token == last
    assert made(9, stretch).token.is_boundary
    waits = Stretch(last)
    assert made(1, waits).token is last, "of an out-of-order snapshot: it does not move yet"


def test_changes_are_the_same_when_their_fields_and_tokens_are() -> None:
    span = SnapshotRange(Seqno(1), Seqno(9))
    stretch = Stretch(ResumeToken(BranchId(7), Seqno(9), span), span)
    token = ResumeToken(BranchId(7), Seqno(4), span)
    one = made(4, stretch)
    same = Change(vbucket=1, seqno=4, kind=Kind.MUTATION, key=b"k", value=b"{}", token=token)
    assert one == same
    assert not one != same  # noqa: SIM202 - a tuple has an opinion of its own about it
    assert hash(one) == hash(same)
    assert one != made(4, Stretch(token, SnapshotRange(Seqno(2), Seqno(9))))
    assert one != made(4, stretch, cas=1)
    assert one != tuple(one)
    assert {one, same, made(5, stretch)} == {same, made(5, stretch)}


def test_a_change_is_frozen_and_travels() -> None:
    one = made(0, Stretch(ZERO), xattrs={"_a": b"1"})
    with pytest.raises(AttributeError):
        one.key = b"other"  # type: ignore[misc] # that it is refused is the point
    for again in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):  # noqa: S301
        assert again == one
        assert type(again) is Change
    assert repr(one).startswith("Change(vbucket=1, seqno=0, kind=<Kind.MUTATION")
    assert repr(one).endswith(f"stream_id=None, token={ZERO!r})")


def test_sentences_name_the_numbers() -> None:
    rollback = Rollback(vbucket=3, from_seqno=9, to_seqno=5, dead_branch=BranchId(0xAB), token=ZERO)
    assert "vbucket 3 is rolled back from 9 to 5: branch 00000000000000ab ended" in str(rollback)
    trouble = Trouble(vbuckets=(1, 2), reason="it is gone", attempts=2, retry_seconds=0.5)
    assert str(trouble) == "vbucket 1-2: it is gone (attempt 2); again in 0.5 s"


@pytest.mark.parametrize(
    ("vbuckets", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([6, 5], "5-6"),
        ([0, 2, 4], "0, 2, 4"),
        ([40, *range(32)], "0-31, 40"),
        (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_vbuckets_are_named_as_a_person_writes_them(vbuckets: list[int], text: str) -> None:
    assert vbucket_names(vbuckets) == text
