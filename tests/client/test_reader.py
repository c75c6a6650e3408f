"""Readers against a scripted producer: cuts at every place, rollback, slow applications."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

from headrace.client.changes import Change, Rollback
from headrace.client.courses import Phase
from headrace.client.tokens import TokenSet
from headrace.errors import ConnectionLost, RollbackError
from headrace.history import Boundaries, FailoverLog, ResumeToken, Seqno, SnapshotRange
from headrace.protocol.talk import Position
from headrace.wire import messages as m
from tests.client.producer import (
    CUT,
    LOG,
    SILENCE,
    Producer,
    Step,
    accept,
    end,
    marker,
    mutation,
    mutations,
    rollback,
    said,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headrace.client.reader import Changes

UUID = "00112233445566778899aabbccddeeff"


def seqnos_of(batches: list[pa.RecordBatch]) -> list[int]:
    return [seqno for batch in batches for seqno in batch.column("seqno").to_pylist()]


def asked(request: m.StreamRequest) -> tuple[int, int, int | None, int | None]:
    return (
        request.vb_uuid,
        request.start_seqno,
        request.snap_start_seqno,
        request.snap_end_seqno,
    )


def held(*boundaries: int, log: FailoverLog = LOG) -> TokenSet:
    """Tokens of a consumer that holds everything up to the last of these boundaries."""
    marks = Boundaries()
    for seqno in boundaries:
        marks = marks.recorded(Seqno(seqno), log.branch_at(Seqno(seqno)))
    token = ResumeToken.at_boundary(log.newest.uuid, Seqno(boundaries[-1]), log)
    return TokenSet(bucket="default", uuid=UUID, vbuckets=1, positions={0: Position(token, marks)})


# -- cuts ------------------------------------------------------------------------------------------


def test_a_cut_between_marker_and_first_item_resumes_from_the_old_snapshot() -> None:
    def script(_: m.StreamRequest, before: int) -> Iterator[Step]:
        yield accept()
        if before == 0:
            yield from said(marker(1, 3), *mutations(1, 3), marker(7, 9), CUT)
        else:
            yield from said(marker(7, 9), *mutations(7, 9), end())

    with Producer(script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        changes = bucket.changes(until="now")
        assert seqnos_of(list(changes)) == [1, 2, 3, 7, 8, 9]
        assert asked(producer.requests[1]) == (0xAAAA, 3, 3, 3)
        assert str(changes.tokens.token(0)) == "000000000000aaaa@9 in 9..9"


def test_a_cut_inside_a_snapshot_resumes_inside_it_and_nothing_leaves_before_it_is_whole() -> None:
    def script(_: m.StreamRequest, before: int) -> Iterator[Step]:
        yield accept()
        if before == 0:
            yield from said(marker(1, 3), *mutations(1, 3), marker(4, 9), *mutations(4, 6), CUT)
        else:
            yield from said(marker(4, 9), *mutations(7, 9), end())

    with Producer(script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        changes = bucket.changes(until="now")
        first = next(changes)
        assert seqnos_of([first]) == [1, 2, 3]
        assert changes.tokens.seqno(0) == 3, "rows that wait are not covered"
        assert seqnos_of(list(changes)) == [4, 5, 6, 7, 8, 9]
        assert asked(producer.requests[1]) == (0xAAAA, 6, 4, 9)
        assert changes.tokens.seqno(0) == 9


def test_a_reader_of_partial_snapshots_gets_rows_at_once_and_tokens_inside() -> None:
    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield accept()
        yield from said(marker(1, 9), *mutations(1, 4), SILENCE)

    with Producer(script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        changes = bucket.changes(until="now", whole=False)
        rows: list[int] = []
        while len(rows) < 4:
            rows += seqnos_of([next(changes)])
        assert rows == [1, 2, 3, 4]
        assert str(changes.tokens.token(0)) == "000000000000aaaa@4 in 1..9"


def test_a_cut_at_the_last_item_of_a_snapshot_resumes_at_its_end() -> None:
    def script(_: m.StreamRequest, before: int) -> Iterator[Step]:
        yield accept()
        if before == 0:
            yield from said(marker(1, 5), *mutations(1, 5), CUT)
        else:
            yield from said(marker(6, 8), *mutations(6, 8), end())

    with Producer(script, seqnos={0: 8}) as producer, producer.connect() as bucket:
        assert seqnos_of(list(bucket.changes(until="now"))) == list(range(1, 9))
        assert asked(producer.requests[1]) == (0xAAAA, 5, 5, 5)


def test_a_cut_during_an_out_of_order_snapshot_starts_it_again_and_shows_rows_once() -> None:
    def script(_: m.StreamRequest, before: int) -> Iterator[Step]:
        yield accept()
        yield m.OsoSnapshot(oso_flags=1)
        yield from (mutation(4), mutation(2))
        if before == 0:
            yield CUT
        yield from (mutation(5), mutation(1), m.OsoSnapshot(oso_flags=2), end())

    with Producer(script, seqnos={0: 5}) as producer, producer.connect() as bucket:
        changes = bucket.changes(until="now", out_of_order=True)
        assert seqnos_of(list(changes)) == [4, 2, 5, 1]
        assert asked(producer.requests[1])[1] == 0, "nothing of it counted before its end"
        assert changes.tokens.seqno(0) == 5
        assert producer.controls["enable_out_of_order_snapshots"] == "true_with_seqno_advanced"


def test_objects_of_a_cut_out_of_order_snapshot_are_withdrawn_before_they_come_again() -> None:
    def script(_: m.StreamRequest, before: int) -> Iterator[Step]:
        yield accept()
        yield from said(m.OsoSnapshot(oso_flags=1), mutation(4), mutation(2))
        yield from said(CUT) if before == 0 else said(m.OsoSnapshot(oso_flags=2), end())

    with Producer(script, seqnos={0: 4}) as producer, producer.connect() as bucket:
        told = list(bucket.follow(since="beginning", until="now", out_of_order=True))
    shown = [
        one.seqno if isinstance(one, Change) else (one.from_seqno, one.to_seqno) for one in told
    ]
    assert shown == [4, 2, (4, 0), 4, 2]


def test_a_cut_during_a_previous_branch_retry_asks_again_for_what_is_held() -> None:
    log = FailoverLog.of((0xBBBB, 20), (0xAAAA, 0))

    def script(request: m.StreamRequest, before: int) -> Iterator[Step]:
        if request.vb_uuid == 0xBBBB:
            yield rollback(0)
        elif before == 1:
            yield CUT
        else:
            yield accept(FailoverLog.of((0xCCCC, 20), (0xAAAA, 0)))
            yield from said(marker(21, 22), *mutations(21, 22), end())

    with Producer(script, seqnos={0: 22}) as producer, producer.connect() as bucket:
        changes = bucket.changes(since=held(5, 20, log=log), until="now")
        assert seqnos_of(list(changes)) == [21, 22]
        assert [asked(one)[:2] for one in producer.requests] == [
            (0xBBBB, 20),
            (0xAAAA, 20),
            (0xBBBB, 20),
            (0xAAAA, 20),
        ], "a refused branch withdraws nothing before a position is accepted"


def test_a_stream_that_ends_inside_its_snapshot_is_asked_for_again_up_to_its_end() -> None:
    def script(_: m.StreamRequest, before: int) -> Iterator[Step]:
        yield accept()
        if before == 0:
            yield from said(marker(1, 9), *mutations(1, 5), end())
        else:
            yield from said(marker(1, 9), *mutations(6, 9), end())

    with Producer(script, seqnos={0: 5}) as producer, producer.connect() as bucket:
        assert seqnos_of(list(bucket.changes(until="now"))) == list(range(1, 10))
        assert producer.requests[1].end_seqno == 9


# -- rollback --------------------------------------------------------------------------------------


def rolling_script(request: m.StreamRequest, _: int) -> Iterator[Step]:
    """Roll back to 7 whoever is past it; then stream on from wherever they are."""
    new = FailoverLog.of((0xBBBB, 7), (0xAAAA, 0))
    if request.start_seqno > 7:
        yield rollback(7)
        return
    yield accept(new)
    first = request.start_seqno + 1
    yield from said(marker(first, 9), *mutations(first, 9), end())


def test_a_rollback_raises_before_any_row_of_the_new_branch_and_iteration_goes_on() -> None:
    with Producer(rolling_script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        changes = bucket.changes(since=held(5, 12), until="now")
        producer.seqnos[0] = 20
        with pytest.raises(RollbackError, match="rolled back from 12 to 5") as caught:
            next(changes)
        told = caught.value.rollback
        assert isinstance(told, Rollback)
        assert (told.vbucket, told.from_seqno, told.to_seqno) == (0, 12, 5)
        assert told.dead_branch == 0xAAAA
        assert changes.tokens.seqno(0) == 5, "the boundary at or below 7 that is held"
        assert seqnos_of(list(changes)) == [6, 7, 8, 9]


def test_a_rollback_is_handed_out_or_given_to_a_function_when_asked_for() -> None:
    with Producer(rolling_script, seqnos={0: 20}) as producer, producer.connect() as bucket:
        items: list[object] = list(
            bucket.changes(since=held(5, 12), until="now", on_rollback="yield")
        )
        assert isinstance(items[0], Rollback)
        seen: list[Rollback] = []
        batches = list(bucket.changes(since=held(5, 12), until="now", on_rollback=seen.append))
        assert [one.to_seqno for one in seen] == [5]
        assert seqnos_of(batches) == [6, 7, 8, 9]


def test_follow_hands_a_rollback_out_between_changes() -> None:
    with Producer(rolling_script, seqnos={0: 20}) as producer, producer.connect() as bucket:
        told = list(bucket.follow(held(5, 12), until="now"))
    assert isinstance(told[0], Rollback)
    assert [one.seqno for one in told[1:] if isinstance(one, Change)] == [6, 7, 8, 9]


def test_a_rollback_of_rows_nobody_was_given_is_not_told() -> None:
    """The snapshot was cut, and its branch died before it was whole."""

    def script(_: m.StreamRequest, before: int) -> Iterator[Step]:
        if before == 0:
            yield from said(
                accept(), marker(1, 5), *mutations(1, 5), marker(6, 9), mutation(6), CUT
            )
        elif before == 1:
            yield rollback(5)
        else:
            yield accept(FailoverLog.of((0xBBBB, 5), (0xAAAA, 0)))
            yield from said(marker(6, 7), mutation(6, value=b"new"), mutation(7), end())

    with Producer(script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        batches = list(bucket.changes(until="now"))
        assert seqnos_of(batches) == [1, 2, 3, 4, 5, 6, 7]
        values = [value for batch in batches for value in batch.column("value").to_pylist()]
        assert values[5] == b"new"


# -- patience --------------------------------------------------------------------------------------


def test_a_vbucket_that_never_opens_is_reported_and_given_up_with_its_reason() -> None:
    troubles: list[str] = []

    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield CUT

    with Producer(script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        changes = bucket.changes(
            until="now", patience_seconds=0.3, on_trouble=lambda one: troubles.append(str(one))
        )
        with pytest.raises(ConnectionLost, match=r"vbucket 0: .* nothing moved for 0.3 s"):
            next(changes)
    assert len(troubles) > 1
    assert "closed the connection (attempt 1); again in" in troubles[0]


def test_health_names_what_is_stuck_while_it_is_still_tried() -> None:
    def script(_: m.StreamRequest, before: int) -> Iterator[Step]:
        if before < 4:
            yield CUT
        else:
            yield from said(accept(), marker(1, 2), *mutations(1, 2), SILENCE)

    with Producer(script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        reasons: list[str] = []
        changes: Changes = bucket.changes(
            on_trouble=lambda _: reasons.extend(one.stuck_reason for one in changes.health.stuck)
        )
        next(changes)
        assert any("closed the connection" in reason for reason in reasons)
        (one,) = changes.health.vbuckets
        assert (one.state, one.seqno, one.handed_seqno) == (Phase.STREAMING.value, 2, 2)
        assert (one.lag_items, one.high_seqno, one.stuck_reason) == (7, 9, "")
        assert one.backfill_progress == pytest.approx(2 / 9)
        assert 'headrace_consumer_lag_items{vbucket="0"} 7' in changes.health.to_prometheus()


# -- slow applications -----------------------------------------------------------------------------

VALUE = b"x" * 1000
WINDOW = 64 << 10


def test_a_slow_application_holds_a_window_and_the_producer_waits() -> None:
    """What is not done with is not acknowledged; the producer is never told to send more."""

    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield accept()
        for seqno in range(1, 101):
            yield from said(marker(seqno, seqno), mutation(seqno, value=VALUE))

    def size(seqno: int) -> int:
        return 44 + 55 + 1 + len(b"k%d" % seqno) + len(VALUE)

    with Producer(script, seqnos={0: 100}) as producer, producer.connect() as bucket:
        changes = bucket.changes(window=WINDOW)
        first = next(changes)
        got = first.num_rows
        assert producer.acknowledged <= WINDOW, "only markers were given back"
        before = producer.acknowledged
        while got < 100:
            got += next(changes).num_rows
        runner = changes._runner
        assert runner is not None
        total = sum(size(seqno) for seqno in range(1, 101))
        (link,) = runner.links.values()
        window = link.connection.window
        assert window.held + window.freed + window.total_acknowledged == total
        assert window.held > 0, "the last batch is still with the application"
        assert producer.controls["connection_buffer_size"] == str(WINDOW)
        assert before <= producer.acknowledged


def test_noop_is_answered_while_the_application_is_busy() -> None:
    ready = threading.Event()

    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield from said(accept(), marker(1, 1), mutation(1))
        ready.wait(10)
        yield m.Noop(opaque=10_000_000)

    with Producer(script, seqnos={0: 1}) as producer, producer.connect() as bucket:
        changes = bucket.changes()
        next(changes)
        ready.set()  # the application does something else from here on
        assert producer.wait_for(lambda: producer.noops_answered == 1)


def test_a_snapshot_larger_than_the_window_becomes_whole() -> None:
    """Its rows wait, their bytes do not: otherwise neither end could ever go on."""

    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield from said(accept(), marker(1, 400))
        for seqno in range(1, 401):
            yield mutation(seqno, value=VALUE)
        yield end()

    with Producer(script, seqnos={0: 400}) as producer, producer.connect() as bucket:
        changes = bucket.changes(until="now", window=WINDOW)
        assert sum(batch.num_rows for batch in changes) == 400
        assert producer.acknowledged > WINDOW


# -- filters, tokens, asyncio ----------------------------------------------------------------------


def two_vbuckets(_: m.StreamRequest, __: int) -> Iterator[Step]:
    yield accept()
    yield from said(marker(1, 4, flags=6), *mutations(1, 3), m.SeqnoAdvanced(by_seqno=4), end())


def test_filters_leave_rows_out_and_tokens_move_over_them() -> None:
    two = Producer(two_vbuckets, vbuckets=2, seqnos={0: 4, 1: 4})
    with two as producer, producer.connect() as bucket:
        changes = bucket.changes(until="now", key_prefix="k2")
        assert seqnos_of(list(changes)) == [2, 2]
        assert [changes.tokens.seqno(v) for v in (0, 1)] == [4, 4]
        changes = bucket.changes(until="now", where=lambda row: row["seqno"] == 3, vbuckets=[1])
        assert seqnos_of(list(changes)) == [3]


def test_tokens_of_batches_and_of_objects_are_equal() -> None:
    two = Producer(two_vbuckets, vbuckets=2, seqnos={0: 4, 1: 4})
    with two as producer, producer.connect() as bucket:
        bulk: Changes = bucket.changes(until="now")
        rows = seqnos_of(list(bulk))
        single = bucket.follow(since="beginning", until="now")
        assert [one.seqno for one in single if isinstance(one, Change)] == rows
        assert bulk.tokens == single.tokens
        assert TokenSet.from_text(bulk.tokens.to_text()) == bulk.tokens


def test_asyncio_gets_the_same_changes_and_tokens() -> None:
    def script(_: m.StreamRequest, before: int) -> Iterator[Step]:
        yield accept()
        if before == 0:
            yield from said(marker(1, 3), *mutations(1, 3), marker(4, 9), *mutations(4, 6), CUT)
        else:
            yield from said(marker(4, 9), *mutations(7, 9), end())

    async def read(producer: Producer) -> tuple[list[int], TokenSet]:
        async with producer.connect() as bucket:
            follow = bucket.follow(since="beginning", until="now")
            found = [one.seqno async for one in follow if isinstance(one, Change)]
            return found, follow.tokens

    with Producer(script, seqnos={0: 9}) as producer:
        found, tokens = asyncio.run(read(producer))
    assert found == list(range(1, 10))
    assert str(tokens.token(0)) == "000000000000aaaa@9 in 9..9"


def test_since_now_starts_behind_everything_there_is() -> None:
    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield from said(accept(), marker(10, 10), mutation(10), end())

    with Producer(script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        follow = bucket.follow()
        one = next(follow)
        assert isinstance(one, Change)
        assert one.seqno == 10
        assert asked(producer.requests[0]) == (0xAAAA, 9, 9, 9)


def test_a_token_inside_a_snapshot_is_resumed_as_it_is() -> None:
    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield from said(accept(), marker(2, 9), *mutations(6, 9), end())

    token = ResumeToken(LOG.newest.uuid, Seqno(5), SnapshotRange(Seqno(2), Seqno(9)), log=LOG)
    tokens = TokenSet(
        bucket="default", uuid=UUID, vbuckets=1, positions={0: Position(token, Boundaries())}
    )
    with Producer(script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        assert seqnos_of(list(bucket.changes(since=tokens, until="now"))) == [6, 7, 8, 9]
        assert asked(producer.requests[0]) == (0xAAAA, 5, 2, 9)


def test_a_reader_that_is_closed_ends() -> None:
    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield from said(accept(), marker(1, 1), mutation(1), SILENCE)

    with Producer(script, seqnos={0: 1}) as producer, producer.connect() as bucket:
        with bucket.changes() as changes, contextlib.suppress(StopIteration):
            next(changes)
        assert list(changes) == []
        assert changes.tokens.seqno(0) == 1, "tokens outlive their reader"


# -- histories that were cut short -----------------------------------------------------------------


def test_tokens_at_or_beyond_a_source_that_lost_changes_are_rolled_back() -> None:
    """The source is at 9 again, or not yet, on another branch: no seqno tells them apart."""
    new = FailoverLog.of((0xBBBB, 5), (0xAAAA, 0))

    def script(_: m.StreamRequest, before: int) -> Iterator[Step]:
        if before == 0:
            yield rollback(5)
        else:
            yield accept(new)
            yield from said(marker(6, 9), *mutations(6, 9), end())

    with Producer(script, seqnos={0: 9}, log=new) as producer, producer.connect() as bucket:
        things = list(bucket.changes(since=held(5, 9), until="now", on_rollback="yield"))
        assert isinstance(things[0], Rollback)
        assert (things[0].from_seqno, things[0].to_seqno) == (9, 5)
        assert seqnos_of(things[1:]) == [6, 7, 8, 9]


def test_an_end_that_was_lost_before_the_stream_was_opened_is_not_waited_for() -> None:
    """A consumer below the new branch is not rolled back, and the chosen end never comes."""
    new = FailoverLog.of((0xBBBB, 7), (0xAAAA, 0))

    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        producer.seqnos[0] = 7
        yield accept(new)
        yield from said(marker(6, 7), *mutations(6, 7))

    with Producer(script, seqnos={0: 9}, log=new) as producer, producer.connect() as bucket:
        assert seqnos_of(list(bucket.changes(since=held(5), until="now"))) == [6, 7]


def test_a_reader_that_is_closed_while_it_starts_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield accept()

    with Producer(script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        changes = bucket.changes()
        seqnos = bucket.seqnos

        def close_and_ask() -> dict[int, int]:
            changes.close()
            return seqnos()

        monkeypatch.setattr(bucket, "seqnos", close_and_ask)
        assert list(changes) == []
