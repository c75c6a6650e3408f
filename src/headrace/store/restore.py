"""A vbucket's record in the meta table: what cannot be learnt from its frames.

Imports: errors, history, store.layout, store.replica, wire.opcodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.history import FailoverLog
from headrace.store import layout as at
from headrace.store.changes import signed
from headrace.store.lookup import UNSIGNED
from headrace.store.replica import Received
from headrace.store.vbucket import VBucket

if TYPE_CHECKING:
    from headrace.store.core import Core
    from headrace.store.lookup import Lookup


def record_of(
    vbucket: VBucket,
    *,
    high: int,
    sealed: int | None = None,
    sealed_commit: int | None = None,
    rewind: int | None = None,
    history_floor: int | None = None,
    purge: int | None = None,
) -> dict[str, object]:
    """The record that will be true once ``high`` is durable, with these numbers where given."""
    row = vbucket.row
    vbucket.collections.catch_up()

    def chosen(given: int | None, current: int) -> int:
        return current if given is None else given

    return {
        "state": int(row[at.V_STATE]),
        "log": [[entry.uuid, entry.seqno] for entry in vbucket.failover_log],
        "high": high,
        "sealed": chosen(sealed, int(row[at.V_SEALED])),
        "sealed_commit": chosen(sealed_commit, vbucket.sealed_commit),
        "purge": chosen(purge, vbucket.purge_seqno),
        "rewind": chosen(rewind, vbucket.rewind_seqno),
        "history_floor": chosen(history_floor, vbucket.history_floor),
        "max_cas": int(row[at.V_MAX_CAS]) & UNSIGNED,
        "deleted_rev": int(row[at.V_DELETED_REV]) & UNSIGNED,
        "received": None if vbucket.received is None else vbucket.received.to_json(),
        "unsettled": [list(one) for one in vbucket.unsettled.ranges],
        "completed_floor": vbucket.completed_floor,
        "high_prepared": vbucket.prepares.high_prepared,
        "high_completed": vbucket.prepares.high_completed,
        "collections": vbucket.collections.to_list(),
        "manifest": vbucket.manifest,
    }


def gone_record(sealed_commit: int) -> dict[str, object]:
    """The record of a deleted vbucket: its frames in older journal entries mean nothing."""
    return {"state": 0, "sealed_commit": sealed_commit}


def vbucket_from_record(core: Core, lookup: Lookup, number: int, record: dict[str, Any]) -> VBucket:
    """The vbucket of a record; its frames are loaded later."""
    log, _ = FailoverLog.loaded((uuid, seqno) for uuid, seqno in record["log"])
    vbucket = VBucket(core, lookup, number, log)
    row = vbucket.row
    row[:] = 0
    row[at.V_STATE] = record["state"]
    # The journal's frames rise from the last sealed one; the owner raises it to the record's high.
    row[at.V_HIGH] = row[at.V_SEALED] = record["sealed"]
    row[at.V_MAX_CAS] = signed(record["max_cas"])
    row[at.V_DELETED_REV] = signed(record["deleted_rev"])
    row[at.V_BRANCH] = signed(log.newest.uuid)
    vbucket.sealed_commit = record["sealed_commit"]
    vbucket.purge_seqno = record["purge"]
    vbucket.rewind_seqno = record["rewind"]
    vbucket.history_floor = record["history_floor"]
    vbucket.manifest = record["manifest"]
    if record["received"] is not None:
        vbucket.received = Received.from_json(record["received"])
    # Records of older releases have neither.
    vbucket.unsettled.ranges = [(before, end) for before, end in record.get("unsettled", [])]
    vbucket.completed_floor = record.get("completed_floor", 0)
    vbucket.prepares.high_prepared = record["high_prepared"]
    vbucket.prepares.high_completed = record["high_completed"]
    # Purged tombstones leave no frame: these seqnos may be above what loading finds.
    vbucket.collections.reset(record["collections"], 0)
    return vbucket
