"""Where a vbucket's history stands: OBSERVE_SEQNO, SEQNO_PERSISTENCE, GET_ALL_VB_SEQNOS, failover
log.

Imports: wire, node.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from headrace.node.command import reading
from headrace.node.config import SEQNO_WAIT_SECONDS
from headrace.node.manifest import DEFAULT_ID
from headrace.node.refusal import Refusal
from headrace.node.replies import Later
from headrace.wire import admin, messages
from headrace.wire.opcodes import Feature, Opcode, Status, VBucketState

if TYPE_CHECKING:
    from headrace.node.session import Session
    from headrace.store import VBucket

ALIVE: Final = frozenset({VBucketState.ACTIVE, VBucketState.REPLICA, VBucketState.PENDING})
ANY_ALIVE_STATE: Final = 0


def _vbucket(session: Session, number: int) -> VBucket:
    """The vbucket in any state; NOT_MY_VBUCKET when it is not here."""
    vbucket = session.host.bucket.find(number)
    if vbucket is None:
        raise session.not_my_vbucket()
    return vbucket


def observe_seqno(session: Session, message: admin.ObserveSeqno) -> admin.ObserveSeqnoReply:
    """Tell how far a branch is in memory and on disk, or where it ended."""
    vbucket = _vbucket(session, message.vbucket)
    log = vbucket.failover_log
    newest = log.newest.uuid
    if message.vb_uuid == newest:
        return admin.ObserveSeqnoReply(
            observed_vbucket=vbucket.id,
            vb_uuid=newest,
            persisted_seqno=session.host.persisted_seqno(vbucket),
            high_seqno=vbucket.high_seqno,
        )
    place = log.index(message.vb_uuid)
    if place is None:
        raise Refusal(Status.KEY_ENOENT)
    ended_at = list(log)[place - 1].seqno
    return admin.ObserveSeqnoReply(
        failed_over=1,
        observed_vbucket=vbucket.id,
        vb_uuid=newest,
        persisted_seqno=session.host.persisted_seqno(vbucket),
        high_seqno=vbucket.high_seqno,
        old_vb_uuid=message.vb_uuid,
        old_high_seqno=ended_at,
    )


def seqno_persistence(session: Session, message: admin.SeqnoPersistence) -> Later:
    """Answer when the seqno is on disk; ETMPFAIL when that takes too long."""
    vbucket = _vbucket(session, message.vbucket)
    if not session.host.bucket.durable:
        raise Refusal(Status.NOT_SUPPORTED, "this bucket lives in memory alone")
    later = Later()
    link = session.link
    timer = link.call_later(
        SEQNO_WAIT_SECONDS,
        lambda: later.resolve(
            Refusal(Status.ETMPFAIL, f"seqno {message.seqno} is not on disk in time")
        ),
    )

    def persisted(durable: bool) -> None:
        answer = (
            admin.SeqnoPersistenceReply()
            if durable
            else Refusal(Status.ETMPFAIL, f"seqno {message.seqno} was lost")
        )

        def tell() -> None:
            timer.cancel()
            later.resolve(answer)

        link.call_soon(tell)

    later.abandon = timer.cancel
    vbucket.on_persisted(message.seqno, persisted)
    return later


def failover_log(
    session: Session, message: messages.FailoverLogRequest
) -> messages.FailoverLogReply:
    """Send the branches of a vbucket, newest first."""
    vbucket = _vbucket(session, message.vbucket)
    return messages.FailoverLogReply(
        failover_log=tuple(
            messages.FailoverEntry(entry.uuid, entry.seqno) for entry in vbucket.failover_log
        )
    )


def get_all_vb_seqnos(
    session: Session, message: messages.GetAllVbSeqnos
) -> messages.GetAllVbSeqnosReply:
    """Send how far each vbucket in a state is, of one collection if asked."""
    if message.cas:
        raise Refusal(Status.EINVAL, "GET_ALL_VB_SEQNOS with a CAS")
    state = int(message.state or ANY_ALIVE_STATE)
    if state > VBucketState.DEAD:
        raise Refusal(Status.EINVAL, f"state {state}, allowed 0..{int(VBucketState.DEAD)}")
    collection = message.collection_id
    host = session.host
    if collection is not None and not session.collections:
        raise Refusal(Status.EINVAL, "a collection needs the HELLO feature collections")
    if collection is not None and collection not in host.manifest.collections:
        raise host.manifest.unknown_collection()
    if collection is None and not session.collections:
        if DEFAULT_ID not in host.manifest.collections:
            raise host.manifest.unknown_collection()
        collection = DEFAULT_ID
    states = ALIVE if state == ANY_ALIVE_STATE else {VBucketState(state)}
    if collection is not None and _sees_visible(session):
        # Asked again and again by whoever waits for a copy: a thousand objects are not looked at.
        pairs = host.bucket.visible_seqnos(states)
        return messages.GetAllVbSeqnosReply(
            seqnos=tuple(itertools.starmap(messages.VBucketSeqno, pairs))
        )
    return messages.GetAllVbSeqnosReply(
        seqnos=tuple(
            messages.VBucketSeqno(vbucket.id, _high_seqno(vbucket, collection))
            for vbucket in host.bucket.vbuckets
            if vbucket.state in states
        )
    )


def _sees_visible(session: Session) -> bool:
    """Whether what a client sees of the one collection there is ends with the visible seqno."""
    return session.host.manifest.uid == 0 and not session.has(Feature.SYNC_REPLICATION)


def _high_seqno(vbucket: VBucket, collection: int | None) -> int:
    """How far a client is told that a vbucket is: as far as it can see."""
    if collection is not None:
        return vbucket.collection_high_seqno((collection,))
    if vbucket.state == VBucketState.ACTIVE:
        return vbucket.high_seqno
    # The rest of a snapshot that is being received will come: a reader that asks must wait for it.
    return max(vbucket.snapshot.end, vbucket.high_seqno)


ROWS: Final = (
    *reading(observe_seqno, Opcode.OBSERVE_SEQNO),
    *reading(seqno_persistence, Opcode.SEQNO_PERSISTENCE),
    *reading(failover_log, Opcode.FAILOVER_LOG),
    *reading(get_all_vb_seqnos, Opcode.GET_ALL_VB_SEQNOS),
)
