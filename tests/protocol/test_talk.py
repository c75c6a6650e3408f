"""One stream from its request to its end: the scripts under tests/scripts, and the request itself.

HEADRACE_REWRITE_SCRIPTS=1 writes the results found into the scripts; a person reads the diff.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from headrace.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from headrace.history import (
    ZERO,
    Boundaries,
    BranchId,
    FailoverLog,
    ResumeToken,
    Seqno,
    SnapshotRange,
    VBucketId,
)
from headrace.protocol import events as e
from headrace.protocol.talk import STREAM_ID_MAX, StreamPlan, StreamTalk, read_log
from headrace.wire import messages as m
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import split_frames
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import Opcode, Status, StreamEndReason, StreamFlag
from tests.protocol.scripting import VBUCKET, item, play_script

SCRIPTS: Final = sorted((Path(__file__).parents[1] / "scripts").glob("*.txt"))
REWRITE: Final = os.environ.get("HEADRACE_REWRITE_SCRIPTS") == "1"
INSIDE: Final = ResumeToken(
    BranchId(0xA),
    Seqno(5),
    SnapshotRange(Seqno(1), Seqno(10)),
    Seqno(40),
    FailoverLog.of((0xA, 3), (0x9, 0)),
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_conversation_goes_as_it_is_written(path: Path) -> None:
    found = play_script(path)
    if REWRITE:
        path.write_text(found)
    assert found == path.read_text()


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 30


def opened(plan: StreamPlan) -> StreamTalk:
    talk = StreamTalk(plan)
    talk.request(7, Dialect.DCP_7, tell_purge=False)
    said = talk.take_reply(m.StreamRequestReply(opaque=7, failover_log=(m.FailoverEntry(0xA, 0),)))
    assert said is not None
    return talk


def test_a_request_tells_the_token_and_the_plan() -> None:
    plan = StreamPlan(
        vbucket=VBUCKET, token=INSIDE, end_seqno=Seqno(99), flags=StreamFlag.ACTIVE_ONLY
    )
    request = StreamTalk(plan).request(7, Dialect.DCP_7, tell_purge=False)
    assert request == m.StreamRequest(
        opaque=7,
        vbucket=VBUCKET,
        flags=StreamFlag.ACTIVE_ONLY,
        start_seqno=5,
        end_seqno=99,
        vb_uuid=0xA,
        snap_start_seqno=1,
        snap_end_seqno=10,
    )


@pytest.mark.parametrize("dialect", Dialect)
def test_a_request_can_be_said_in_every_dialect(dialect: Dialect) -> None:
    token = INSIDE.rolled_back(Seqno(4))
    request = StreamTalk(StreamPlan(vbucket=VBUCKET, token=token)).request(
        7, dialect, tell_purge=False
    )
    (frame,) = split_frames(encode(request, dialect))
    assert decode(frame, dialect) == request
    assert len(frame.extras) == (40 if dialect is Dialect.UPR_DRAFT else 48)
    assert request.high_seqno == (3 if dialect is Dialect.UPR_DRAFT else None)


def test_the_draft_cannot_say_a_position_inside_a_snapshot() -> None:
    talk = StreamTalk(StreamPlan(vbucket=VBUCKET, token=INSIDE))
    with pytest.raises(LocalProtocolError, match=r"inside the snapshot 1\.\.10, which upr-draft"):
        talk.request(7, Dialect.UPR_DRAFT, tell_purge=False)


@pytest.mark.parametrize(
    ("plan", "value"),
    [
        (StreamPlan(vbucket=VBUCKET), {}),
        (StreamPlan(vbucket=VBUCKET, manifest_uid=0), {"uid": "0"}),
        (
            StreamPlan(vbucket=VBUCKET, collections=(8, 0x1F), stream_id=2),
            {"collections": ["8", "1f"], "sid": 2},
        ),
        (StreamPlan(vbucket=VBUCKET, scope=0xA), {"scope": "a"}),
    ],
)
def test_a_filter_is_written_as_json_with_hex_ids(
    plan: StreamPlan, value: dict[str, object]
) -> None:
    request = StreamTalk(plan).request(7, Dialect.DCP_7, tell_purge=True)
    assert request.value == (json.dumps(value, separators=(",", ":")).encode() if value else b"")
    assert request.frame_infos == (), "a stream id is asked for in the value, not in the framing"


def test_a_purge_seqno_is_told_only_to_producers_that_understand_it() -> None:
    talk = StreamTalk(StreamPlan(vbucket=VBUCKET, token=INSIDE))
    assert talk.request(7, Dialect.DCP_7, tell_purge=False).value == b""
    assert talk.request(8, Dialect.DCP_7, tell_purge=True).value == b'{"purge_seqno":"40"}'


def test_a_plan_no_producer_accepts_is_refused() -> None:
    with pytest.raises(ConfigError, match="not to both"):
        StreamPlan(vbucket=VBUCKET, collections=(8,), scope=1)
    for bad in (0, STREAM_ID_MAX + 1):
        with pytest.raises(ConfigError, match=r"allowed 1\.\.65535"):
            StreamPlan(vbucket=VBUCKET, stream_id=bad)


def test_a_message_of_another_vbucket_with_our_opaque_is_the_peers_fault() -> None:
    talk = opened(StreamPlan(vbucket=VBucketId(6)))
    with pytest.raises(RemoteProtocolError, match="of vbucket 5 with the opaque of the stream of"):
        talk.take_message(item("mutation", 1, 7), 0)


def test_an_item_carries_the_token_that_is_true_after_it() -> None:
    talk = opened(StreamPlan(vbucket=VBUCKET))
    talk.take_message(
        m.SnapshotMarker(opaque=7, vbucket=VBUCKET, start_seqno=1, end_seqno=2, flags=1), 44
    )
    first = talk.take_message(item("mutation", 1, 7), 60)
    second = talk.take_message(item("mutation", 2, 7), 60)
    assert first.held
    assert second.held
    (event,) = first.events
    assert isinstance(event, e.ItemReceived)
    assert (event.seqno, event.size, event.token.snapshot) == (
        1,
        60,
        SnapshotRange(Seqno(1), Seqno(2)),
    )
    item_event, completed = second.events
    assert isinstance(item_event, e.ItemReceived)
    assert isinstance(completed, e.SnapshotCompleted)
    assert item_event.token == completed.token == talk.position.token
    assert completed.token.is_boundary


def test_an_ended_stream_keeps_its_position() -> None:
    talk = opened(StreamPlan(vbucket=VBUCKET))
    before = talk.position
    ended = talk.end(99)
    assert (ended.reason, ended.advice) == (99, e.Advice.ASK_AGAIN), "unknown reasons ask again"
    assert not talk.is_open
    assert talk.position == before


def test_cached_items_are_told_and_held_until_processed() -> None:
    talk = opened(StreamPlan(vbucket=VBUCKET))
    cached = m.CacheTransfer(
        opaque=7,
        vbucket=VBUCKET,
        items=(m.CachedItem(cas=1, by_seqno=1, rev_seqno=1, key=b"\0k"),),
    )
    said = talk.take_message(cached, 66)
    assert said.held
    assert said.events == [e.CacheReceived(vbucket=VBUCKET, message=cached, size=66)]
    done = talk.take_message(m.CacheTransferEnd(opaque=7, vbucket=VBUCKET), 24)
    assert done.events == [e.CacheReceived(vbucket=VBUCKET, message=None, size=24)]


def test_the_servers_own_words_reach_the_owner() -> None:
    talk = StreamTalk(StreamPlan(vbucket=VBUCKET))
    said = talk.take_reply(
        ErrorReply(
            opcode=Opcode.STREAM_REQ,
            status=Status.UNKNOWN_COLLECTION,
            value=b'{"error":{"context":"unknown collection 8"},"manifest_uid":"3"}',
        )
    )
    assert said is not None
    assert said.over
    (event,) = said.events
    assert isinstance(event, e.StreamRefused)
    assert event.reason == "STREAM_REQ answered UNKNOWN_COLLECTION (0x88), unknown collection 8"


def test_not_my_vbucket_brings_the_cluster_map() -> None:
    talk = StreamTalk(StreamPlan(vbucket=VBUCKET))
    said = talk.take_reply(
        ErrorReply(opcode=Opcode.STREAM_REQ, status=Status.NOT_MY_VBUCKET, value=b'{"rev":3}')
    )
    assert said is not None
    assert said.events == [e.NotMyVBucket(vbucket=VBUCKET, cluster_map=b'{"rev":3}', token=ZERO)]


def test_a_log_without_a_sound_entry_is_the_peers_fault() -> None:
    assert len(read_log((m.FailoverEntry(0, 3), m.FailoverEntry(7, 0)))) == 1
    with pytest.raises(RemoteProtocolError, match="without a sound entry"):
        read_log((m.FailoverEntry(0, 0),))


def test_a_rollback_withdraws_the_boundaries_above_it_too() -> None:
    boundaries = Boundaries().recorded(Seqno(3), BranchId(9)).recorded(Seqno(5), BranchId(0xA))
    token = ResumeToken.at_boundary(BranchId(0xA), Seqno(5), FailoverLog.of((0xA, 3), (9, 0)))
    talk = StreamTalk(StreamPlan(vbucket=VBUCKET, token=token, boundaries=boundaries))
    talk.request(7, Dialect.DCP_7, tell_purge=False)
    assert talk.take_reply(m.RollbackReply(opaque=7, rollback_seqno=4)) is None
    assert talk.position.token == token, "nothing is withdrawn before a position is accepted"
    talk.request(8, Dialect.DCP_7, tell_purge=False)
    talk.take_reply(m.StreamRequestReply(opaque=8, failover_log=(m.FailoverEntry(0xC, 3),)))
    assert [mark.seqno for mark in talk.position.boundaries] == [3]
    assert talk.end(StreamEndReason.FINISHED).token.branch == 0xC


def test_a_plan_for_a_vbucket_differs_in_what_is_said_of_it_alone() -> None:
    plan = StreamPlan(
        vbucket=VBucketId(0),
        flags=StreamFlag.DISK_ONLY,
        collections=(8,),
        manifest_uid=3,
        stream_id=7,
    )
    token = ResumeToken.at_boundary(BranchId(5), Seqno(9))
    bounds = Boundaries().recorded(Seqno(9), BranchId(5))
    assert plan.for_vbucket(VBucketId(4), token, bounds, Seqno(12)) == replace(
        plan, vbucket=VBucketId(4), token=token, boundaries=bounds, end_seqno=Seqno(12)
    )
