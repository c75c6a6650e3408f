from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.cli import follow
from headrace.cli.follow import Follower
from headrace.wire.admin import Hello, HelloReply
from headrace.wire.message import ErrorReply
from headrace.wire.messages import (
    FailoverEntry,
    Mutation,
    Noop,
    StreamRequest,
    StreamRequestReply,
)
from headrace.wire.opcodes import Feature, Opcode
from tests.cli.building import BACK, CONNECTION, THERE, item_of

if TYPE_CHECKING:
    from headrace.capture.walk import Item

REQUEST = StreamRequest(
    vbucket=7, opaque=3, start_seqno=0, end_seqno=1, snap_start_seqno=0, snap_end_seqno=0
)
REPLY = StreamRequestReply(opaque=3, failover_log=(FailoverEntry(1, 0),))


def test_a_reply_is_about_the_vbucket_of_its_request() -> None:
    follower = Follower()
    follower.see(item_of(REQUEST, direction=THERE))
    reply = item_of(REPLY)
    follower.see(reply)
    assert follower.vbucket(reply) == 7


def test_a_refusal_is_about_the_vbucket_of_its_request_too() -> None:
    follower = Follower()
    follower.see(item_of(REQUEST, direction=THERE))
    refusal = item_of(ErrorReply(opcode=Opcode.STREAM_REQ, status=7, opaque=3))
    assert follower.vbucket(refusal) == 7


@pytest.mark.parametrize(
    "reply",
    [
        item_of(REPLY, direction=THERE),
        item_of(StreamRequestReply(opaque=4, failover_log=(FailoverEntry(1, 0),))),
    ],
    ids=["same direction", "other opaque"],
)
def test_a_reply_without_request_is_about_no_vbucket(reply: Item) -> None:
    follower = Follower()
    follower.see(item_of(REQUEST, direction=THERE))
    assert follower.vbucket(reply) is None


def test_a_vbucket_of_0_counts_only_where_the_field_means_something() -> None:
    follower = Follower()
    assert follower.vbucket(item_of(Mutation(by_seqno=1, key=b"k"))) == 0
    assert follower.vbucket(item_of(Noop())) is None
    assert follower.vbucket(item_of(Noop(vbucket=3))) == 3


def test_collections_are_known_once_hello_was_answered() -> None:
    follower = Follower()
    assert follower.collections(CONNECTION) is None
    follower.see(item_of(HelloReply(features=(Feature.COLLECTIONS,))))
    assert follower.collections(CONNECTION) is True
    follower.see(item_of(Hello(features=()), direction=THERE))
    assert follower.collections(CONNECTION) is None
    follower.see(item_of(HelloReply(features=(Feature.XATTR,))))
    assert follower.collections(CONNECTION) is False


def test_open_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "REQUESTS_MAX", 2)
    follower = Follower()
    for opaque in range(3):
        request = StreamRequest(
            vbucket=opaque + 1,
            opaque=opaque,
            start_seqno=0,
            end_seqno=1,
            snap_start_seqno=0,
            snap_end_seqno=0,
        )
        follower.see(item_of(request, direction=THERE))
    found = [
        follower.vbucket(item_of(StreamRequestReply(opaque=n, failover_log=(FailoverEntry(1, 0),))))
        for n in range(3)
    ]
    assert found == [None, 2, 3]


def test_time_is_counted_from_the_first_item() -> None:
    follower = Follower()
    for time in (50, 70):
        follower.see(item_of(Noop(), direction=BACK, time=time))
    assert follower.start_ns == 50
