"""Where a stream's next marker may begin and must end."""

from __future__ import annotations

from headrace.history import Seqno, SnapshotRange
from headrace.node.marker_book import MarkerBook


def book(start: int, low: int, high: int) -> MarkerBook:
    return MarkerBook(start, SnapshotRange(Seqno(low), Seqno(high)))


def test_the_first_marker_starts_where_the_requested_snapshot_does() -> None:
    assert book(22, 20, 40).start_of(23) == 20
    assert book(20, 20, 20).start_of(25) == 20


def test_a_later_marker_starts_at_its_own_range() -> None:
    markers = book(0, 0, 0)
    markers.begin(0, 5)
    markers.close(shown_seqno=5)
    assert markers.start_of(9) == 9
    assert markers.sent_end == 5


def test_a_reader_inside_a_snapshot_is_owed_its_end() -> None:
    markers = book(22, 20, 40)
    assert markers.owed_end == 40
    markers.begin(20, 40)
    assert markers.owed_end == 0


def test_at_either_end_of_a_snapshot_nothing_is_owed() -> None:
    assert book(20, 20, 40).owed_end == 0
    assert book(40, 20, 40).owed_end == 0


def test_an_open_marker_is_covered_by_the_next() -> None:
    markers = book(0, 0, 0)
    markers.begin(0, 5)
    markers.close(shown_seqno=5)
    markers.begin(6, 10)
    assert markers.holds(10)
    assert not markers.holds(11)
    assert markers.reached(9) == 0
    assert markers.start_of(8) == 6


def test_a_marker_whose_end_was_not_shown_is_covered_by_the_next() -> None:
    markers = book(0, 0, 0)
    markers.begin(3, 10)
    assert markers.reached(12) == 10
    markers.close(shown_seqno=8)
    assert markers.start_of(14) == 3
    markers.begin(3, 15)
    markers.close(shown_seqno=15)
    assert markers.start_of(16) == 16


def test_a_snapshot_without_a_marker_uses_up_the_first() -> None:
    markers = book(0, 0, 0)
    markers.skip()
    assert markers.start_of(15) == 15
