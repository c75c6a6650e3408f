"""The messages of sessions and administration: login, configuration, vbuckets, collections.

Imports: wire.message.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.wire.message import EmptyReply, Reply, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Quit(Request):
    """Close the connection. Answered: QuitReply unless quiet, then the close."""

    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuitReply(EmptyReply):
    """Closing."""

    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushAll(Request):
    """Delete every document, classic memcached. Answered: FlushAllReply or NOT_SUPPORTED."""

    expiration: int | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushAllReply(EmptyReply):
    """Flushed."""

    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KvNoop(Request):
    """Do nothing; pushes a pipeline of quiet commands through. Answered: KvNoopReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvNoopReply(EmptyReply):
    """Everything before is answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version(Request):
    """Ask for the server's version. Answered: VersionReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReply(Reply):
    """The version as text."""

    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat(Request):
    """Ask for a group of statistics. Answered: one StatReply each, the last one empty."""

    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatReply(Reply):
    """One statistic, or the end of them when key and value are empty."""

    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbosity(Request):
    """Set how much the server logs. Answered: VerbosityReply."""

    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbosityReply(EmptyReply):
    """Set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Request):
    """Say who is here and which features are wanted; each HELLO starts over.

    Answered: HelloReply with the features granted. The key is the agent, text or JSON.
    """

    key: bytes = b""
    features: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloReply(Reply):
    """The features granted."""

    features: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslListMechs(Request):
    """Ask for the login mechanisms. Answered: SaslListMechsReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslListMechsReply(Reply):
    """Mechanisms, separated by spaces."""

    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuth(Request):
    """Begin a login by the mechanism ``key``. Answered: SaslAuthReply."""

    key: bytes
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthReply(Reply):
    """Logged in (status 0), or a challenge (status 21)."""

    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslStep(Request):
    """Answer a challenge. Answered: SaslStepReply."""

    key: bytes
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslStepReply(Reply):
    """Logged in (status 0), or another challenge (status 21)."""

    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVBucket(Request):
    """Set a vbucket's state, with its topology as JSON if given. Answered: SetVBucketReply."""

    state: int
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVBucketReply(EmptyReply):
    """Set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetVBucket(Request):
    """Ask for a vbucket's state. Answered: GetVBucketReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetVBucketReply(Reply):
    """A vbucket's state."""

    state: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DelVBucket(Request):
    """Delete a vbucket; the value "async=0" waits for it. Answered: DelVBucketReply."""

    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelVBucketReply(EmptyReply):
    """Deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPersistence(Request):
    """Stop writing to disk. Answered: StopPersistenceReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPersistenceReply(EmptyReply):
    """Stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPersistence(Request):
    """Write to disk again. Answered: StartPersistenceReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPersistenceReply(EmptyReply):
    """Started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateBucket(Request):
    """Make the bucket ``key``; the value is its module and configuration.

    Answered: CreateBucketReply.
    """

    key: bytes
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateBucketReply(EmptyReply):
    """Made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteBucket(Request):
    """Delete the bucket ``key``. Answered: DeleteBucketReply."""

    key: bytes
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteBucketReply(EmptyReply):
    """Deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListBuckets(Request):
    """Ask for the buckets this user may see. Answered: ListBucketsReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListBucketsReply(Reply):
    """Bucket names, separated by spaces."""

    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectBucket(Request):
    """Work on the bucket ``key`` from now on. Answered: SelectBucketReply."""

    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectBucketReply(EmptyReply):
    """Selected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSeqno(Request):
    """Ask how far a branch of a vbucket is in memory and on disk. Answered: ObserveSeqnoReply."""

    vb_uuid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSeqnoReply(Reply):
    """How far the vbucket is; after a failover also where the old branch ended."""

    failed_over: int = 0
    observed_vbucket: int
    vb_uuid: int
    persisted_seqno: int
    high_seqno: int
    old_vb_uuid: int | None = None
    old_high_seqno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactDb(Request):
    """Compact a vbucket's disk, purging older tombstones. Answered: CompactDbReply."""

    purge_before_time: int = 0
    purge_before_seqno: int = 0
    drop_deletes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactDbReply(EmptyReply):
    """Compacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetClusterConfig(Request):
    """Ask for the cluster map, newer than a known one if given. Answered: GetClusterConfigReply."""

    known_epoch: int | None = None
    known_revision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetClusterConfigReply(Reply):
    """The cluster map as JSON; empty when the client knows the newest."""

    epoch: int | None = None
    revision: int | None = None
    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusterConfig(Request):
    """Give a node the cluster map of a bucket, as JSON. Answered: SetClusterConfigReply.

    Sent by: a manager. ``key`` names the bucket; an age (epoch, then revision) below that of the
    map the node holds is refused.
    """

    epoch: int
    revision: int
    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusterConfigReply(EmptyReply):
    """The node holds the map, durably, and tells it to its clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqnoPersistence(Request):
    """Wait until this seqno is on disk. Answered: SeqnoPersistenceReply."""

    seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqnoPersistenceReply(EmptyReply):
    """It is on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCollectionsManifest(Request):
    """Give the bucket a new collections manifest. Answered: SetCollectionsManifestReply."""

    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCollectionsManifestReply(EmptyReply):
    """Applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetCollectionsManifest(Request):
    """Ask for the collections manifest. Answered: GetCollectionsManifestReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetCollectionsManifestReply(Reply):
    """The collections manifest as JSON."""

    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GetCollectionId(Request):
    """Ask for the id of "scope.collection". Answered: GetCollectionIdReply.

    Current clients send the name as value, the first ones sent it as key.
    """

    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetCollectionIdReply(Reply):
    """The collection's id and the manifest that was asked."""

    manifest_uid: int
    collection_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetScopeId(Request):
    """Ask for the id of a scope. Answered: GetScopeIdReply."""

    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetScopeIdReply(Reply):
    """The scope's id and the manifest that was asked."""

    manifest_uid: int
    scope_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetErrorMap(Request):
    """Ask what the statuses mean, up to a version. Answered: GetErrorMapReply."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetErrorMapReply(Reply):
    """The error map as JSON."""

    value: bytes
