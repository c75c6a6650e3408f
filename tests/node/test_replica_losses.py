"""Streams whose vbucket is changed by others: closed at the producer, at once, and added again."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

import pytest

from headrace.node.replica_context import ReplicaSettings
from headrace.wire import messages as m
from headrace.wire.dialect import Dialect
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import Status, StreamFlag, VBucketState
from tests.node.replica_kit import Consumer, Pair, replica_host, told_to_go_back
from tests.node.stream_kit import Host, make_host, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.wire.message import Message


def standing(dialect: Dialect = Dialect.DCP_7) -> Pair:
    """A pair with a stream of vbucket 0 that has received two snapshots and stands idle."""
    pair = Pair(make_host(), Consumer(replica_host(), dialect=dialect, features=()))
    pair.add(0)
    for name in ("a", "b"):
        put(pair.active.bucket.vbucket(0), name)
        pair.settle()
    pair.consumer.sent.clear()
    return pair


def flush(host: Host) -> None:
    host.bucket.flush()
    host.feed.tell_all()


def fail_over(host: Host) -> None:
    host.bucket.vbucket(0).failover(1)
    host.feed.tell(0)


def make_anew(host: Host) -> None:
    host.bucket.delete_vbucket(0)
    host.bucket.create_vbucket(0, VBucketState.REPLICA)
    host.feed.tell(0)


CHANGES = [flush, fail_over, make_anew]


def pulled(pair: Pair) -> list[Message]:
    """What the replica sends when it is woken, and nothing came."""
    return pair.consumer.feed(b"")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_lost_stream_is_closed_at_the_producer_although_nothing_comes(
    change: Callable[[Host], None], dialect: Dialect
) -> None:
    pair = standing(dialect)
    wakes = pair.consumer.session.wakes
    change(pair.consumer.host)
    assert pair.consumer.session.wakes > wakes
    assert pair.consumer.replica.has_more
    (request,) = pulled(pair)
    assert isinstance(request, m.CloseStream)
    assert request.vbucket == 0
    assert not pair.consumer.replica.streams
    assert not pair.consumer.host.inbound
    assert pair.consumer.host.feed.watchers(0) == 0
    assert pulled(pair) == [], "said once"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dialect", list(Dialect))
def test_the_next_stream_brings_everything_back(
    change: Callable[[Host], None], dialect: Dialect
) -> None:
    pair = standing(dialect)
    change(pair.consumer.host)
    pair.settle()
    assert not pair.producer.streams, "the producer was told"
    pair.add(0)
    pair.settle()
    copy, source = (one.bucket.vbucket(0) for one in (pair.consumer.host, pair.active))
    assert (copy.high_seqno, copy.item_count) == (2, 2)
    assert copy.failover_log == source.failover_log
    assert pair.consumer.replica.closed_reason is None
    assert pair.producer.closed_reason is None


def test_add_stream_that_comes_before_the_loss_was_told_closes_the_old_stream_first() -> None:
    pair = standing()
    pair.consumer.host.bucket.flush()
    said = pair.consumer.add(0)
    assert [type(one) for one in said][:2] == [m.CloseStream, m.StreamRequest]


def test_a_stream_of_another_connection_is_closed_by_that_connection() -> None:
    pair = standing()
    other = Consumer(pair.consumer.host, name=b"replication:other")
    pair.consumer.host.bucket.flush()
    wakes = pair.consumer.session.wakes
    other.add(0)
    assert pair.consumer.session.wakes > wakes
    assert [type(one) for one in pulled(pair)] == [m.CloseStream]
    assert 0 in other.replica.streams
    assert other.host.feed.watchers(0) == 1


def test_what_still_comes_is_refused_and_acknowledged() -> None:
    pair = standing()
    opaque = pair.consumer.replica.streams[0].opaque
    flush(pair.consumer.host)
    marker = m.SnapshotMarker(start_seqno=3, end_seqno=3, flags=1, opaque=opaque)
    freed = pair.consumer.replica.window.freed
    said = pair.consumer.tell(marker)
    assert [type(one) for one in said] == [m.CloseStream, ErrorReply]
    assert isinstance(said[1], ErrorReply)
    assert said[1].status in (Status.KEY_ENOENT, Status.STREAM_NOT_FOUND)
    assert pair.consumer.replica.window.freed > freed
    assert pair.consumer.host.bucket.vbucket(0).high_seqno == 0


def test_a_copy_that_is_promoted_closes_its_stream() -> None:
    pair = standing()
    pair.consumer.host.set_state(0, VBucketState.ACTIVE)
    assert [type(one) for one in pulled(pair)] == [m.CloseStream]


def test_a_stream_that_is_being_asked_for_is_refused_by_its_answer() -> None:
    pair = Pair(make_host(), Consumer(replica_host()))
    pair.add(1)  # the negotiation is over
    asked = pair.consumer.add(0, opaque=0x777)
    opaque = pair.consumer.replica.streams[0].opaque
    assert [type(one) for one in asked] == [m.StreamRequest]
    flush(pair.consumer.host)
    assert [one.vbucket for one in pulled(pair) if isinstance(one, m.CloseStream)] == [1]
    log = (m.FailoverEntry(3, 0),)
    (reply,) = pair.consumer.tell(m.StreamRequestReply(opaque=opaque, failover_log=log))
    assert isinstance(reply, ErrorReply)
    assert (reply.opaque, reply.status) == (0x777, Status.NOT_MY_VBUCKET)


def test_what_a_stream_does_itself_is_no_loss() -> None:
    """A rollback it was told, a takeover: both look like one while they are under way."""
    waiting: list[tuple[Callable[[], object], Callable[[object], None]]] = []
    pair = told_to_go_back(ReplicaSettings(off_loop=lambda *work: waiting.append(work)))
    (work, then) = waiting.pop()
    thread = Thread(target=lambda: then_later.append(work()))
    then_later: list[object] = []
    thread.start()
    thread.join(10)
    pair.consumer.host.feed.tell(0)
    assert pulled(pair) == []
    then(then_later[0])
    assert [type(one) for one in pulled(pair)] == [m.StreamRequest]

    taken = Pair(make_host(), Consumer(replica_host()))
    put(taken.active.bucket.vbucket(0), "a")
    taken.add(0, int(StreamFlag.TAKEOVER))
    taken.settle()
    assert taken.consumer.host.bucket.vbucket(0).state is VBucketState.ACTIVE
    assert not any(isinstance(one, m.CloseStream) for one in taken.consumer.sent)


def test_a_connection_that_goes_watches_nothing() -> None:
    pair = standing()
    pair.consumer.replica.close()
    assert pair.consumer.host.feed.watchers(0) == 0
    flush(pair.consumer.host)
    assert pulled(pair) == []
