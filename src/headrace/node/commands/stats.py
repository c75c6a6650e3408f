"""STAT: groups of names and numbers, one reply each, ended by an empty one.

    (empty)               the node and the selected bucket
    vbucket               vb_N = state
    vbucket-details [N]   vb_N = state, vb_N:high_seqno, vb_N:uuid, ...
    vbucket-seqno [N]     vb_N:high_seqno, vb_N:last_persisted_seqno, vb_N:uuid, ...
    failovers [N]         vb_N:num_entries, vb_N:0:id, vb_N:0:seq, ... (0 is the newest)
    dcp                   eq_dcpq:NAME:..., and sums as ep_dcp_...
    dcpagg [SEP]          sums by the part of a name before SEP
    dcp-vbtakeover N [NAME]  what a stream of that vbucket has left
    reset                 counters begin again at 0

An unknown group is KEY_ENOENT; a vbucket that is no number EINVAL, one that is not here
NOT_MY_VBUCKET.

Imports: wire, node.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

from headrace.node.bucket_host import Counters
from headrace.node.command import Command
from headrace.node.config import VERSION
from headrace.node.producer_statistics import aggregate_statistics, items_remaining, items_sent
from headrace.node.refusal import Refusal
from headrace.node.users import Role
from headrace.wire import admin
from headrace.wire.opcodes import Opcode, Status, VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace.node.bucket_host import BucketHost
    from headrace.node.producer import Producer
    from headrace.node.replica import Replica
    from headrace.node.session import Session
    from headrace.store import VBucket
    from headrace.wire.message import Reply

ARGUMENTS_MAX: Final = 4


def replicas_of(host: BucketHost) -> list[Replica]:
    """The consuming ends of a bucket's change-stream connections."""
    found = (listener.replica for listener in host.listeners.values())
    return [replica for replica in found if replica is not None]


def producers_of(host: BucketHost) -> list[Producer]:
    """The producers of a bucket's change-stream connections."""
    found = (listener.producer for listener in host.listeners.values())
    return [producer for producer in found if producer is not None]


def stat(session: Session, message: admin.Stat) -> list[Reply]:
    """Send a group of statistics."""
    try:
        group, *arguments = message.key.decode("ascii").split() or [""]
    except UnicodeDecodeError:
        raise Refusal(Status.EINVAL, "the name of a group is not ASCII") from None
    function = GROUPS.get(group)
    if function is None or len(arguments) > ARGUMENTS_MAX:
        raise Refusal(Status.KEY_ENOENT)
    replies: list[Reply] = [
        admin.StatReply(key=name.encode(), value=str(value).encode())
        for name, value in function(session, arguments)
    ]
    replies.append(admin.StatReply())
    return replies


def _chosen(session: Session, arguments: list[str]) -> list[VBucket]:
    """The vbucket a group's argument names, or all of them."""
    if not arguments:
        return session.host.bucket.vbuckets
    if not arguments[0].isdigit() or len(arguments[0]) > 5 or len(arguments) > 1:
        raise Refusal(Status.EINVAL, f"vbucket {arguments[0]!r} is not a number")
    vbucket = session.host.bucket.find(int(arguments[0]))
    if vbucket is None:
        raise session.not_my_vbucket()
    return [vbucket]


def _state(vbucket: VBucket) -> str:
    return vbucket.state.name.lower()


def general(session: Session, arguments: list[str]) -> Iterator[tuple[str, object]]:  # noqa: ARG001
    """The node and, if one is selected, its bucket."""
    node = session.node
    yield "pid", os.getpid()
    yield "uptime", int(node.clock() - node.started_at)
    yield "time", int(node.clock())
    yield "version", VERSION
    yield "pointer_size", 64
    yield "threads", 1
    yield "curr_connections", len(node.connections)
    yield "total_connections", node.counters.connections
    yield "bytes_read", node.counters.bytes_received
    yield "bytes_written", node.counters.bytes_sent
    yield "auth_errors", node.counters.failed_logins
    host = session.selected
    if host is None:
        return
    counters, bucket = host.counters, host.bucket
    items = sum(one.item_count for one in bucket.vbuckets if one.state == VBucketState.ACTIVE)
    yield "curr_items", items
    yield "curr_items_tot", sum(one.item_count for one in bucket.vbuckets)
    yield "get_hits", counters.get_hits
    yield "get_misses", counters.get_misses
    yield "cmd_get", counters.get_hits + counters.get_misses
    yield "cmd_set", counters.writes
    yield "cmd_touch", counters.touches
    yield "delete_hits", counters.deletes
    yield "cas_hits", counters.cas_hits
    yield "cas_badval", counters.cas_misses
    yield "bytes", bucket.memory_used
    yield "mem_used", bucket.memory_used
    yield "limit_maxbytes", bucket.settings.memory_quota
    yield "ep_max_size", bucket.settings.memory_quota
    yield "ep_max_vbuckets", bucket.settings.vbuckets
    yield "ep_bucket_type", "persistent" if bucket.durable else "ephemeral"
    yield "ep_conflict_resolution_type", host.config.conflict_resolution.value
    yield "ep_persistence", int(bucket.persistence)
    for name, value in bucket.statistics().items():
        yield f"ep_{name}", value


def vbuckets(session: Session, arguments: list[str]) -> Iterator[tuple[str, object]]:
    """Each vbucket's state."""
    for vbucket in _chosen(session, arguments):
        yield f"vb_{vbucket.id}", _state(vbucket)


def details(session: Session, arguments: list[str]) -> Iterator[tuple[str, object]]:
    """Everything about each vbucket."""
    for vbucket in _chosen(session, arguments):
        prefix = f"vb_{vbucket.id}"
        yield prefix, _state(vbucket)
        for name, value in (
            ("num_items", vbucket.item_count),
            ("num_deletes", vbucket.tombstone_count),
            ("high_seqno", vbucket.high_seqno),
            ("uuid", vbucket.failover_log.newest.uuid),
            ("purge_seqno", vbucket.purge_seqno),
            ("last_persisted_seqno", session.host.persisted_seqno(vbucket)),
            ("max_visible_seqno", vbucket.max_visible_seqno),
            ("high_prepared_seqno", vbucket.high_prepared_seqno),
            ("high_completed_seqno", vbucket.high_completed_seqno),
            ("complete_seqno", vbucket.complete_seqno),
            ("max_cas", vbucket.max_cas),
            ("max_deleted_revid", vbucket.max_deleted_rev),
            ("open_checkpoint_id", vbucket.checkpoint_id),
            ("num_checkpoints", len(vbucket.checkpoints)),
            ("db_file_size", vbucket.disk_bytes),
            ("topology", json.dumps(session.host.sync_writes.topology(vbucket.id).to_json())),
        ):
            yield f"{prefix}:{name}", value


def seqnos(session: Session, arguments: list[str]) -> Iterator[tuple[str, object]]:
    """Where each vbucket's history stands."""
    for vbucket in _chosen(session, arguments):
        snapshot = vbucket.persisted_snapshot
        uuid = vbucket.failover_log.newest.uuid
        for name, value in (
            ("high_seqno", _high_seqno(vbucket)),
            ("abs_high_seqno", vbucket.high_seqno),
            ("last_persisted_seqno", session.host.persisted_seqno(vbucket)),
            ("uuid", uuid),
            ("vb_uuid", uuid),
            ("purge_seqno", vbucket.purge_seqno),
            ("last_persisted_snap_start", snapshot.start),
            ("last_persisted_snap_end", snapshot.end),
            ("high_prepared_seqno", vbucket.high_prepared_seqno),
            ("high_completed_seqno", vbucket.high_completed_seqno),
            ("max_visible_seqno", vbucket.max_visible_seqno),
        ):
            yield f"vb_{vbucket.id}:{name}", value


def _high_seqno(vbucket: VBucket) -> int:
    if vbucket.state == VBucketState.ACTIVE:
        return vbucket.high_seqno
    return max(vbucket.snapshot.end, vbucket.high_seqno)


def failovers(session: Session, arguments: list[str]) -> Iterator[tuple[str, object]]:
    """Each vbucket's failover log."""
    for vbucket in _chosen(session, arguments):
        prefix = f"vb_{vbucket.id}"
        yield f"{prefix}:num_entries", len(vbucket.failover_log)
        yield f"{prefix}:num_erroneous_entries_erased", 0
        for place, entry in enumerate(vbucket.failover_log):
            yield f"{prefix}:{place}:id", entry.uuid
            yield f"{prefix}:{place}:seq", entry.seqno


def dcp(session: Session, arguments: list[str]) -> Iterator[tuple[str, object]]:  # noqa: ARG001
    """Each change-stream connection and its streams."""
    host = session.host
    for name, listener in host.listeners.items():
        text = name.decode("utf-8", "backslashreplace")
        for key, value in listener.stream_statistics():
            yield f"eq_dcpq:{text}:{key}", value
    producers = producers_of(host)
    replicas = replicas_of(host)
    yield "ep_dcp_count", len(producers) + len(replicas)
    yield "ep_dcp_producer_count", len(producers)
    yield "ep_dcp_consumer_count", len(replicas)
    yield "ep_dcp_items_received", sum(replica.items_received for replica in replicas)
    yield "ep_dcp_items_sent", sum(items_sent(producer) for producer in producers)
    yield "ep_dcp_items_remaining", sum(items_remaining(producer) for producer in producers)
    yield "ep_dcp_total_bytes", sum(producer.bytes_sent for producer in producers)
    yield "ep_dcp_num_running_backfills", sum(one.schedule.backfills for one in producers)


def dcp_aggregate(session: Session, arguments: list[str]) -> Iterable[tuple[str, object]]:
    """Sums over change-stream connections, by the first part of their names."""
    host = session.host
    return aggregate_statistics((*producers_of(host), *replicas_of(host)), *arguments[:1])


def takeover(session: Session, arguments: list[str]) -> Iterator[tuple[str, object]]:
    """What a stream of a vbucket has left."""
    if not arguments:
        raise Refusal(Status.EINVAL, "dcp-vbtakeover needs a vbucket")
    (vbucket,) = _chosen(session, arguments[:1])
    name = arguments[1] if len(arguments) > 1 else ""
    left = vbucket.item_count
    status = "does_not_exist"
    for producer in producers_of(session.host):
        if producer.options.name == name:
            for stream in producer.streams.values():
                if stream.vbucket == vbucket.id:
                    status = "in-memory" if stream.has_cursor else "backfilling"
                    left = max(0, vbucket.high_seqno - stream.read_seqno)
    yield "status", status
    yield "estimate", left
    yield "chk_items", left if status == "in-memory" else 0
    yield "vb_items", vbucket.item_count
    yield "on_disk_deletes", vbucket.tombstone_count
    yield "backfillRemaining", left if status == "backfilling" else 0
    yield "name", name


def reset(session: Session, arguments: list[str]) -> Iterable[tuple[str, object]]:  # noqa: ARG001
    """Let the bucket's counters begin again."""
    if session.role < Role.ADMIN:
        raise Refusal(Status.EACCESS, "STAT reset needs the role admin")
    session.host.counters = Counters()
    return ()


GROUPS: Final[dict[str, Callable[[Session, list[str]], Iterable[tuple[str, object]]]]] = {
    "": general,
    "vbucket": vbuckets,
    "vbucket-details": details,
    "vbucket-seqno": seqnos,
    "failovers": failovers,
    "dcp": dcp,
    "dcpagg": dcp_aggregate,
    "dcp-vbtakeover": takeover,
    "reset": reset,
}

ROWS: Final = (Command(opcode=Opcode.STAT, function=stat, role=Role.READ),)
