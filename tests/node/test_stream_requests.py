"""Stream requests put to a live producer, over vbuckets brought into the state of each row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from headrace.history import BranchId, FailoverEntry, FailoverLog, Seqno, SnapshotRange
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.message import ErrorReply
from headrace.wire.messages import (
    CloseStream,
    Deletion,
    Mutation,
    RollbackReply,
    StreamRequestReply,
)
from headrace.wire.opcodes import Feature, Status, StreamFlag, VBucketState
from tests.node.stream_kit import Host, Peer, make_host, put, refused, restarted

if TYPE_CHECKING:
    from collections.abc import Iterator

VECTORS: Final = Path(__file__).parents[1] / "vectors" / "decisions.jsonl"
SAMPLE_EVERY: Final = 5


def rows() -> dict[str, list[dict[str, int]]]:
    """A sample of a real server's decisions, grouped by the vbucket they were made for."""
    groups: dict[str, list[dict[str, int]]] = {}
    with VECTORS.open() as lines:
        for number, line in enumerate(lines):
            if number % SAMPLE_EVERY:
                continue
            row = json.loads(line)
            name = json.dumps([row["log"], row["high"], row["purge"]])
            groups.setdefault(name, []).append(row)
    return groups


def bring(path: Path, log: list[list[int]], high: int, purge: int) -> Host:
    """A bucket whose vbucket 0 has this failover log, high seqno and purge seqno."""
    host = make_host(path if purge else None, vbuckets=1)
    vbucket = host.bucket.vbucket(0)
    vbucket.set_state(VBucketState.REPLICA)
    if high:
        vbucket.receive_snapshot(
            SnapshotRange(Seqno(1), Seqno(high)), new_checkpoint=True, from_disk=False
        )
        frames = b""
        for seqno in range(1, high + 1):
            key = b"\0k%d" % seqno
            if seqno == purge:
                frames += encode(Deletion(key=key, by_seqno=seqno, delete_time=1), Dialect.DCP_7)
            else:
                frames += encode(Mutation(key=key, by_seqno=seqno), Dialect.DCP_7)
        vbucket.apply_frames(frames)
    host.bucket.commit()
    if purge:  # of tombstones that are on disk alone
        host = restarted(host, path)
        vbucket = host.bucket.vbucket(0)
        host.bucket.compact(drop_deletes=True)
        assert vbucket.purge_seqno == purge
    vbucket.set_state(VBucketState.ACTIVE, takeover=True)
    entries = (FailoverEntry(BranchId(uuid), Seqno(seqno)) for uuid, seqno in log)
    vbucket.replace_failover_log(FailoverLog(tuple(entries)))
    return host


@pytest.mark.parametrize("name", rows())
def test_a_live_producer_decides_as_a_real_server_did(name: str, tmp_path: Path) -> None:
    log, high, purge = json.loads(name)
    host = bring(tmp_path / "bucket", log, high, purge)
    peer = Peer(host)
    for row in rows()[name]:
        reply = peer.request(
            0,
            row["start"],
            end=int(row["end"]),
            uuid=row["uuid"],
            snapshot=(row["snap_start"], row["snap_end"]),
            flags=row["flags"],
        )
        assert reply.status == row["status"], row
        if isinstance(reply, RollbackReply):
            assert reply.rollback_seqno == row["rollback"], row
        if isinstance(reply, StreamRequestReply):
            assert [[entry.uuid, entry.seqno] for entry in reply.failover_log] == log
            peer.ask(CloseStream(vbucket=0))
    host.bucket.close()


@pytest.fixture
def host() -> Iterator[Host]:
    made = make_host()
    yield made
    made.bucket.close()


def test_errors_are_tested_in_order(host: Host) -> None:
    """One request that is wrong in every way, righted step by step."""
    put(host.bucket.vbucket(0), "a", "b")
    peer = Peer(host, features=[Feature.COLLECTIONS])
    wrong = {"start": 9, "end": 3, "snapshot": (9, 9), "value": b"{}", "flags": 0x08}
    assert refused(peer.request(99, **wrong)) == Status.NOT_MY_VBUCKET  # type: ignore[arg-type]
    assert refused(peer.request(0, **wrong)) == Status.EINVAL  # type: ignore[arg-type]
    wrong["flags"] = 0
    assert refused(peer.request(0, **wrong)) == Status.NOT_SUPPORTED  # type: ignore[arg-type]
    peer.control("enable_noop", "true")
    assert refused(peer.request(0, **wrong)) == Status.ERANGE  # type: ignore[arg-type]
    wrong["end"] = 20
    assert refused(peer.request(0, **wrong)) == Status.EINVAL  # type: ignore[arg-type]
    wrong["value"] = b'{"uid":"0"}'
    peer.stream(0)
    assert refused(peer.request(0, **wrong)) == Status.KEY_EEXISTS  # type: ignore[arg-type]
    peer.ask(CloseStream(vbucket=0))
    assert isinstance(peer.request(0, **wrong), RollbackReply)  # type: ignore[arg-type]


def test_a_reader_beyond_its_collections_is_at_their_end(host: Host) -> None:
    """It was told of seqno 3 by SEQNO_ADVANCED; nothing of its collection is there."""
    put(host.bucket.vbucket(0), "a", "b", "c")
    host.set_manifest(
        {
            "uid": "1",
            "scopes": [
                {
                    "name": "_default",
                    "uid": "0",
                    "collections": [
                        {"name": "_default", "uid": "0"},
                        {"name": "x", "uid": "9"},
                    ],
                }
            ],
        }
    )
    put(host.bucket.vbucket(0), "d")
    peer = Peer(host, features=[Feature.COLLECTIONS], controls={"enable_noop": "true"})
    value = b'{"collections":["9"]}'
    reply = peer.request(0, 5, uuid=peer.uuid(), flags=StreamFlag.TO_LATEST, value=value)
    assert not isinstance(reply, ErrorReply)
