"""Administration: vbucket states, maps, compaction, persistence, buckets, FLUSH, VERBOSITY.

Work that may take long (compaction, opening and deleting buckets) leaves the event loop; the
connection that asked waits, others do not.

Imports: errors, store, wire, node.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError, HeadraceError
from headrace.node.cluster_map import MapVersion, read_given
from headrace.node.command import Command, Quiet, administering
from headrace.node.config import BUCKET_NAME, BucketConfig, ConflictResolution
from headrace.node.logs import LOGGER, note
from headrace.node.refusal import Refusal
from headrace.node.replies import Later
from headrace.node.sync_writes import read_topology
from headrace.node.users import Role
from headrace.store import BucketSettings
from headrace.wire import admin
from headrace.wire.opcodes import Datatype, Opcode, Status, VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.session import Session
    from headrace.node.sync_writes import Topology
    from headrace.wire.message import Reply

SYNCHRONOUS: Final = b"async=0"
VBUCKET_KEYS: Final = frozenset({"topology", "use_snapshot", "next_expected_state"})
VERBOSITIES: Final = (logging.WARNING, logging.INFO, logging.DEBUG)


def off_loop(session: Session, work: Callable[[], object], done: Callable[[], Reply]) -> Later:
    """Answer ``done()`` once the work was done on a worker thread, or say why it failed."""
    later = Later()

    def finished(result: object) -> None:
        if isinstance(result, Refusal):
            later.resolve(result)
        elif isinstance(result, HeadraceError):
            later.resolve(Refusal(Status.ETMPFAIL, str(result)))
        elif isinstance(result, Exception):
            LOGGER.error("admin_failed", exc_info=result)
            later.resolve(Refusal(Status.EINTERNAL, "the node failed; its log says how"))
        else:
            later.resolve(done())

    session.link.off_loop(work, finished)
    return later


# -- vbuckets ------------------------------------------------------------------------------------


def set_vbucket(session: Session, message: admin.SetVBucket) -> admin.SetVBucketReply:
    """Give a vbucket a state, creating it if need be."""
    host = session.host
    if message.vbucket >= host.bucket.settings.vbuckets:
        raise Refusal(
            Status.ERANGE,
            f"vbucket {message.vbucket}, this bucket has {host.bucket.settings.vbuckets}",
        )
    try:
        state = VBucketState(message.state)
    except ValueError:
        raise Refusal(Status.EINVAL, f"state {message.state}, allowed 1..4") from None
    topology = _read_topology(message, state) if message.value else None
    host.set_state(message.vbucket, state, topology=topology)
    return admin.SetVBucketReply()


def _read_topology(message: admin.SetVBucket, state: VBucketState) -> Topology | None:
    if not message.datatype & Datatype.JSON:
        raise Refusal(Status.EINVAL, "the value of SET_VBUCKET needs datatype JSON")
    try:
        value = json.loads(message.value)
    except (ValueError, RecursionError) as error:
        raise Refusal(Status.EINVAL, f"the value of SET_VBUCKET is not JSON: {error}") from error
    if not isinstance(value, dict) or not value.keys() <= VBUCKET_KEYS:
        raise Refusal(
            Status.EINVAL, f"the value may have {', '.join(sorted(VBUCKET_KEYS))} and nothing else"
        )
    if "use_snapshot" in value or "next_expected_state" in value:
        raise Refusal(
            Status.NOT_SUPPORTED, "snapshots of vbuckets cannot be brought in from outside"
        )
    chains = value.get("topology")
    if chains is None:
        return None
    if state != VBucketState.ACTIVE:
        raise Refusal(
            Status.EINVAL,
            f"a topology for state {state.name.lower()}; only an active vbucket has one",
        )
    return read_topology(chains)


def set_cluster_config(session: Session, message: admin.SetClusterConfig) -> Later:
    """Take the map of a bucket from a manager; it is on disk when the reply is sent."""
    name = message.key.decode("utf-8", "replace")
    host = session.node.hosts.get(name)
    if session.user is not None and not session.user.may_use(name):
        raise Refusal(Status.EACCESS, f"no access to bucket {name!r}")
    if host is None:
        raise Refusal(Status.KEY_ENOENT, f"there is no bucket {name!r}")
    version = MapVersion(epoch=message.epoch, revision=message.revision)
    host.take_map(
        read_given(message.value, version, bucket=name, vbuckets=host.bucket.settings.vbuckets)
    )
    return off_loop(session, host.bucket.commit, admin.SetClusterConfigReply)


def get_vbucket(session: Session, message: admin.GetVBucket) -> admin.GetVBucketReply:
    """Tell a vbucket's state."""
    vbucket = session.host.bucket.find(message.vbucket)
    if vbucket is None:
        raise session.not_my_vbucket()
    return admin.GetVBucketReply(state=vbucket.state)


def del_vbucket(session: Session, message: admin.DelVBucket) -> admin.DelVBucketReply:
    """Forget a vbucket. It is always gone when the reply is sent, whatever was asked."""
    if message.value not in (b"", SYNCHRONOUS, b"async=1"):
        raise Refusal(Status.EINVAL, 'the value of DEL_VBUCKET may be "async=0" or "async=1"')
    vbucket = session.host.bucket.find(message.vbucket)
    if vbucket is None:
        raise session.not_my_vbucket()
    session.host.delete_vbucket(message.vbucket)
    return admin.DelVBucketReply()


# -- storage -------------------------------------------------------------------------------------


def compact(session: Session, message: admin.CompactDb) -> Later:
    """Compact a vbucket."""
    host = session.host
    if host.bucket.find(message.vbucket) is None:
        raise session.not_my_vbucket()
    number = message.vbucket
    before = message.purge_before_time or None
    seqno = message.purge_before_seqno or None
    drop = bool(message.drop_deletes)
    return off_loop(
        session,
        lambda: host.bucket.compact(
            number, purge_before=before, purge_before_seqno=seqno, drop_deletes=drop
        ),
        admin.CompactDbReply,
    )


def stop_persistence(
    session: Session,
    message: admin.StopPersistence,  # noqa: ARG001
) -> admin.StopPersistenceReply:
    """Keep changes in memory."""
    if not session.host.bucket.durable:
        raise Refusal(Status.NOT_SUPPORTED, "this bucket lives in memory alone")
    session.host.bucket.stop_persistence()
    return admin.StopPersistenceReply()


def start_persistence(
    session: Session,
    message: admin.StartPersistence,  # noqa: ARG001
) -> admin.StartPersistenceReply:
    """Write to disk again."""
    if not session.host.bucket.durable:
        raise Refusal(Status.NOT_SUPPORTED, "this bucket lives in memory alone")
    session.host.bucket.start_persistence()
    return admin.StartPersistenceReply()


def flush(session: Session, message: admin.FlushAll) -> Later:
    """Empty the bucket, where the node's owner allowed it."""
    if not session.node.config.flush:
        raise Refusal(Status.NOT_SUPPORTED, "FLUSH is off on this node; start it with --flush")
    if message.expiration:
        raise Refusal(Status.NOT_SUPPORTED, "a delayed FLUSH is not supported")
    host = session.host
    return off_loop(session, host.flush, admin.FlushAllReply)


# -- buckets -------------------------------------------------------------------------------------


def create_bucket(session: Session, message: admin.CreateBucket) -> Later:
    """Open a bucket; the value is "module NUL name=value;name=value"."""
    name = message.key.decode("utf-8", "replace")
    config = _bucket_config(name, message.value)
    if name in session.node.hosts:
        raise Refusal(Status.KEY_EEXISTS, f"bucket {name} exists")

    def work() -> object:
        try:
            session.node.create_bucket(config)
        except ConfigError as error:
            return Refusal(Status.EINVAL, str(error))
        return None

    return off_loop(session, work, admin.CreateBucketReply)


def _bucket_config(name: str, value: bytes) -> BucketConfig:
    if not BUCKET_NAME.fullmatch(name):
        raise Refusal(Status.EINVAL, f"{name!r} cannot name a bucket")
    text = value.decode("utf-8", "replace").partition("\0")[2]
    options = dict(part.partition("=")[::2] for part in text.split(";") if part)
    try:
        settings = BucketSettings()
        if "max_vbuckets" in options:
            settings = BucketSettings(vbuckets=int(options["max_vbuckets"]))
        resolution = ConflictResolution(options.get("conflict_resolution_type", "seqno"))
        return BucketConfig(name=name, settings=settings, conflict_resolution=resolution)
    except (ValueError, ConfigError) as error:
        raise Refusal(Status.EINVAL, f"bucket configuration: {error}") from error


def delete_bucket(session: Session, message: admin.DeleteBucket) -> Later:
    """Close a bucket and remove its files; its change streams are closed."""
    name = message.key.decode("utf-8", "replace")
    host = session.node.retire(name)
    if host is None:
        raise Refusal(Status.KEY_ENOENT, f"there is no bucket {name!r}")
    return off_loop(session, lambda: session.node.remove(host), admin.DeleteBucketReply)


def verbosity(session: Session, message: admin.Verbosity) -> admin.VerbosityReply:
    """Set how much is logged: 0 warnings, 1 what happens, 2 everything."""
    level = VERBOSITIES[min(message.level, len(VERBOSITIES) - 1)]
    LOGGER.setLevel(level)
    note("verbosity", logging.WARNING, connection=session.number, asked=message.level)
    return admin.VerbosityReply()


ROWS: Final = (
    *administering(set_vbucket, Opcode.SET_VBUCKET),
    *administering(get_vbucket, Opcode.GET_VBUCKET),
    *administering(del_vbucket, Opcode.DEL_VBUCKET),
    *administering(compact, Opcode.COMPACT_DB),
    *administering(stop_persistence, Opcode.STOP_PERSISTENCE),
    *administering(start_persistence, Opcode.START_PERSISTENCE),
    *administering(flush, Opcode.FLUSH_ALL),
    Command(
        opcode=Opcode.FLUSH_ALLQ,
        function=flush,
        role=Role.ADMIN,
        bucket=True,
        quiet=Quiet.SUCCESS,
    ),
    *administering(create_bucket, Opcode.CREATE_BUCKET, bucket=False),
    *administering(delete_bucket, Opcode.DELETE_BUCKET, bucket=False),
    *administering(set_cluster_config, Opcode.SET_CLUSTER_CONFIG, bucket=False),
    *administering(verbosity, Opcode.VERBOSITY, bucket=False),
)
