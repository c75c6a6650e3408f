"""What a pull may send: two limits, each overshot by one message at most."""

from __future__ import annotations

from headrace.node.outbox import REST_SHARE, Outbox


def test_room_shrinks_with_every_message() -> None:
    box = Outbox(100)
    box.add(b"x" * 60)
    assert (box.room, box.size, box.is_full) == (40, 60, False)
    box.add(b"x" * 60)
    assert (box.size, box.is_full) == (120, True)
    assert box.room <= 0


def test_a_turn_ends_before_the_pull_does() -> None:
    box = Outbox(100)
    box.begin_turn(10)
    assert box.room == 10
    box.add(b"x" * 12)
    assert box.room <= 0
    assert not box.is_full
    box.begin_turn(1000)
    assert box.room == 88


def test_a_prepare_counts_two_bytes_more() -> None:
    box = Outbox(100)
    box.add(memoryview(b"x" * 57), prepares=1)
    assert (box.size, box.counted, box.room) == (57, 59, 41)
    assert b"".join(box.parts) == b"x" * 57


def test_a_rest_that_is_not_worth_a_read_counts_as_nothing() -> None:
    box = Outbox(REST_SHARE * 10)
    box.add(b"x" * (REST_SHARE * 10 - 10))
    assert (box.room, box.is_full) == (10, False)
    box.add(b"x")
    assert (box.room, box.is_full) == (0, True)


def test_a_small_pull_is_used_up_to_the_last_byte() -> None:
    box = Outbox(REST_SHARE - 1)
    box.add(b"x" * (REST_SHARE - 2))
    assert (box.room, box.is_full) == (1, False)


def test_an_empty_box_has_room_however_little_a_turn_gives() -> None:
    box = Outbox(REST_SHARE * 10)
    box.begin_turn(1)
    assert (box.room, box.is_full) == (1, False)
