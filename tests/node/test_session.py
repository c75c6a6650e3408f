"""A session without a socket: roles, features, and who is asked what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headrace.node.config import NodeConfig
from headrace.node.refusal import Refusal
from headrace.node.replies import Later
from headrace.node.server import Node
from headrace.node.session import Session
from headrace.node.users import Role, User, Users
from headrace.wire import admin, kv
from headrace.wire.codec import decode, to_frame
from headrace.wire.dialect import Dialect
from headrace.wire.frame import split_frames
from headrace.wire.opcodes import Datatype, Feature, Status
from tests.node.running import SMALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.node.link import Timer
    from headrace.wire.message import Message, Request

USERS = Users((User(name="a", password="x", role=Role.READ),))  # noqa: S106 - of this test


class Never:
    """A timer that does not fire."""

    def cancel(self) -> None:
        """Nothing to cancel."""


class Paper:
    """A link that writes down what it is asked."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.ended: list[str] = []

    def call_soon(self, function: Callable[[], None]) -> None:
        function()

    def call_later(self, seconds: float, function: Callable[[], None]) -> Timer:  # noqa: ARG002
        return Never()

    def off_loop(self, function: Callable[[], object], then: Callable[[object], None]) -> None:
        then(function())

    def wake(self) -> None:
        """Nobody pulls here."""

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def end(self, reason: str) -> None:
        self.ended.append(reason)


@pytest.fixture
def node() -> Iterator[Node]:
    """A started node with users; nobody connects to it."""
    with asyncio.Runner() as runner:
        made = Node(NodeConfig(buckets=(SMALL,), users=USERS))
        runner.run(made.start())
        yield made
        runner.run(made.stop())


@pytest.fixture
def session(node: Node) -> Session:
    """A peer of it."""
    return Session(node, Paper(), number=1, peer="p", address="h", encrypted=False, loopback=True)


def answer(session: Session, request: Request) -> Message:
    outcome = session.receive(to_frame(request, Dialect.DCP_7))
    assert not isinstance(outcome, Later)
    (frame,) = split_frames(outcome)
    return decode(frame, Dialect.DCP_7)


def test_a_peer_without_login_has_no_role_and_no_bucket(session: Session) -> None:
    assert session.role == Role.NONE
    with pytest.raises(Refusal) as caught:
        _ = session.host
    assert caught.value.status == Status.NO_BUCKET
    refused = answer(session, kv.Get(key=b"k"))
    assert getattr(refused, "status", None) == Status.EACCESS


def test_the_layout_is_tested_before_the_login(session: Session) -> None:
    frame = to_frame(kv.Get(key=b"k"), Dialect.DCP_7)
    broken = type(frame)(magic=frame.magic, opcode=frame.opcode, key=b"k", value=b"v")
    outcome = session.receive(broken)
    assert isinstance(outcome, bytes)
    assert split_frames(outcome)[0].status == Status.EINVAL


def test_features_decide_which_datatypes_are_understood(session: Session) -> None:
    session.negotiate([Feature.JSON, Feature.XATTR])
    assert session.datatypes == Datatype.JSON | Datatype.XATTR
    session.negotiate([])
    assert (session.datatypes, session.collections, session.extended_errors) == (0, False, False)


def test_an_opcode_nobody_has_is_named(session: Session) -> None:
    frame = to_frame(admin.KvNoop(opaque=5), Dialect.DCP_7)
    unknown = type(frame)(magic=frame.magic, opcode=0x4A, opaque=5)
    outcome = session.receive(unknown)
    assert isinstance(outcome, bytes)
    (reply,) = split_frames(outcome)
    assert (reply.status, reply.opaque) == (Status.UNKNOWN_COMMAND, 5)
    assert b"0x4a" in reply.value


def test_the_map_of_not_my_vbucket_is_sent_once_to_who_keeps_it(
    session: Session, node: Node
) -> None:
    session.select(node.default_host(), asked=True)
    assert session.not_my_vbucket().value
    assert session.not_my_vbucket().value, "others get it every time"
    session.negotiate([Feature.DEDUPE_NMVB_CLUSTERMAP])
    session.map_sent = None
    assert session.not_my_vbucket().value
    assert session.not_my_vbucket().value == b""


def test_a_map_is_pushed_only_to_who_asked_and_uses_the_bucket(
    session: Session, node: Node
) -> None:
    host = node.default_host()
    assert host is not None
    link = session.link
    assert isinstance(link, Paper)
    session.select(host, asked=True)
    session.push_map(host)
    session.negotiate([Feature.CLUSTERMAP_CHANGE])
    session.push_map(host)
    assert link.sent == []
    session.negotiate([Feature.CLUSTERMAP_CHANGE_BRIEF, Feature.DUPLEX])
    session.push_map(host)
    (brief,) = split_frames(link.sent.pop())
    assert brief.value == b""
    session.select(None, asked=False)
    session.push_map(host)
    assert link.sent == []
