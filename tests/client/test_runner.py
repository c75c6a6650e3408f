"""The blocking skin: openings that fail, a keeper that keeps, an end from another thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from headrace.client.access import Access
from headrace.client.address import NodeAddress
from headrace.client.runner import Opening
from headrace.errors import CannotConnect, StoreError
from tests.client.producer import (
    SILENCE,
    Producer,
    Script,
    Step,
    accept,
    marker,
    mutation,
    mutations,
    said,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.wire import messages as m


def test_an_opening_ends_with_a_link_or_an_error() -> None:
    over = threading.Event()
    opening = Opening(NodeAddress("127.0.0.1", 1), Access(connect_seconds=2), over.set)
    assert over.wait(10)
    assert opening.is_over
    assert isinstance(opening.error, CannotConnect)
    opening.abandon()


def silent_after(count: int) -> Script:
    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield from said(accept(), marker(1, count + 1), *mutations(1, count), SILENCE)

    return script


def test_a_reader_closed_by_another_thread_ends() -> None:
    with Producer(silent_after(1), seqnos={0: 2}) as producer, producer.connect() as bucket:
        reader = bucket.changes()
        ended = threading.Event()

        def read() -> None:
            list(reader)
            ended.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert producer.wait_for(lambda: len(producer.requests) == 1)
        reader.close()
        assert ended.wait(10)
        thread.join()


def test_a_shelf_that_cannot_write_ends_the_reading_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Positions have moved over the rows by then: going on would lose them."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with Producer(silent_after(5), seqnos={0: 9}) as producer, producer.connect() as bucket:
        monkeypatch.setattr("tempfile.TemporaryDirectory", full)
        reader = bucket.changes(shelf_memory=0)
        for _ in range(2):
            with pytest.raises(StoreError, match="cannot wait on disk"):
                next(reader)
        assert reader.tokens.seqno(0) == 0


def test_the_keeper_reads_while_the_application_is_away_and_acknowledges_nothing() -> None:
    more = threading.Event()

    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield from said(accept(), marker(1, 1), mutation(1))
        more.wait(10)
        yield from said(marker(2, 2), mutation(2, value=b"x" * 50_000))

    with Producer(script, seqnos={0: 2}) as producer, producer.connect() as bucket:
        reader = bucket.changes(window=65_536)
        next(reader)
        more.set()
        runner = reader._runner
        assert runner is not None
        deadline = threading.Event()
        for _ in range(100):
            if len(runner.steering.intake):
                break
            deadline.wait(0.1)
        assert len(runner.steering.intake) > 0, "it was read without being asked for"
        assert producer.acknowledged == 0
        assert next(reader).column("seqno").to_pylist() == [2]
