"""Turns and slots: nobody twice, nobody forgotten, never more backfills than allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from headrace.node.schedule import Schedule
from headrace.node.stream_states import Progress
from headrace.wire.opcodes import StreamEndReason

if TYPE_CHECKING:
    from headrace.node.stream import Stream


class Fake:
    """As much of a stream as a schedule looks at."""

    def __init__(self, *, backfilling: bool = False) -> None:
        self.is_queued = self.has_slot = self.awaits_slot = False
        self.is_backfilling = backfilling
        self.reason: StreamEndReason | None = None


def streams(count: int, *, backfilling: bool = False) -> list[Stream]:
    return [cast("Stream", Fake(backfilling=backfilling)) for _ in range(count)]


def test_streams_take_turns_in_the_order_they_became_ready() -> None:
    schedule, (one, two) = Schedule(4), streams(2)
    for stream in (one, two, one):
        schedule.enqueue(stream)
    assert schedule.take() is one
    schedule.settle(one, Progress.MORE)
    assert [schedule.take(), schedule.take(), schedule.take()] == [two, one, None]


def test_an_idle_stream_has_no_turn() -> None:
    schedule, (one,) = Schedule(4), streams(1)
    schedule.enqueue(one)
    assert schedule.take() is one
    schedule.settle(one, Progress.IDLE)
    assert schedule.is_empty


def test_a_dead_stream_is_passed_over() -> None:
    schedule, (dead, living) = Schedule(4), streams(2)
    schedule.enqueue(dead)
    schedule.enqueue(living)
    dead.reason = StreamEndReason.CLOSED
    assert schedule.take() is living


def test_backfills_beyond_the_limit_wait_for_a_slot() -> None:
    schedule, waiting = Schedule(2), streams(3, backfilling=True)
    for stream in waiting:
        schedule.settle(stream, Progress.SLOT)
        schedule.settle(stream, Progress.SLOT)
    assert [stream.has_slot for stream in waiting] == [True, True, False]
    assert (schedule.backfills, schedule.waiting) == (2, 1)
    cast("Fake", waiting[0]).is_backfilling = False
    schedule.settle(waiting[0], Progress.IDLE)
    assert [stream.has_slot for stream in waiting] == [False, True, True]
    assert (schedule.backfills, schedule.waiting) == (2, 0)


def test_a_dead_stream_takes_no_slot() -> None:
    schedule, (one, dead, next_one) = Schedule(1), streams(3, backfilling=True)
    for stream in (one, dead, next_one):
        schedule.settle(stream, Progress.SLOT)
    dead.reason = StreamEndReason.CLOSED
    schedule.give_back(one)
    schedule.give_back(one)
    assert (dead.has_slot, next_one.has_slot, schedule.backfills) == (False, True, 1)


def test_clearing_forgets_everyone() -> None:
    schedule, (one, two) = Schedule(1), streams(2, backfilling=True)
    for stream in (one, two):
        schedule.settle(stream, Progress.SLOT)
    schedule.clear()
    assert (schedule.take(), schedule.waiting, schedule.backfills) == (None, 0, 0)
