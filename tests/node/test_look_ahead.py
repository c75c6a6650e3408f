"""Reads that whoever comes first runs."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from headrace.errors import CorruptRecord
from headrace.node.look_ahead import Aside, LookAhead
from headrace.store.model import Chunk

CHUNK = Chunk(data=memoryview(b"abc"), count=1, first_seqno=1, last_seqno=1, read_seqno=1)


def test_a_read_that_nobody_began_is_done_by_the_one_who_takes_it() -> None:
    ahead = LookAhead(lambda: CHUNK)
    assert ahead.size == 0
    assert ahead.take() is CHUNK


def test_a_read_is_done_once() -> None:
    reads: list[int] = []

    def read() -> Chunk:
        reads.append(1)
        return CHUNK

    ahead = LookAhead(read)
    ahead.run()
    assert ahead.size == 3
    ahead.run()
    assert (ahead.take(), ahead.size, len(reads)) == (CHUNK, 0, 1)


def test_a_read_under_way_is_waited_for() -> None:
    begun, go_on = Event(), Event()

    def read() -> Chunk:
        begun.set()
        assert go_on.wait(30)
        return CHUNK

    ahead = LookAhead(read)
    aside = Aside()
    aside.run(ahead)
    assert begun.wait(30)
    Thread(target=go_on.set).start()
    assert ahead.take() is CHUNK
    aside.stop()


def test_what_a_read_raises_is_raised_where_its_chunk_is_taken() -> None:
    def read() -> Chunk:
        raise CorruptRecord("a block is gone", path="x")

    ahead = LookAhead(read)
    aside = Aside()
    aside.run(ahead)
    aside.stop()
    with pytest.raises(CorruptRecord, match="gone"):
        ahead.take()


def test_a_stopped_thread_has_run_what_it_had() -> None:
    aside = Aside()
    all_of_them = [LookAhead(lambda: CHUNK) for _ in range(5)]
    for ahead in all_of_them:
        aside.run(ahead)
    aside.stop()
    assert [ahead.size for ahead in all_of_them] == [3] * 5
