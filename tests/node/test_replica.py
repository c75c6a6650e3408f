"""The consuming end of a connection: ADD_STREAM, refusals, rollback, flow control, time."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import StoreError, StoreFull
from headrace.node.replica import HELD_BYTES_MAX, OPCODES, RETRY_SECONDS
from headrace.node.replica_context import ReplicaSettings
from headrace.node.replica_stream import State
from headrace.wire import messages as m
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.message import ErrorReply, Message
from headrace.wire.opcodes import Feature, Opcode, Status, StreamFlag, VBucketState
from tests.node.replica_kit import Consumer, Pair, replica_host, told_to_go_back
from tests.node.stream_kit import Host, make_host, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.store import VBucket


def pair_of(active: Host | None = None, replica: Host | None = None, **more: object) -> Pair:
    return Pair(active or make_host(), Consumer(replica or replica_host(), **more))  # type: ignore[arg-type]


def standing(**more: object) -> Pair:
    """A pair with a stream of vbucket 0 that has received one item."""
    pair = pair_of(**more)  # type: ignore[arg-type]
    put(pair.active.bucket.vbucket(0), "a")
    pair.add(0)
    pair.settle()
    pair.consumer.sent.clear()
    return pair


def copy_of(pair: Pair, vbucket: int = 0) -> VBucket:
    return pair.consumer.host.bucket.vbucket(vbucket)


def opaque_of(pair: Pair, vbucket: int = 0) -> int:
    return pair.consumer.replica.streams[vbucket].opaque


def refusals(messages: list[Message]) -> list[tuple[int, int]]:
    return [(one.opcode, one.status) for one in messages if isinstance(one, ErrorReply)]


# -- ADD_STREAM --------------------------------------------------------------------------------


def test_add_stream_is_answered_when_the_stream_stands() -> None:
    consumer = Consumer(replica_host())
    said = consumer.add(0)
    assert not any(isinstance(one, m.AddStreamReply) for one in said), "withheld"
    pair = pair_of()
    pair.add(0)
    assert pair.replies == [m.AddStreamReply(opaque=0x701, stream_opaque=opaque_of(pair))]


@pytest.mark.parametrize("state", [VBucketState.ACTIVE, VBucketState.DEAD, None])
def test_only_replicas_and_pending_vbuckets_may_follow(state: VBucketState | None) -> None:
    host = replica_host()
    if state is None:
        host.bucket.delete_vbucket(0)
    else:
        host.set_state(0, state)
    consumer = Consumer(host)
    said = consumer.add(0)
    assert refusals(said) == [(Opcode.ADD_STREAM, Status.NOT_MY_VBUCKET)]
    assert [one.value for one in said if isinstance(one, ErrorReply)] == [b'{"rev":1}']
    host.bucket.vbucket(1).set_state(VBucketState.PENDING)
    assert refusals(consumer.add(1)) == []


def test_one_inbound_stream_per_vbucket_of_the_node() -> None:
    host = replica_host()
    first, second = Consumer(host), Consumer(host, name=b"replication:other")
    first.add(0)
    for consumer in (first, second):
        assert refusals(consumer.add(0)) == [(Opcode.ADD_STREAM, Status.KEY_EEXISTS)]
    first.replica.close()
    assert refusals(second.add(0)) == []


def test_a_stream_whose_vbucket_changed_is_not_in_the_way() -> None:
    host = replica_host()
    first, second = Consumer(host), Consumer(host, name=b"replication:other")
    first.add(0)
    host.bucket.delete_vbucket(0)
    host.bucket.create_vbucket(0, VBucketState.REPLICA)
    assert refusals(second.add(0)) == []
    assert not first.replica.streams


def test_unknown_flags_are_refused() -> None:
    assert refusals(Consumer(replica_host()).add(0, 0x8000)) == [(Opcode.ADD_STREAM, Status.EINVAL)]


def test_the_flags_of_add_stream_are_those_of_the_request() -> None:
    pair = pair_of()
    pair.add(0, int(StreamFlag.ACTIVE_ONLY))
    (request,) = [one for one in pair.consumer.sent if isinstance(one, m.StreamRequest)]
    assert request.flags == StreamFlag.ACTIVE_ONLY


@pytest.mark.parametrize(
    "status", [Status.NOT_MY_VBUCKET, Status.ETMPFAIL, Status.ERANGE, Status.NOT_SUPPORTED]
)
def test_a_refused_request_refuses_add_stream(status: Status) -> None:
    pair = pair_of()
    pair.add(1)
    consumer = pair.consumer
    consumer.add(0, opaque=0x777)
    stream = consumer.replica.streams[0]
    refusal = ErrorReply(opcode=Opcode.STREAM_REQ, status=status, opaque=stream.opaque)
    said = consumer.tell(refusal)
    assert [(one.opaque, one.status) for one in said if isinstance(one, ErrorReply)] == [
        (0x777, status)
    ]
    assert 0 not in consumer.replica.streams
    assert 0 not in consumer.host.inbound


def test_a_replica_that_still_fills_is_no_source() -> None:
    middle = replica_host()
    marker = m.SnapshotMarker(start_seqno=1, end_seqno=9, flags=2)
    pair = standing(replica=middle)
    pair.consumer.close(0)
    pair.consumer.add(1)
    stream = pair.consumer.replica.streams[1]
    pair.consumer.tell(
        m.StreamRequestReply(opaque=stream.opaque, failover_log=(m.FailoverEntry(3, 0),))
    )
    pair.consumer.feed(encode(_on(marker, stream.opaque, 1), Dialect.DCP_7))
    below = Pair(middle, Consumer(replica_host()))
    below.add(1)
    assert [(one.opcode, one.status) for one in below.replies if isinstance(one, ErrorReply)] == [
        (Opcode.ADD_STREAM, Status.ETMPFAIL)
    ]


def _on(message: m.SnapshotMarker, opaque: int, vbucket: int) -> m.SnapshotMarker:
    return m.SnapshotMarker(
        start_seqno=message.start_seqno,
        end_seqno=message.end_seqno,
        flags=message.flags,
        opaque=opaque,
        vbucket=vbucket,
    )


# -- rollback ----------------------------------------------------------------------------------


@pytest.mark.parametrize("in_background", [False, True])
def test_a_replica_ahead_of_its_producer_rolls_back_and_asks_again(in_background: bool) -> None:
    active, replica = make_host(), replica_host()
    source = active.bucket.vbucket(0)
    pair = pair_of(active, replica)
    pair.add(0)
    for name in ("a", "b", "c"):
        put(source, name)
        pair.settle()
    pair.close()
    source.failover(2)
    put(source, "d")
    waiting: list[tuple[object, object]] = []
    settings = ReplicaSettings(off_loop=lambda *both: waiting.append(both))
    again = pair_of(active, replica, settings=settings if in_background else None)
    again.add(0)
    if in_background:
        ((work, then),) = waiting
        assert again.consumer.replica.streams[0].state is State.ROLLING_BACK
        then(work())  # type: ignore[operator]
        again.carry()
    again.settle()
    assert copy_of(again).high_seqno == 3
    assert copy_of(again).get(b"\0c") is None
    assert copy_of(again).get(b"\0d") is not None
    assert copy_of(again).failover_log == source.failover_log
    requests = [one for one in again.consumer.sent if isinstance(one, m.StreamRequest)]
    assert [one.start_seqno for one in requests] == [3, 2]
    assert len({one.opaque for one in requests}) == 1, "the same opaque"


def test_a_rollback_inside_a_received_snapshot_goes_to_its_beginning() -> None:
    active, replica = make_host(), replica_host()
    source = active.bucket.vbucket(0)
    pair = pair_of(active, replica)
    pair.add(0)
    put(source, "a")
    pair.settle()
    put(source, "b", "c", "b", "d")  # one snapshot, 2..5, without 2
    pair.settle()
    pair.close()
    source.failover(3)
    again = pair_of(active, replica)
    again.add(0)
    requests = [one for one in again.consumer.sent if isinstance(one, m.StreamRequest)]
    assert [one.start_seqno for one in requests] == [5, 1], "at 3 this copy was never whole"
    again.settle()
    assert copy_of(again).get(b"\0b") is not None


def test_a_copy_that_is_promoted_before_its_rollback_keeps_what_it_has() -> None:
    waiting: list[Callable[[], object]] = []
    again = told_to_go_back(ReplicaSettings(off_loop=lambda work, _: waiting.append(work)))
    again.consumer.host.set_state(0, VBucketState.ACTIVE)
    (work,) = waiting
    with pytest.raises(StoreError, match="only a replica rolls back"):
        work()
    assert copy_of(again).high_seqno == 2


@pytest.mark.parametrize("promoted", [False, True])
def test_a_copy_that_is_lost_right_after_its_rollback_refuses_add_stream(promoted: bool) -> None:
    waiting: list[tuple[Any, Any]] = []
    again = told_to_go_back(ReplicaSettings(off_loop=lambda *both: waiting.append(both)))
    host, ((work, then),) = again.consumer.host, waiting
    reached = work()
    if promoted:
        host.set_state(0, VBucketState.ACTIVE)
    else:
        host.bucket.delete_vbucket(0)
    then(reached)
    again.carry()
    assert refusals(again.replies) == [(Opcode.ADD_STREAM, Status.NOT_MY_VBUCKET)]
    assert not host.inbound
    assert [type(one) for one in again.consumer.sent].count(m.StreamRequest) == 1, "asks no more"


def test_a_rollback_that_fails_refuses_add_stream() -> None:
    again = told_to_go_back(ReplicaSettings(off_loop=lambda _, then: then(StoreFull("full"))))
    assert refusals(again.replies) == [(Opcode.ADD_STREAM, Status.ETMPFAIL)]


def test_the_drafts_unknown_branch_means_rollback_to_zero() -> None:
    host = replica_host()
    host.bucket.vbucket(0).set_state(VBucketState.ACTIVE)
    put(host.bucket.vbucket(0), "a")
    host.bucket.vbucket(0).set_state(VBucketState.REPLICA)
    consumer = Consumer(host, dialect=Dialect.UPR_DRAFT, features=(), consumer_name="")
    (request,) = consumer.add(0)
    assert isinstance(request, m.StreamRequest)
    assert request.start_seqno == 1
    refusal = ErrorReply(opcode=Opcode.STREAM_REQ, status=Status.KEY_ENOENT, opaque=request.opaque)
    (again,) = consumer.tell(refusal)
    assert isinstance(again, m.StreamRequest)
    assert again.start_seqno == 0


# -- what belongs to no stream -----------------------------------------------------------------

STRAY: dict[type, m.Request] = {  # type: ignore[name-defined]
    m.SnapshotMarker: m.SnapshotMarker(start_seqno=2, end_seqno=9, flags=1),
    m.Mutation: m.Mutation(by_seqno=2, key=b"\0k", cas=1),
    m.Deletion: m.Deletion(by_seqno=2, key=b"\0k", cas=1, delete_time=1),
    m.Expiration: m.Expiration(by_seqno=2, key=b"\0k", cas=1, delete_time=1),
    m.SetVBucketState: m.SetVBucketState(state=3),
    m.SystemEvent: m.SystemEvent(by_seqno=2, event=3, version=0, key=b"s", value=bytes(12)),
    m.Prepare: m.Prepare(by_seqno=2, key=b"\0k", durability=1, cas=1),
    m.Commit: m.Commit(prepared_seqno=1, commit_seqno=2, key=b"\0k"),
    m.Abort: m.Abort(prepared_seqno=1, abort_seqno=2, key=b"\0k"),
    m.SeqnoAdvanced: m.SeqnoAdvanced(by_seqno=2),
}


@pytest.mark.parametrize("kind", STRAY)
def test_strays_are_refused_and_their_bytes_acknowledged(kind: type) -> None:
    message = STRAY[kind]
    pair = standing()
    replica = pair.consumer.replica
    before = replica.window.freed
    closed = encode(message, Dialect.DCP_7)
    surplus = 2 if kind is m.Prepare else 0

    def opaque(number: int) -> bytes:
        return closed[:12] + number.to_bytes(4, "big") + closed[16:]

    said = pair.consumer.feed(opaque(0x4444))
    assert refusals(said) == [(OPCODES[kind], Status.OPAQUE_NO_MATCH)], "another opaque"
    stream = opaque_of(pair)
    pair.consumer.close(0)
    said = pair.consumer.feed(opaque(stream))
    assert refusals(said) == [(OPCODES[kind], Status.STREAM_NOT_FOUND)], "a closed stream"
    assert replica.window.freed - before == 2 * (len(closed) + surplus)
    assert replica.closed_reason is None
    assert copy_of(pair).high_seqno == 1


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [(Dialect.DCP_7, []), (Dialect.DCP_5, [(Opcode.STREAM_END, Status.KEY_ENOENT)])],
)
def test_the_end_of_a_stream_we_no_longer_have(
    dialect: Dialect, expected: list[tuple[int, int]]
) -> None:
    consumer = Consumer(replica_host(), dialect=dialect, features=(), consumer_name="")
    assert refusals(consumer.tell(m.StreamEnd(reason=1, opaque=5))) == expected


def test_before_v7_status_codes_the_old_words_are_used() -> None:
    consumer = Consumer(replica_host(), dialect=Dialect.DCP_5, features=(), consumer_name="")
    said = consumer.tell(m.Mutation(by_seqno=1, key=b"k", cas=1, opaque=5))
    assert refusals(said) == [(Opcode.MUTATION, Status.KEY_ENOENT)]
    assert refusals(consumer.close(0)) == [(Opcode.CLOSE_STREAM, Status.KEY_ENOENT)]


def test_an_old_end_does_not_end_the_new_stream() -> None:
    pair = standing()
    old = opaque_of(pair)
    pair.close_stream(0)
    pair.add(0)
    assert opaque_of(pair) != old
    pair.consumer.tell(m.StreamEnd(reason=1, opaque=old))
    assert 0 in pair.consumer.replica.streams


def test_close_stream_while_the_request_is_out_refuses_add_stream() -> None:
    consumer = Consumer(replica_host())
    consumer.add(0, opaque=0x777)
    said = consumer.close(0)
    assert [type(one) for one in said] == [ErrorReply, m.CloseStreamReply]
    assert said[0].opaque == 0x777
    late = m.StreamRequestReply(opaque=1, failover_log=(m.FailoverEntry(3, 0),))
    assert consumer.tell(late) == []


def test_a_broken_rule_is_erange_and_the_rest_goes_on() -> None:
    pair = standing()
    opaque = opaque_of(pair)
    consumer = pair.consumer
    item = m.Mutation(by_seqno=9, key=b"\0k", cas=1, opaque=opaque)
    assert refusals(consumer.tell(item)) == [(Opcode.MUTATION, Status.ERANGE)]
    marker = m.SnapshotMarker(start_seqno=1, end_seqno=1, flags=1, opaque=opaque)
    assert refusals(consumer.tell(marker)) == [(Opcode.SNAPSHOT_MARKER, Status.ERANGE)]
    put(pair.active.bucket.vbucket(0), "b")
    pair.settle()
    assert copy_of(pair).high_seqno == 2


# -- roles and names ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        m.StreamRequest(start_seqno=0, end_seqno=1, snap_start_seqno=0, snap_end_seqno=0),
        m.GetFailoverLog(),
        m.BufferAck(ack_bytes=1),
        m.Control(key=b"enable_noop", value=b"true"),
        m.SeqnoAcknowledged(prepared_seqno=1),
        m.OsoSnapshot(oso_flags=1),
    ],
)
def test_what_a_consumer_must_not_get_closes_the_connection(message: Message) -> None:
    consumer = Consumer(replica_host())
    assert consumer.tell(message) == []
    assert consumer.replica.closed_reason == (
        f"{type(message).__name__} on a consumer's connection"
    )


def test_nothing_comes_before_open_and_open_comes_once() -> None:
    consumer = Consumer(replica_host())
    again = m.Open(flags=0, key=b"x", opaque=7)
    assert refusals(consumer.tell(again)) == [(Opcode.OPEN, Status.EINVAL)]
    bad = Consumer(replica_host(), name=b"")
    assert not bad.replica.is_open
    bad.tell(m.Noop())
    assert bad.replica.closed_reason == "Noop before OPEN"


def test_noop_is_answered_at_once() -> None:
    assert Consumer(replica_host()).tell(m.Noop(opaque=77)) == [m.NoopReply(opaque=77)]


# -- flow control and time ---------------------------------------------------------------------


@pytest.mark.parametrize("bulk", [True, False])
def test_bytes_are_acknowledged_after_a_fifth_of_the_window(bulk: bool) -> None:
    active = make_host()
    pair = pair_of(active, bulk=bulk, settings=ReplicaSettings(window=1000))
    source = active.bucket.vbucket(0)
    for number in range(60):
        source.store(b"\0key%d" % number, b"x" * 50)
    pair.add(0)
    pair.settle()
    assert copy_of(pair).high_seqno == 60
    acks = [one.ack_bytes for one in pair.consumer.sent if isinstance(one, m.BufferAck)]
    assert all(size > 200 for size in acks)
    window = pair.consumer.replica.window
    assert sum(acks) + window.freed == pair.producer.window.total_sent


def test_what_is_left_is_acknowledged_after_five_seconds() -> None:
    pair = standing()
    freed = pair.consumer.replica.window.freed
    due = pair.consumer.replica.next_tick(pair.now)
    assert due is not None
    assert pair.consumer.tick(4.0) == []
    assert pair.consumer.tick(1.0) == [m.BufferAck(ack_bytes=freed)]


def test_a_silent_producer_is_given_up() -> None:
    pair = standing()
    reasons = []
    for seconds in (359.0, 2.0):
        pair.consumer.tick(seconds)
        reasons.append(pair.consumer.replica.closed_reason)
    assert reasons == [None, "the producer was silent for too long"]
    assert Consumer(replica_host()).replica.next_tick(0.0) is None, "nobody is waited for"


def test_when_the_store_is_full_messages_wait_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = standing()
    vbucket = copy_of(pair)

    def full(*_: object, **__: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(type(vbucket), "receive_run", full)
        patched.setattr(type(vbucket), "apply_parts", full)
        put(pair.active.bucket.vbucket(0), "b", "c")
        pair.settle()
        replica = pair.consumer.replica
        assert (vbucket.high_seqno, replica.backoffs) == (1, 1)
        assert replica.window.held > 0, "what is not processed is not acknowledged"
        assert pair.consumer.tell(m.Noop(opaque=3)) == [m.NoopReply(opaque=3)]
        pair.consumer.tick(RETRY_SECONDS)
        assert vbucket.high_seqno == 1
    pair.consumer.tick(2 * RETRY_SECONDS)
    assert vbucket.high_seqno == 3
    assert replica.window.held == 0
    put(pair.active.bucket.vbucket(0), "d")
    pair.settle()
    assert vbucket.high_seqno == 4


def test_a_producer_without_a_window_cannot_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = standing()

    def full(*_: object, **__: object) -> None:
        raise StoreFull("no room")

    vbucket, opaque = copy_of(pair), opaque_of(pair)
    monkeypatch.setattr(type(vbucket), "receive_run", full)
    monkeypatch.setattr(type(vbucket), "apply_parts", full)
    pair.consumer.tell(m.SnapshotMarker(start_seqno=2, end_seqno=99, flags=1, opaque=opaque))
    item = m.Mutation(by_seqno=2, key=b"\0k", cas=1, opaque=opaque, value=bytes(8 << 20))
    for _ in range(HELD_BYTES_MAX // (8 << 20) + 1):
        pair.consumer.tell(item)
    assert "wait for room" in (pair.consumer.replica.closed_reason or "")


# -- dialects ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", list(Dialect))
def test_two_nodes_replicate_in_every_dialect(dialect: Dialect) -> None:
    new = dialect is Dialect.DCP_7
    features = (Feature.COLLECTIONS, Feature.XATTR) if new else ()
    pair = pair_of(dialect=dialect, features=features, consumer_name="b" if new else "")
    source = pair.active.bucket.vbucket(0)
    put(source, *(f"k{number}" for number in range(30)))
    source.delete(b"\0k3")
    pair.active.bucket.commit()
    pair.add(0)
    pair.settle()
    put(source, "k1", "z")
    source.expire(b"\0k4")
    pair.settle()
    assert [type(one).__name__ for one in pair.replies] == ["AddStreamReply"]
    assert copy_of(pair).high_seqno == source.high_seqno
    for number in range(30):
        here, there = copy_of(pair).get(b"\0k%d" % number), source.get(b"\0k%d" % number)
        assert here is not None
        assert there is not None
        assert (here.seqno, here.rev, here.cas, here.value, here.deleted) == (
            there.seqno,
            there.rev,
            there.cas,
            there.value,
            there.deleted,
        )
    assert pair.producer.closed_reason is pair.consumer.replica.closed_reason is None


def test_a_takeover_between_our_two_ends() -> None:
    pair = standing()
    source = pair.active.bucket.vbucket(0)
    pair.close_stream(0)
    pair.consumer.sent.clear()
    put(source, "b", "c")
    pair.add(0, int(StreamFlag.TAKEOVER))
    pair.settle()
    assert (source.state, copy_of(pair).state) == (VBucketState.DEAD, VBucketState.ACTIVE)
    assert copy_of(pair).failover_log == source.failover_log
    assert copy_of(pair).high_seqno == 3
    answers = [
        type(one).__name__
        for one in pair.consumer.sent
        if isinstance(one, m.SnapshotMarkerReply | m.SetVBucketStateReply)
    ]
    assert answers[0] == "SnapshotMarkerReply"
    assert answers.count("SetVBucketStateReply") == 2
    assert not pair.consumer.replica.streams
    assert copy_of(pair).store(b"\0d", b"").seqno == 4


# -- whatever comes ----------------------------------------------------------------------------


def some_message(generator: random.Random, opaques: list[int], high: int) -> Message:
    """A message that a consumer may get, with numbers that are mostly right."""
    opaque = generator.choice([*opaques * 6, 1, 99])
    vbucket = generator.choice((0,) * 8 + (1, 7))
    seqno = max(1, high + generator.choice((-1, 0, 1, 1, 1, 1, 2, 4)))
    key = b"\0k%d" % generator.randrange(4)
    common: dict[str, Any] = {"opaque": opaque, "vbucket": vbucket}
    entry = m.FailoverEntry(generator.choice((0, 5, 6)), generator.choice((0, 3)))
    makers: list[Callable[[], Message]] = [
        lambda: m.AddStream(vbucket=vbucket, flags=generator.choice((0, 1)), opaque=opaque),
        lambda: m.CloseStream(vbucket=vbucket, opaque=opaque),
        lambda: m.Noop(opaque=opaque),
        lambda: m.ControlReply(opaque=opaque),
        lambda: m.StreamRequestReply(opaque=opaque, failover_log=(entry,)),
        lambda: m.RollbackReply(opaque=opaque, rollback_seqno=generator.randrange(5)),
        lambda: ErrorReply(
            opcode=generator.choice((Opcode.STREAM_REQ, Opcode.CONTROL)),
            status=generator.choice((Status.NOT_MY_VBUCKET, Status.EINVAL)),
            opaque=opaque,
        ),
        lambda: m.SnapshotMarker(
            start_seqno=seqno,
            end_seqno=seqno + generator.choice((-1, 0, 1, 2, 5)),
            flags=generator.choice((1, 2, 5, 9, 14)),
            **common,
        ),
        lambda: m.Mutation(by_seqno=seqno, key=key, cas=1, **common),
        lambda: m.Deletion(by_seqno=seqno, key=key, cas=1, delete_time=1, **common),
        lambda: m.Prepare(by_seqno=seqno, key=key, cas=1, durability=1, **common),
        lambda: m.Commit(prepared_seqno=1, commit_seqno=seqno, key=key, **common),
        lambda: m.Abort(prepared_seqno=1, abort_seqno=seqno, key=key, **common),
        lambda: m.SeqnoAdvanced(by_seqno=seqno, **common),
        lambda: m.SetVBucketState(state=generator.choice((2, 3)), **common),
        lambda: m.StreamEnd(reason=0, **common),
    ]
    weights = [12, 1, 1, 3, 24, 2, 1, 30, 30, 12, 12, 8, 8, 6, 1, 1]
    return generator.choices(makers, weights)[0]()


def negotiated(host: Host, *, bulk: bool) -> Consumer:
    """A consumer whose every question was answered, with a stream of vbucket 0 that stands."""
    consumer = Consumer(host, bulk=bulk)
    said = consumer.add(0)
    while said and not isinstance(said[0], m.StreamRequest):
        said += consumer.tell(m.ControlReply(opaque=said.pop(0).opaque))
    log = (m.FailoverEntry(5, 0),)
    consumer.tell(m.StreamRequestReply(opaque=said[0].opaque, failover_log=log))
    assert consumer.replica.streams[0].is_standing
    return consumer


@pytest.mark.parametrize("seed", range(60))
def test_nothing_a_peer_sends_breaks_the_replica(seed: int) -> None:
    generator = random.Random(seed)
    host = replica_host(vbuckets=2)
    consumer = negotiated(host, bulk=generator.random() < 0.5)
    replica = consumer.replica
    for _ in range(300):
        opaques = [stream.opaque for stream in replica.streams.values()]
        before = {one.id: one.high_seqno for one in host.bucket.vbuckets}
        message = some_message(generator, opaques, before[0])
        said = consumer.tell(message)
        assert replica.closed_reason is None
        assert replica.window.held == 0, "everything is processed at once"
        for vbucket in host.bucket.vbuckets:
            assert vbucket.complete_seqno <= vbucket.high_seqno
            rolled = isinstance(message, m.RollbackReply)
            assert rolled or vbucket.high_seqno >= before[vbucket.id]
            if isinstance(message, m.SnapshotMarker):
                assert vbucket.high_seqno == before[vbucket.id], "a marker moves nothing"
        for one in said:
            if isinstance(one, m.StreamRequest):
                assert one.snap_start_seqno is not None
                assert one.snap_end_seqno is not None
                assert one.snap_start_seqno <= one.start_seqno <= one.snap_end_seqno
    assert set(host.inbound) == set(replica.streams)
    assert replica.items_received >= 3, "the test means something"
    replica.close()
    assert not host.inbound
