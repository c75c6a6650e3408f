"""Recorded replications and takeovers, replayed into a replica over a real store.

tests/captures holds conversations between two real nodes through a forwarding manager. Here our
replica takes the consuming node's place: it is given, frame by frame, what the manager gave that
node, and must send what that node sent. The two ends choose their own opaques, so ours are
translated on the way; two controls that the recorded servers did not know yet are answered here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.capture.conversation import Direction
from headrace.capture.source import open_source
from headrace.capture.walk import walk
from headrace.history import FailoverLog
from headrace.wire import messages as m
from headrace.wire.admin import GetErrorMap, GetVBucketReply, SetCollectionsManifestReply
from headrace.wire.dialect import Dialect
from headrace.wire.message import ErrorReply, Message, Request
from headrace.wire.opcodes import Feature, Opcode, Status, VBucketState
from tests.node.replica_kit import Consumer, replica_host

if TYPE_CHECKING:
    from headrace.store import VBucket
    from tests.node.stream_kit import Host

CAPTURES: Final = Path(__file__).parent / "captures"
INDEX: Final[dict[str, dict[str, Any]]] = {
    row["file"]: row for row in map(json.loads, (CAPTURES / "index.jsonl").read_text().splitlines())
}
FILES: Final = sorted(file for file in INDEX if file.startswith("17"))
REPLICATIONS: Final = [file for file in FILES if file.startswith("17a")]
AFTER: Final = {
    "17b_takeover_605.pcap": "17a_replication_605.pcap",
    "17b_takeover_665.pcap": "17a_replication_665.pcap",
    "17b_takeover_665_durable.pcap": "17a_replication_665_durable.pcap",
}
"""A takeover continues the replica of an earlier file."""
OURS_ALONE: Final = (b"v7_dcp_status_codes", b"max_marker_version")
"""Controls of servers later than those recorded."""
ASKING: Final = (m.Control, GetErrorMap, m.StreamRequest)
"""What the consumer asks its producer."""
TO_MANAGER: Final = (Opcode.OPEN, Opcode.ADD_STREAM, Opcode.CLOSE_STREAM)
OF_THE_NODE: Final = (m.GetAllVbSeqnosReply, SetCollectionsManifestReply, GetVBucketReply)
"""Answers on the same connection that are not the consumer end's."""


@dataclass
class Recording:
    """The consuming node's connection in one file: what came in and what it sent, in order."""

    lines: list[tuple[bool, Message]] = field(default_factory=list)

    @property
    def vbucket(self) -> int:
        return next(one.vbucket for _, one in self.lines if isinstance(one, m.AddStream))

    @property
    def sent(self) -> list[Message]:
        return [message for inbound, message in self.lines if not inbound]


@cache
def recording(file: str) -> Recording:
    dialect = dialect_of(file)
    target = INDEX[file]["ports"][1]
    found: dict[int, Recording] = {}
    with open_source(str(CAPTURES / file)) as source:
        for item in walk(source, dialect, strict=False):
            client, server = item.connection.client, item.connection.server
            if item.message is None or client is None or server is None or server.port != target:
                continue
            inbound = item.direction is Direction.CLIENT_TO_SERVER
            found.setdefault(client.port, Recording()).lines.append((inbound, item.message))
    (one,) = [
        one for one in found.values() if any(isinstance(line[1], m.AddStream) for line in one.lines)
    ]
    opened = next(place for place, line in enumerate(one.lines) if isinstance(line[1], m.Open))
    return Recording(one.lines[opened:])


def dialect_of(file: str) -> Dialect:
    return Dialect.DCP_5 if "_605" in file else Dialect.DCP_7


def features_of(file: str) -> tuple[Feature, ...]:
    return () if "_605" in file else (Feature.COLLECTIONS,)


class Replay:
    """A replica that is given a recording."""

    def __init__(self, file: str, host: Host) -> None:
        self.recording = recording(file)
        opened = self.recording.lines[0][1]
        assert isinstance(opened, m.Open)
        name = "node-b" if opened.value else ""
        self.end = Consumer(
            host,
            dialect=dialect_of(file),
            features=features_of(file),
            name=opened.key,
            flags=opened.flags,
            consumer_name=name,
        )
        self.subjects = {
            message.opaque: subject(message)
            for message in self.recording.sent
            if isinstance(message, ASKING)
        }
        """Their opaque -> what they asked under it."""
        self.asked: dict[object, int] = {}
        self.sent: list[Message] = []
        self._took(self.end.sent)

    def _took(self, messages: list[Message]) -> None:
        """Note what our end asked; answer what no recorded peer could."""
        for message in messages:
            if isinstance(message, m.Control) and message.key in OURS_ALONE:
                refusal = ErrorReply(
                    opcode=Opcode.CONTROL, status=Status.EINVAL, opaque=message.opaque
                )
                self._took(self.end.tell(refusal))
                continue
            self.sent.append(message)
            if isinstance(message, ASKING):
                self.asked[subject(message)] = message.opaque

    def run(self) -> None:
        for inbound, message in self.recording.lines[1:]:
            if inbound:
                asked = self.subjects.get(message.opaque)
                ours = message.opaque if asked is None else self.asked[asked]
                self._took(self.end.tell(replace(message, opaque=ours)))


def subject(message: Message) -> object:
    return message.key if isinstance(message, m.Control) else type(message)


def told(message: Message) -> tuple[object, ...]:
    """What a message of the consumer's says, without the opaque each end chooses."""
    bare = replace(message, opaque=0)
    if isinstance(bare, m.AddStreamReply):
        bare = replace(bare, stream_opaque=0)
    return type(message).__name__, bare


def replayed(file: str) -> tuple[Replay, VBucket]:
    """The file replayed, after the one it continues."""
    host = replica_host(vbuckets=4)
    for one in [AFTER[file], file] if file in AFTER else [file]:
        replay = Replay(one, host)
        if one.startswith("17c"):
            host.set_state(replay.recording.vbucket, VBucketState.PENDING)
        replay.run()
        assert replay.end.replica.closed_reason is None
        replay.end.replica.close()
    return replay, host.bucket.vbucket(replay.recording.vbucket)


def own(messages: list[Message], *, to_manager: bool) -> list[tuple[object, ...]]:
    """What the consumer end sent to the manager, or to the producer: two peers, two orders."""
    kinds = (m.OpenReply, m.AddStreamReply, m.CloseStreamReply)
    return [
        told(message)
        for message in messages
        if not isinstance(message, OF_THE_NODE)
        and to_manager
        == (
            message.opcode in TO_MANAGER
            if isinstance(message, ErrorReply)
            else isinstance(message, kinds)
        )
    ]


@pytest.mark.parametrize("file", FILES)
def test_our_end_sends_what_the_real_one_sent(file: str) -> None:
    replay, _ = replayed(file)
    for to_manager in (False, True):
        ours = own(replay.sent, to_manager=to_manager)
        assert ours == own(replay.recording.sent, to_manager=to_manager)
        assert ours


@pytest.mark.parametrize("file", FILES)
def test_the_vbucket_ends_where_the_recording_says(file: str) -> None:
    replay, vbucket = replayed(file)
    items = [
        message
        for inbound, message in replay.recording.lines
        if inbound and isinstance(message, Request) and message.vbucket == vbucket.id
    ]
    seqnos = [getattr(one, name) for one in items for name in SEQNOS if hasattr(one, name)]
    assert vbucket.high_seqno == vbucket.complete_seqno == max(seqnos)
    (log,) = [
        one.failover_log
        for _, one in replay.recording.lines
        if isinstance(one, m.StreamRequestReply)
    ]
    assert vbucket.failover_log == FailoverLog.of(*((one.uuid, one.seqno) for one in log))
    taken = any(isinstance(one, m.SetVBucketState) for one in items)
    assert vbucket.state is (VBucketState.ACTIVE if taken else VBucketState.REPLICA)
    assert not vbucket.all_pending()


SEQNOS: Final = ("by_seqno", "commit_seqno", "abort_seqno")


@pytest.mark.parametrize("file", REPLICATIONS)
def test_every_document_is_as_the_source_had_it(file: str) -> None:
    replay, vbucket = replayed(file)
    prefix = b"" if Feature.COLLECTIONS in features_of(file) else b"\0"
    state: dict[bytes, Message] = {}
    prepared: dict[bytes, m.Prepare] = {}
    for inbound, message in replay.recording.lines:
        if not inbound:
            continue
        if isinstance(message, m.Mutation | m.Deletion):
            state[message.key] = message
        elif isinstance(message, m.Prepare):
            prepared[message.key] = message
        elif isinstance(message, m.Commit):
            committed = prepared.pop(message.key)
            state[message.key] = replace(committed, by_seqno=message.commit_seqno)
    assert state
    for key, message in state.items():
        item = vbucket.get(prefix + key)
        assert item is not None
        assert (item.seqno, item.rev, item.cas) == (
            message.by_seqno,  # type: ignore[attr-defined]
            message.rev_seqno,  # type: ignore[attr-defined]
            message.cas,
        )
        assert (item.deleted, item.value) == (
            isinstance(message, m.Deletion),
            message.value,  # type: ignore[attr-defined]
        )
