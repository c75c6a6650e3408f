"""Windows and noops, both ends, with the time told to them."""

from __future__ import annotations

import random

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.protocol.flow import (
    ACK_BYTES_MAX,
    ACK_INTERVAL_SECONDS,
    COUNTED,
    IDLE_TIMEOUT_SECONDS,
    NOOP_OPAQUE_BASE,
    STUCK_SECONDS,
    WINDOW_MAX,
    ConsumerWindow,
    NoopSender,
    NoopWatch,
    ProducerWindow,
    counted_size,
)
from headrace.wire.opcodes import Opcode


@pytest.mark.parametrize(
    ("opcode", "size", "counted"),
    [
        (Opcode.MUTATION, 55, 55),
        (Opcode.DELETION, 42, 42),
        (Opcode.DELETION, 45, 45),
        (Opcode.EXPIRATION, 44, 44),
        (Opcode.PREPARE, 55, 57),
        (Opcode.COMMIT, 40, 40),
        (Opcode.ABORT, 40, 40),
        (Opcode.SNAPSHOT_MARKER, 44, 44),
        (Opcode.SNAPSHOT_MARKER, 61, 61),
        (Opcode.SNAPSHOT_MARKER, 77, 77),
        (Opcode.STREAM_END, 28, 28),
        (Opcode.SET_VBUCKET_STATE, 25, 25),
        (Opcode.SYSTEM_EVENT, 37, 37),
        (Opcode.SEQNO_ADVANCED, 32, 32),
        (Opcode.OSO_SNAPSHOT, 28, 28),
        (Opcode.CACHE_TRANSFER, 100, 100),
        (Opcode.CACHE_TRANSFER_END, 24, 24),
        (Opcode.NOOP, 24, 0),
        (Opcode.STREAM_REQ, 40, 0),
        (Opcode.CONTROL, 24, 0),
        (0xEE, 24, 0),
    ],
)
def test_a_message_counts_as_released_servers_count_it(
    opcode: int, size: int, counted: int
) -> None:
    assert counted_size(opcode, size) == counted


def test_exactly_the_producers_requests_but_noop_are_counted() -> None:
    codes = "55 56 57 58 59 5b 5f 60 62 63 64 65 66 67"
    assert sorted(COUNTED) == [int(code, 16) for code in codes.split()]


def test_one_message_may_overshoot_the_window_and_the_next_may_not() -> None:
    window = ProducerWindow(1024)
    window.sent(1000, now=0)
    assert (window.is_full, window.room) == (False, 24)
    window.sent(166, now=0)
    assert (window.is_full, window.outstanding, window.room) == (True, 1166, 0)
    with pytest.raises(LocalProtocolError, match="1 bytes sent into a full window: 1166 of 1024"):
        window.sent(1, now=0)


def test_uncounted_messages_pass_a_full_window() -> None:
    window = ProducerWindow(10)
    window.sent(10, now=0)
    window.sent(counted_size(Opcode.NOOP, 24), now=0)
    assert window.outstanding == 10


def test_without_flow_control_nothing_is_outstanding_or_full() -> None:
    window = ProducerWindow()
    window.sent(10**9, now=0)
    assert (window.outstanding, window.is_full, window.room) == (0, False, None)
    assert window.total_sent == 10**9


def test_an_acknowledgement_of_too_much_is_clamped_to_nothing_outstanding() -> None:
    window = ProducerWindow(100)
    window.sent(60, now=0)
    window.acknowledged(61, now=0)
    assert window.outstanding == 0
    assert window.total_acknowledged == 61


def test_resizing_keeps_the_count_and_zero_clears_it() -> None:
    window = ProducerWindow(100)
    window.sent(100, now=0)
    window.resize(200)
    assert (window.outstanding, window.is_full) == (100, False)
    window.resize(50)
    assert window.is_full
    window.resize(0)
    assert (window.outstanding, window.is_full) == (0, False)


@pytest.mark.parametrize("size", [-1, WINDOW_MAX + 1])
def test_a_window_that_32_bits_cannot_say_is_refused(size: int) -> None:
    with pytest.raises(LocalProtocolError, match=r"allowed 0\.\.4294967295"):
        ProducerWindow(size)
    with pytest.raises(LocalProtocolError, match=r"allowed 0\.\.4294967295"):
        ConsumerWindow(size, now=0)


def test_a_full_window_without_acknowledgement_is_stuck_in_the_end() -> None:
    window = ProducerWindow(10)
    window.sent(9, now=0)
    assert not window.is_stuck(now=10 * STUCK_SECONDS), "not full"
    window.sent(9, now=100)
    assert not window.is_stuck(now=99 + STUCK_SECONDS)
    assert window.is_stuck(now=100 + STUCK_SECONDS)
    window.acknowledged(1, now=200)
    assert not window.is_stuck(now=199 + STUCK_SECONDS), "any acknowledgement is progress"
    window.acknowledged(17, now=300)
    assert not window.is_stuck(now=300 + 2 * STUCK_SECONDS)


def test_an_ack_is_due_past_a_fifth_of_the_window() -> None:
    window = ConsumerWindow(1000, now=0)
    window.received(500)
    window.processed(200)
    assert window.take_ack(now=1) == 0
    window.processed(1)
    assert window.take_ack(now=1) == 201
    assert window.take_ack(now=1) == 0
    assert (window.held, window.total_acknowledged) == (299, 201)


def test_an_ack_of_anything_is_due_once_the_interval_has_passed() -> None:
    window = ConsumerWindow(1000, now=0)
    assert window.ack_at() is None
    assert window.take_ack(now=100) == 0, "nothing to acknowledge"
    window.received(1)
    window.processed(1)
    assert window.ack_at() == ACK_INTERVAL_SECONDS
    assert window.take_ack(now=ACK_INTERVAL_SECONDS - 0.1) == 0
    assert window.take_ack(now=ACK_INTERVAL_SECONDS) == 1


def test_the_threshold_can_be_chosen() -> None:
    window = ConsumerWindow(1000, now=0, ack_threshold=800)
    window.received(1000)
    window.processed(800)
    assert window.take_ack(now=0) == 0
    window.processed(1)
    assert window.take_ack(now=0) == 801


@pytest.mark.parametrize("size", [11, -1])
def test_what_was_not_received_cannot_be_processed(size: int) -> None:
    window = ConsumerWindow(1000, now=0)
    window.received(10)
    with pytest.raises(LocalProtocolError, match="10 are held"):
        window.processed(size)
    assert (window.held, window.freed) == (10, 0)


def test_an_ack_fits_in_32_bits_and_the_rest_follows() -> None:
    window = ConsumerWindow(WINDOW_MAX, now=0)
    window.received(ACK_BYTES_MAX + 10**9)
    window.processed(ACK_BYTES_MAX + 10**9)
    assert window.take_ack(now=0) == ACK_BYTES_MAX
    assert window.take_ack(now=0) == 10**9


def test_without_flow_control_nothing_is_acknowledged() -> None:
    window = ConsumerWindow(0, now=0)
    window.received(10)
    window.processed(10)
    assert window.take_ack(now=1000) == 0


@pytest.mark.parametrize("seed", range(30))
def test_both_ends_agree_and_never_stall(seed: int) -> None:
    """Whatever the sizes and delays: all bytes arrive, none is acknowledged twice."""
    rng = random.Random(seed)
    producer, consumer = ProducerWindow(1000), ConsumerWindow(1000, now=0)
    sizes = [rng.choice([24, 55, 300, 2500]) for _ in range(300)]
    link: list[int] = []
    now, sent = 0.0, 0
    for _ in range(5_000):
        now += rng.random() * 2
        if sent < len(sizes) and not producer.is_full and rng.random() < 0.7:
            producer.sent(sizes[sent], now=now)
            link.append(sizes[sent])
            sent += 1
        elif link and rng.random() < 0.7:
            consumer.received(link[0])
            consumer.processed(link.pop(0))
        ack = consumer.take_ack(now=now)
        if ack:
            producer.acknowledged(ack, now=now)
        assert producer.outstanding == sum(link) + consumer.held + consumer.freed, f"seed {seed}"
    assert sent == len(sizes), f"seed {seed}"
    assert producer.outstanding == 0, f"seed {seed}: everything is acknowledged in the end"


def test_a_noop_goes_out_every_interval_if_the_last_was_answered() -> None:
    noop = NoopSender(now=0, interval_seconds=10)
    assert noop.take_noop(now=9.9) is None
    first = noop.take_noop(now=10)
    assert first == NOOP_OPAQUE_BASE
    assert noop.take_noop(now=30) is None, "one at a time"
    noop.answered(first)
    assert noop.take_noop(now=30) == first + 1


def test_a_noop_reply_to_another_question_is_the_peers_fault() -> None:
    noop = NoopSender(now=0, interval_seconds=10)
    with pytest.raises(RemoteProtocolError, match="opaque 5, none is expected"):
        noop.answered(5)
    noop.take_noop(now=10)
    with pytest.raises(RemoteProtocolError, match="opaque 5, expected 10000000"):
        noop.answered(5)


def test_a_producer_gives_up_after_the_longer_of_two_intervals_and_the_idle_timeout() -> None:
    short = NoopSender(now=0, interval_seconds=1)
    assert not short.is_dead(now=IDLE_TIMEOUT_SECONDS - 1)
    assert short.is_dead(now=IDLE_TIMEOUT_SECONDS)
    short.heard(now=300)
    assert not short.is_dead(now=300 + IDLE_TIMEOUT_SECONDS - 1)
    long = NoopSender(now=0, interval_seconds=1000)
    assert not long.is_dead(now=1999)
    assert long.is_dead(now=2000)


def test_the_next_moment_is_the_question_or_the_end() -> None:
    noop = NoopSender(now=0, interval_seconds=10)
    assert noop.next_at() == 10
    noop.take_noop(now=10)
    assert noop.next_at() == IDLE_TIMEOUT_SECONDS


def test_an_interval_can_be_set_down_to_a_tenth_of_a_second() -> None:
    noop = NoopSender(now=0)
    noop.set_interval(0.1)
    assert noop.take_noop(now=0.1) is not None
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(LocalProtocolError, match=r"at least 0\.1"):
            noop.set_interval(bad)


def test_a_consumer_gives_up_after_two_silent_intervals_but_not_before_a_stream_exists() -> None:
    watch = NoopWatch(interval_seconds=10, now=0)
    assert watch.dead_at() is None
    assert not watch.is_dead(now=1000)
    watch.watch(now=1000)
    assert not watch.is_dead(now=1019)
    assert watch.is_dead(now=1020)
    watch.heard(now=1015)
    watch.watch(now=1016)
    assert watch.dead_at() == 1035


def test_a_noop_is_due_at_the_very_moment_that_was_told() -> None:
    begun = 1000.0000000000018  # (begun + 0.1) - begun is a little less than 0.1
    sender = NoopSender(now=begun, interval_seconds=1.1, idle_timeout_seconds=360.0)
    for _ in range(1000):
        due = sender.next_at()
        opaque = sender.take_noop(now=due)
        assert opaque is not None, f"not due at {due!r}"
        sender.answered(opaque)
        sender.heard(now=due)
