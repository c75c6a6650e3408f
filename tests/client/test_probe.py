"""Would I be rolled back, to where, and why: asked of the source, said in words."""

from __future__ import annotations

from headrace.client.bucket import Bucket, connect
from headrace.client.probe import check_tokens
from headrace.client.tokens import TokenSet
from headrace.client.writer import Document
from headrace.history import Boundaries, BranchId, FailoverLog, ResumeToken, Seqno
from headrace.node.config import BucketConfig, NodeConfig
from headrace.protocol.talk import Position
from headrace.store import BucketSettings
from headrace.wire import admin
from headrace.wire.opcodes import VBucketState
from tests.node.running import RunningNode, running

ONE = (BucketConfig(settings=BucketSettings(vbuckets=1)),)


def connected(node: RunningNode) -> Bucket:
    return connect(f"couchbase://127.0.0.1:{node.port}/default")


def write(bucket: Bucket, count: int) -> None:
    with bucket.writer() as writer:
        for number in range(count):
            writer.put(Document(b"k%d" % number, b"1"))


def tokens(bucket: Bucket, position: Position) -> TokenSet:
    return TokenSet(bucket="default", uuid=bucket.uuid, vbuckets=1, positions={0: position})


def marks(branch: BranchId, *seqnos: int) -> Boundaries:
    found = Boundaries()
    for seqno in seqnos:
        found = found.recorded(Seqno(seqno), branch)
    return found


def test_the_source_is_asked_and_the_answer_explained() -> None:
    with running(NodeConfig(buckets=ONE)) as node, connected(node) as bucket:
        write(bucket, 10)
        log = bucket.failover_logs()[0]
        branch = log.newest.uuid

        fine = Position(ResumeToken.at_boundary(branch, Seqno(4), log), marks(branch, 4))
        (verdict,) = check_tokens(bucket, tokens(bucket, fine))
        assert not verdict.is_rollback
        assert str(verdict) == "vbucket 0 at 4: goes on, 6 behind"

        ahead = Position(ResumeToken.at_boundary(branch, Seqno(50), log), marks(branch, 7, 50))
        (verdict,) = check_tokens(bucket, tokens(bucket, ahead))
        assert (verdict.lands_on, verdict.asked_back_to) == (7, 10)
        assert "ends at 10, and the consumer claims 50" in str(verdict)

        other = FailoverLog.of((0xDEAD, 0))
        lost = Position(ResumeToken.at_boundary(BranchId(0xDEAD), Seqno(5), other), Boundaries())
        (verdict,) = check_tokens(bucket, tokens(bucket, lost))
        assert verdict.lands_on == 0
        assert "branch 000000000000dead is unknown to the source" in str(verdict)


def test_a_branch_that_ended_is_named_with_the_boundary_before_it() -> None:
    with running(NodeConfig(buckets=ONE)) as node, connected(node) as bucket:
        write(bucket, 10)
        old = bucket.failover_logs()[0]
        with bucket.kv(bucket.cluster_map.nodes[0]) as link:
            for state in (VBucketState.REPLICA, VBucketState.ACTIVE):
                link.ask(admin.SetVBucket(state=int(state)), admin.SetVBucketReply)
        write(bucket, 5)
        branch = old.newest.uuid
        claimed = Position(ResumeToken.at_boundary(branch, Seqno(13), old), marks(branch, 6, 13))
        (verdict,) = check_tokens(bucket, tokens(bucket, claimed))
        assert (verdict.lands_on, verdict.asked_back_to) == (6, 10)
        said = str(verdict)
        assert f"branch {branch:016x} ended at 10" in said
        assert "no snapshot it holds ends at 10, so it goes to the boundary before" in said
