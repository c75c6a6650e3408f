"""The asyncio skin: large frames, slow applications, failures, an end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headrace.client.aio import BUFFER_SIZE
from headrace.client.changes import Change, Rollback
from headrace.errors import ConnectionLost, LocalProtocolError
from headrace.wire import messages as m
from tests.client.producer import (
    CUT,
    SILENCE,
    Producer,
    Step,
    accept,
    end,
    marker,
    mutation,
    said,
)
from tests.client.test_reader import held, rolling_script

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.reader import Follow


async def collected(follow: Follow) -> list[Change | Rollback]:
    return [one async for one in follow]


def test_a_frame_larger_than_the_buffer_arrives() -> None:
    value = b"x" * (3 * BUFFER_SIZE)

    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield from said(accept(), marker(1, 2), mutation(1, value=value), mutation(2), end())

    with Producer(script, seqnos={0: 2}) as producer, producer.connect() as bucket:
        found = asyncio.run(collected(bucket.follow(since="beginning", until="now")))
        in_bulk = list(bucket.changes(until="now"))
    assert [len(one.value) for one in found if isinstance(one, Change)] == [len(value), 7]
    values = [value for batch in in_bulk for value in batch.column("value").to_pylist()]
    assert [len(one) for one in values] == [len(value), 7]


def test_a_rollback_comes_before_the_changes_of_the_new_branch() -> None:
    with Producer(rolling_script, seqnos={0: 20}) as producer, producer.connect() as bucket:
        found = asyncio.run(collected(bucket.follow(held(5, 12), until="now")))
    assert isinstance(found[0], Rollback)
    assert [one.seqno for one in found[1:] if isinstance(one, Change)] == [6, 7, 8, 9]


def test_noop_is_answered_while_the_application_sleeps() -> None:
    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield from said(accept(), marker(1, 1), mutation(1), m.Noop(opaque=10_000_000))

    async def slow(producer: Producer) -> bool:
        async with producer.connect() as bucket:
            await anext(bucket.follow(since="beginning"))
            return await asyncio.to_thread(producer.wait_for, lambda: producer.noops_answered == 1)

    with Producer(script, seqnos={0: 1}) as producer:
        assert asyncio.run(slow(producer))


def test_a_vbucket_that_never_opens_is_given_up_with_its_reason() -> None:
    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield CUT

    with Producer(script, seqnos={0: 1}) as producer, producer.connect() as bucket:
        follow = bucket.follow(since="beginning", patience_seconds=0.2, on_trouble=lambda _: None)
        with pytest.raises(ConnectionLost, match=r"vbucket 0: .*nothing moved for 0.2 s"):
            asyncio.run(collected(follow))


def test_a_reader_belongs_to_one_skin() -> None:
    def script(_: m.StreamRequest, __: int) -> Iterator[Step]:
        yield from said(accept(), marker(1, 1), mutation(1), SILENCE)

    with Producer(script, seqnos={0: 1}) as producer, producer.connect() as bucket:
        follow = bucket.follow(since="beginning")
        next(follow)
        with pytest.raises(LocalProtocolError, match="iterated without asyncio already"):
            asyncio.run(collected(follow))
