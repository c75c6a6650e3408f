"""What an accepted change is given: seqno, CAS, rev, checkpoint, mark."""

from __future__ import annotations

import pytest

from headrace.store import layout as at
from headrace.store.accept import next_cas, seqno_at
from tests.store.kit import make_bucket


def test_seqnos_start_at_one_and_rise_by_one() -> None:
    vbucket = make_bucket().vbucket(0)
    assert [vbucket.store(b"\0a", b"").seqno for _ in range(3)] == [1, 2, 3]
    assert vbucket.delete(b"\0b").seqno == 4


def test_revs_count_the_changes_of_a_key_deletes_included() -> None:
    vbucket = make_bucket().vbucket(0)
    revs = [
        vbucket.store(b"\0a", b"").rev,
        vbucket.delete(b"\0a").rev,
        vbucket.store(b"\0a", b"").rev,
    ]
    assert revs == [1, 2, 3]
    assert vbucket.store(b"\0b", b"").rev == 3, "a new key continues above the max deleted rev"


def test_the_cas_is_a_hybrid_clock() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    first = vbucket.store(b"\0a", b"").cas
    assert first == bucket.core.clock.now & ~0xFFFF  # type: ignore[attr-defined]
    bucket.core.clock.now -= 10**12  # type: ignore[attr-defined]
    assert vbucket.store(b"\0a", b"").cas == first + 1, "time went back, the clock does not"
    assert vbucket.store(b"\0a", b"", cas=first + 10**15).cas == first + 10**15
    assert vbucket.store(b"\0a", b"").cas == first + 10**15 + 1, "a foreign CAS moves it forward"
    assert vbucket.delete(b"\0a").cas == first + 10**15 + 2
    assert vbucket.max_cas == first + 10**15 + 2


def test_the_clock_compares_as_unsigned_numbers() -> None:
    assert next_cas(5, 0x20000) == 0x20000
    assert next_cas(0x20000, 0x2FFFF) == 0x20001
    assert next_cas(-5, 0x20000) == -4, "the bits of a CAS above 2**63"


def test_given_numbers_are_kept() -> None:
    vbucket = make_bucket().vbucket(0)
    change = vbucket.store(b"\0a", b"", seqno=10, cas=2**64 - 2, rev=2**63 + 5)
    assert change == (10, 2**64 - 2, 2**63 + 5)
    meta = vbucket.meta(b"\0a")
    assert meta is not None
    assert (meta.seqno, meta.cas, meta.rev) == change
    assert vbucket.max_cas == 2**64 - 2


@pytest.mark.parametrize("seqno", [1, 5, 0, -1, 2**63])
def test_a_seqno_that_does_not_rise_changes_nothing(seqno: int) -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.store(b"\0a", b"1", seqno=5)
    with pytest.raises(ValueError, match="seqno"):
        vbucket.store(b"\0a", b"2", seqno=seqno)
    item = vbucket.get(b"\0a")
    assert item is not None
    assert (item.value, vbucket.high_seqno, vbucket.item_count) == (b"1", 5, 1)
    assert vbucket.store(b"\0b", b"").seqno == 6


def test_living_keys_and_tombstones_are_counted() -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.store(b"\0b", b"")
    vbucket.store(b"\0a", b"")
    vbucket.delete(b"\0b")
    vbucket.expire(b"\0c")
    assert (vbucket.item_count, vbucket.tombstone_count) == (1, 2)
    vbucket.store(b"\0b", b"")
    assert (vbucket.item_count, vbucket.tombstone_count) == (2, 1)


def test_checkpoints_close_by_items_and_by_bytes() -> None:
    vbucket = make_bucket(checkpoint_items_max=3, checkpoint_bytes_max=1000).vbucket(0)
    for number in range(4):
        vbucket.store(b"\0%d" % number, b"")
    vbucket.store(b"\0large", b"x" * 2000)
    vbucket.store(b"\0next", b"")
    assert [(c.start, c.end, c.items) for c in vbucket.checkpoints] == [
        (1, 3, 3),
        (4, 5, 2),
        (6, 6, 1),
    ]


def test_prepares_and_aborts_are_not_visible() -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.prepare(b"\0p", b"", level=1)
    assert (vbucket.max_visible_seqno, vbucket.high_seqno) == (1, 2)
    vbucket.abort_prepare(b"\0p")
    assert (vbucket.max_visible_seqno, vbucket.high_seqno) == (1, 3)
    vbucket.store(b"\0b", b"")
    assert vbucket.max_visible_seqno == 4


def test_where_a_frame_keeps_its_seqno() -> None:
    assert [seqno_at(op) for op in (at.MUTATION, at.DELETION, at.PREPARE, at.SYSTEM_EVENT)] == [
        24
    ] * 4
    assert [seqno_at(op) for op in (at.COMMIT, at.ABORT)] == [32] * 2
