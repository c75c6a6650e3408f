"""A connection with an open stream, and both roads on which it is told what came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.history import Seqno
from headrace.protocol.handshake import ConsumerSettings
from headrace.protocol.talk import StreamPlan
from headrace.wire import messages as m
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import split_frames
from headrace.wire.opcodes import StreamEndReason
from tests.protocol.scripting import ITEMS, VBUCKET, connected, item, size_of

if TYPE_CHECKING:
    import random

    from headrace.protocol import events as e
    from headrace.protocol.consumer import ConsumerConnection
    from headrace.wire.message import Message

D7: Final = Dialect.DCP_7
LOG: Final = (m.FailoverEntry(0xA, 0),)
WINDOW: Final = 1_000
SETTINGS: Final = ConsumerSettings(name="test", window=WINDOW)


def sent(connection: ConsumerConnection) -> list[Message]:
    return [decode(f, connection.dialect) for f in split_frames(connection.take_output())]


def told(connection: ConsumerConnection, *messages: Message, now: float = 0.0) -> list[e.Event]:
    data = b"".join(encode(message, connection.dialect) for message in messages)
    return connection.receive(data, now=now)


def opened(settings: ConsumerSettings = SETTINGS, **plan: object) -> tuple[ConsumerConnection, int]:
    """A connection with one open stream, and the stream's opaque."""
    connection = connected(settings)
    connection.request_stream(StreamPlan(vbucket=VBUCKET, **plan))  # type: ignore[arg-type]
    (request,) = sent(connection)
    told(connection, m.StreamRequestReply(opaque=request.opaque, failover_log=LOG))
    return connection, request.opaque


def marker(opaque: int, start: int, end: int) -> m.SnapshotMarker:
    return m.SnapshotMarker(
        opaque=opaque, vbucket=VBUCKET, start_seqno=start, end_seqno=end, flags=1
    )


def ending(opaque: int, reason: int = StreamEndReason.FINISHED) -> m.StreamEnd:
    return m.StreamEnd(opaque=opaque, vbucket=VBUCKET, reason=reason)


def random_stream(rng: random.Random, opaque: int) -> list[Message]:
    """Snapshots with items of every kind; some end hidden, some are empty."""
    messages: list[Message] = []
    at = 0
    for _ in range(rng.randrange(1, 8)):
        first, last = at + rng.randrange(1, 4), at + rng.randrange(6, 20)
        seqnos = sorted(rng.sample(range(first, last + 1), rng.randrange(0, last - first)))
        if rng.random() < 0.7:
            seqnos = sorted({*seqnos, last})
        messages.append(marker(opaque, first, last))
        for seqno in seqnos:
            messages.append(item(rng.choice(ITEMS), seqno, opaque, 0))
            if rng.random() < 0.1:
                messages.append(m.Noop(opaque=seqno))
        at = last
    if rng.random() < 0.5:
        messages.append(ending(opaque))
    return messages


def announce(connection: ConsumerConnection, message: m.SnapshotMarker) -> e.SnapshotStarted | None:
    """Tell a marker by its numbers, as a client on the bulk road does."""
    size = size_of(message, D7)
    connection.window.received(size)
    connection.window.processed(size)
    assert message.start_seqno is not None
    assert message.end_seqno is not None
    return connection.announce(
        message.opaque,
        message.vbucket,
        Seqno(message.start_seqno),
        Seqno(message.end_seqno),
        flags=message.flags or 0,
        purge_seqno=None if message.purge_seqno is None else Seqno(message.purge_seqno),
        now=0,
    )


def take_bulk(connection: ConsumerConnection, data: bytes) -> int:
    """What a client on the bulk road does: items as runs, markers as numbers, frames one by one."""
    held = 0
    run: list[tuple[int, int]] = []
    opaque = 0

    def flush() -> None:
        nonlocal held
        if run:
            size = sum(size for _, size in run)
            connection.window.received(size)
            progress = connection.advance(
                opaque, VBUCKET, Seqno(run[0][0]), Seqno(run[-1][0]), now=0
            )
            assert progress is not None
            position = connection.position(VBUCKET)
            assert progress.token == position.token
            assert progress.completed in (None, position)
            held += size
            run.clear()

    for frame in split_frames(data):
        message = decode(frame, D7)
        event_seqno = getattr(message, "by_seqno", None) or getattr(
            message, "commit_seqno", getattr(message, "abort_seqno", None)
        )
        if isinstance(message, m.SnapshotMarker):
            flush()
            announce(connection, message)
        elif event_seqno is None:
            flush()
            connection.receive_frame(frame, now=0)
        else:
            opaque = message.opaque
            run.append((event_seqno, size_of(message, D7)))
    flush()
    return held
