"""Would these tokens be rolled back, to where, and why? The source is asked; nothing is streamed.

A stream request whose end is its start is answered like any other and carries no data. So every
vbucket's position is put to the producer for real, including the retries on older branches and the
landing on a boundary. The reason is worked out beside it from the failover log, the high seqno and
the purge seqno.

Imports: client.*, errors, history, protocol, wire.
"""

from __future__ import annotations

import secrets
import selectors
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headrace.client.bulk import ObjectRoad
from headrace.client.dial import dial
from headrace.client.link import Link
from headrace.errors import ConnectionLost
from headrace.history import NO_SEQNO, Seqno, VBucketId
from headrace.protocol import events as e
from headrace.protocol.consumer import ConsumerConnection
from headrace.protocol.decision import Accepted, Rollback, StreamStart, VBucketView, decide
from headrace.protocol.handshake import ConsumerSettings
from headrace.protocol.talk import StreamPlan
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from headrace.client.address import NodeAddress
    from headrace.client.bucket import Bucket
    from headrace.client.tokens import TokenSet
    from headrace.history import FailoverLog
    from headrace.protocol.talk import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the source says to one vbucket's position.

    ``lands_on`` is where the consumer would go on: its own seqno, or the boundary of a rollback,
    None when the source gave no answer. ``asked_back_to`` is the seqno the source names.
    """

    vbucket: int
    position: Position
    high_seqno: int | None
    log: FailoverLog | None
    lands_on: Seqno | None
    asked_back_to: Seqno | None
    reason: str

    @property
    def is_rollback(self) -> bool:
        """Whether rows would be withdrawn."""
        return self.lands_on is not None and self.lands_on < self.position.token.seqno

    def __str__(self) -> str:
        """As a sentence."""
        seqno = self.position.token.seqno
        if self.lands_on is None:
            return f"vbucket {self.vbucket} at {seqno}: no answer: {self.reason}"
        if not self.is_rollback:
            return f"vbucket {self.vbucket} at {seqno}: goes on, {self.reason}"
        asked = "" if self.asked_back_to is None else f" (the source says {self.asked_back_to})"
        return (
            f"vbucket {self.vbucket} at {seqno}: rolled back to the boundary {self.lands_on}"
            f"{asked}, because {self.reason}"
        )


def check_tokens(bucket: Bucket, tokens: TokenSet) -> list[Verdict]:
    """Put every position of the set to the source."""
    tokens.check_bucket(bucket=bucket.name, uuid=bucket.uuid, vbuckets=bucket.vbuckets)
    bucket.refresh()
    wanted = sorted(tokens.positions)
    seqnos, logs = bucket.seqnos(), bucket.failover_logs(wanted)
    purges = _purge_seqnos(bucket)
    answers: dict[int, e.Event] = {}
    by_node: dict[NodeAddress, list[int]] = {}
    for vbucket in wanted:
        node = bucket.cluster_map.node_of(vbucket)
        if node is not None:
            by_node.setdefault(node, []).append(vbucket)
    for node, some in by_node.items():
        answers.update(_ask(bucket, node, {v: tokens.position(v) for v in some}))
    return [
        _verdict(
            vbucket,
            tokens.position(vbucket),
            answers.get(vbucket),
            log=logs.get(vbucket),
            high=seqnos.get(vbucket),
            purge=purges.get(vbucket, 0),
        )
        for vbucket in wanted
    ]


def _purge_seqnos(bucket: Bucket) -> dict[int, int]:
    found = {}
    for stats in bucket.stats("vbucket-seqno").values():
        for name, value in stats.items():
            vbucket, _, what = name.removeprefix("vb_").partition(":")
            if what == "purge_seqno" and vbucket.isdecimal() and value.isdecimal():
                found[int(vbucket)] = int(value)
    return found


# -- the question ----------------------------------------------------------------------------------


def _ask(bucket: Bucket, node: NodeAddress, positions: dict[int, Position]) -> dict[int, e.Event]:
    access = bucket.access
    settings = ConsumerSettings(
        name=f"headrace-check:{secrets.token_hex(6)}",
        user=access.user,
        password=access.password,
        bucket=bucket.name,
        encrypted=access.tls is not None,
        dialect=access.dialect,
        purge_seqnos=True,
    )
    now = time.monotonic()
    connection = ConsumerConnection(settings, now=now, nonce=secrets.token_urlsafe(24))
    socket = dial(node, access, small=True)
    link = Link(socket, node, ObjectRoad(connection), opened_at=now)
    try:
        return _talk(link, positions, access.connect_seconds + access.answer_seconds)
    finally:
        link.close()


def _talk(link: Link, positions: dict[int, Position], seconds: float) -> dict[int, e.Event]:
    answers: dict[int, e.Event] = {}
    deadline = time.monotonic() + seconds
    link.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(link.socket, selectors.EVENT_READ)
        while len(answers) < len(positions):
            left = deadline - time.monotonic()
            if left <= 0:
                raise ConnectionLost(f"{link.node} did not answer within {seconds:g} s")
            selector.select(left)
            for taken in link.pump(now=time.monotonic()):
                for piece in taken.pieces:
                    if isinstance(piece, e.Connected):
                        _request(link.connection, positions)
                    elif isinstance(piece, ANSWERS):
                        answers.setdefault(piece.vbucket, piece)
            link.flush()
            if link.lost is not None:
                raise link.lost
    return answers


ANSWERS: Final = (e.RolledBack, e.StreamOpened, e.StreamRefused, e.NotMyVBucket, e.StreamStuck)


def _request(connection: ConsumerConnection, positions: dict[int, Position]) -> None:
    for vbucket, position in positions.items():
        connection.request_stream(
            StreamPlan(
                vbucket=VBucketId(vbucket),
                token=position.token,
                boundaries=position.boundaries,
                # After a rollback the start lies below this end: data may come, and is not read.
                end_seqno=position.token.seqno,
            )
        )


# -- the reason ------------------------------------------------------------------------------------


def _verdict(
    vbucket: int,
    position: Position,
    answer: e.Event | None,
    *,
    log: FailoverLog | None,
    high: int | None,
    purge: int,
) -> Verdict:
    verdict = Verdict(
        vbucket=vbucket,
        position=position,
        high_seqno=high,
        log=log,
        lands_on=None,
        asked_back_to=None,
        reason="no node has it active",
    )
    if isinstance(answer, e.StreamRefused | e.StreamStuck):
        return replace(verdict, reason=answer.reason)
    if isinstance(answer, e.NotMyVBucket):
        return replace(verdict, reason="the node does not have it any more")
    if isinstance(answer, e.StreamOpened):
        behind = "" if high is None else f"{max(0, high - position.token.seqno)} behind"
        return replace(verdict, lands_on=answer.token.seqno, reason=behind or "accepted")
    if isinstance(answer, e.RolledBack):
        back, reason = _why(position, log, high, purge)
        return replace(verdict, lands_on=answer.to_seqno, asked_back_to=back, reason=reason)
    return verdict


def _why(
    position: Position, log: FailoverLog | None, high: int | None, purge: int
) -> tuple[Seqno | None, str]:
    """The seqno the source names, and the reason in words."""
    token = position.token
    if log is None or high is None:
        return None, "the source did not tell its history"
    view = VBucketView(state=VBucketState.ACTIVE, high=Seqno(high), log=log, purge=Seqno(purge))
    start = StreamStart(
        start=token.seqno,
        branch=token.branch,
        snapshot_start=token.snapshot.start,
        snapshot_end=token.snapshot.end,
        purge_seqno=token.purge_seqno,
    )
    decided = decide(start, view)
    back = decided.seqno if isinstance(decided, Rollback) else None
    if isinstance(decided, Accepted):
        return None, "the source answered before its history changed; check again"
    return back, _reason(position, log, high, purge, back)


def _reason(position: Position, log: FailoverLog, high: int, purge: int, back: Seqno | None) -> str:
    token = position.token
    name = f"branch {token.branch:016x}"
    if NO_SEQNO < token.seqno < purge and token.purge_seqno != purge:
        return (
            f"deletions up to {purge} were purged and the consumer stands at {token.seqno}: it may "
            "have missed some"
        )
    place = log.index(token.branch)
    if place is None:
        return f"{name} is unknown to the source, whose log is {log}: its history was replaced"
    if place == 0:
        return f"{name} ends at {high}, and the consumer claims {token.snapshot.end}"
    newer = log.entries[place - 1]
    held = f"{token.seqno}" if token.is_boundary else f"{token.seqno} of {token.snapshot}"
    straddles = back is not None and position.boundaries.greatest(back) < back
    words = (
        f"{name} ended at {newer.seqno}, where branch {newer.uuid:016x} began, and the consumer "
        f"holds {held}"
    )
    if straddles:
        words += f"; no snapshot it holds ends at {back}, so it goes to the boundary before"
    return words
