"""A vbucket's record holds what its frames do not."""

from __future__ import annotations

import json

from headrace.history import Seqno, SnapshotRange
from headrace.store import layout as at
from headrace.store.restore import gone_record, record_of, vbucket_from_record
from headrace.wire.opcodes import VBucketState
from tests.store.kit import make_bucket


def test_a_record_goes_there_and_back() -> None:
    bucket = make_bucket(state=VBucketState.REPLICA)
    vbucket = bucket.vbucket(0)
    snapshot = SnapshotRange(Seqno(1), Seqno(9))
    vbucket.receive_snapshot(snapshot, new_checkpoint=True, from_disk=True, high_completed_seqno=4)
    vbucket.store(b"\x08a", b"", seqno=3, cas=2**64 - 1, rev=1)
    vbucket.delete(b"\x08b", seqno=5, cas=7, rev=2**64 - 1)
    vbucket.set_manifest({"uid": "5"})
    vbucket.purge_seqno, vbucket.rewind_seqno, vbucket.history_floor = 1, 2, 3
    record = json.loads(json.dumps(record_of(vbucket, high=5, sealed=4, sealed_commit=6)))
    other = make_bucket().core
    lookup = vbucket.lookup
    found = vbucket_from_record(other, lookup, 0, record)
    assert found.state is VBucketState.REPLICA
    assert found.failover_log == vbucket.failover_log
    assert found.received == vbucket.received
    assert (found.max_cas, found.max_deleted_rev) == (2**64 - 1, 2**64 - 1)
    assert (found.purge_seqno, found.rewind_seqno, found.history_floor) == (1, 2, 3)
    assert (found.sealed_commit, int(found.row[at.V_SEALED])) == (6, 4)
    assert found.manifest == {"uid": "5"}
    assert found.collections.to_list() == [[8, 5]]
    assert record["high"] == 5


def test_a_deleted_vbucket_leaves_only_where_its_frames_end() -> None:
    assert gone_record(7) == {"state": 0, "sealed_commit": 7}
