"""The messages of change streams: one frozen dataclass per command and per reply.

Field names are the protocol's own. Layouts: `headrace.wire.layouts`. Keys keep their collection
prefix (`headrace.wire.values.split_collection`). "Answered" names what a receiver sends on success;
a refusal is an `ErrorReply` with the same opcode and opaque.

Imports: wire.message.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.wire.message import EmptyReply, Reply, Request


@dataclass(frozen=True, slots=True)
class FailoverEntry:
    """One line of a failover log as it travels: the branch ``uuid`` begins after ``seqno``."""

    uuid: int
    seqno: int


@dataclass(frozen=True, slots=True)
class VBucketSeqno:
    """One line of a seqno list."""

    vbucket: int
    seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllVbSeqnos(Request):
    """Ask for the high seqno of every vbucket in a state, of one collection if given.

    Sent by: any client, on any connection. Answered: GetAllVbSeqnosReply.
    """

    state: int | None = None
    collection_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllVbSeqnosReply(Reply):
    """High seqnos, sorted by vbucket."""

    seqnos: tuple[VBucketSeqno, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Request):
    """Turn this connection into a change-stream connection called ``key``.

    Sent by: the client, after HELLO and SASL. Answered: OpenReply. With the PRODUCER flag the
    server's end produces; without it the server's end consumes. The first word of the extras is
    reserved ("sequence number" in the draft). The value is a JSON object with `consumer_name`,
    for consumers only.
    """

    reserved: int = 0
    flags: int
    key: bytes
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReply(EmptyReply):
    """The connection is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddStream(Request):
    """Tell a consumer node to request a stream for this vbucket from its producer.

    Sent by: a manager to a consumer. Answered: AddStreamReply, only once the stream stands.
    """

    flags: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddStreamReply(Reply):
    """The stream stands; its messages carry ``stream_opaque``."""

    stream_opaque: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseStream(Request):
    """Close the stream of this vbucket (and stream id).

    Sent by: a manager or a client to either end; to its producer by a node whose copy was changed
    by others. Answered: CloseStreamReply.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseStreamReply(EmptyReply):
    """The stream is closed; data already on its way may still arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest(Request):
    """Ask for the changes after ``start_seqno``.

    Sent by: a consumer. Answered: StreamRequestReply with the failover log, or RollbackReply.
    The draft has one ``high_seqno`` where later dialects have the snapshot pair. The value is a
    JSON filter (collections only); its datatype stays raw.
    """

    flags: int = 0
    reserved: int = 0
    start_seqno: int
    end_seqno: int
    vb_uuid: int = 0
    snap_start_seqno: int | None = None
    snap_end_seqno: int | None = None
    high_seqno: int | None = None
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequestReply(Reply):
    """The stream is accepted; its messages carry this reply's opaque."""

    failover_log: tuple[FailoverEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackReply(Reply):
    """The stream is refused until the consumer has gone back to ``rollback_seqno`` or before.

    Receivers accept the eight bytes as value (every release) and as extras (the draft's drawing).
    """

    status: int = 0x23
    rollback_seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetFailoverLog(Request):
    """Ask for the failover log of this vbucket on a change-stream connection.

    Sent by: a consumer. Answered: GetFailoverLogReply.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class GetFailoverLogReply(Reply):
    """The failover log, newest branch first."""

    failover_log: tuple[FailoverEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverLogRequest(Request):
    """Ask for the failover log of this vbucket on an ordinary connection.

    Sent by: any client. Answered: FailoverLogReply.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverLogReply(Reply):
    """The failover log, newest branch first."""

    failover_log: tuple[FailoverEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd(Request):
    """No more messages follow for this stream.

    Sent by: a producer. Answered: never. The reason is in the released numbering whatever the
    dialect; the draft knew only "finished" and "state changed".
    """

    reason: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMarker(Request):
    """What follows, up to ``end_seqno``, is one snapshot.

    Sent by: a producer. Answered: SnapshotMarkerReply, only with the ACK flag and once the whole
    snapshot is applied. The draft's marker is empty: its snapshot lasts until the next marker or
    the stream's end. ``flags`` are MarkerFlag bits in every dialect (upr-2014's enumerated type is
    translated). V2.0 adds max visible and high completed seqno, V2.2 the purge seqno and, in its
    longer form, the high prepared seqno. A timestamp (V2.1) and a high completed seqno alone (2019)
    were never released and are only read.
    """

    start_seqno: int | None = None
    end_seqno: int | None = None
    flags: int | None = None
    max_visible_seqno: int | None = None
    high_completed_seqno: int | None = None
    purge_seqno: int | None = None
    high_prepared_seqno: int | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMarkerReply(EmptyReply):
    """Every item of the snapshot is applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation(Request):
    """A document was written.

    Sent by: a producer. Answered: never. ``nmeta`` bytes of extended metadata stand at the end of
    the value (3.x and 4.x; today 0). ``nru`` is absent in the draft, ``nmeta`` too before 2013-12.
    """

    by_seqno: int
    rev_seqno: int = 0
    flags: int = 0
    expiration: int = 0
    lock_time: int = 0
    nmeta: int | None = 0
    nru: int | None = 0
    key: bytes
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion(Request):
    """A document was deleted.

    Sent by: a producer. Answered: never. The value holds the xattrs that outlive the document. With
    delete times (OPEN flag 20) the layout has ``delete_time`` instead of ``nmeta``.
    """

    by_seqno: int
    rev_seqno: int = 0
    nmeta: int | None = None
    delete_time: int | None = None
    key: bytes
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiration(Request):
    """A document's time ran out.

    Sent by: a producer, to consumers that asked for the opcode. Answered: never.
    """

    by_seqno: int
    rev_seqno: int = 0
    nmeta: int | None = None
    delete_time: int | None = None
    key: bytes
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush(Request):
    """Delete all data of this vbucket.

    Sent by: a producer of the draft; released servers answer NOT_SUPPORTED. Answered: never.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVBucketState(Request):
    """Change the vbucket's state at the consumer's end: the two steps of a takeover.

    Sent by: a producer. Answered: SetVBucketStateReply. ``state`` is in the released numbering
    whatever the dialect (the draft swaps replica and pending).
    """

    state: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVBucketStateReply(EmptyReply):
    """The state is applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noop(Request):
    """Are you there?

    Sent by: a producer. Answered: NoopReply with the same opaque, at once.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NoopReply(EmptyReply):
    """I am here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferAck(Request):
    """The consumer has processed this many bytes.

    Sent by: a consumer. Answered: never (a reply is tolerated).
    """

    ack_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferAckReply(EmptyReply):
    """Described in old documents and never needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control(Request):
    """Set one property of the connection: ``key`` to ``value``, both text.

    Sent by: a consumer. Answered: ControlReply; EINVAL or NOT_SUPPORTED mean "not here, go on".
    """

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlReply(EmptyReply):
    """The property is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemEvent(Request):
    """A scope or collection began, ended or changed; an item of the snapshot like any other.

    Sent by: a producer, with collections. Answered: never. ``headrace.wire.system_events`` reads
    the value (versions 0 and 1; version 2 is a FlatBuffers table, carried as it is).
    """

    by_seqno: int
    event: int
    version: int
    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(Request):
    """A synchronous write begins; invisible until its commit.

    Sent by: a producer, with sync writes. Answered: never (SeqnoAcknowledged tells progress).
    """

    by_seqno: int
    rev_seqno: int = 0
    flags: int = 0
    expiration: int = 0
    lock_time: int = 0
    nru: int = 0
    deleted: int = 0
    durability: int
    key: bytes
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqnoAcknowledged(Request):
    """The replica has met every prepare up to ``prepared_seqno``.

    Sent by: a consumer with sync replication. Answered: never.
    """

    prepared_seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Request):
    """The prepare at ``prepared_seqno`` became visible at ``commit_seqno``.

    Sent by: a producer. Answered: never.
    """

    prepared_seqno: int
    commit_seqno: int
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Request):
    """The prepare at ``prepared_seqno`` was given up at ``abort_seqno``.

    Sent by: a producer. Answered: never.
    """

    prepared_seqno: int
    abort_seqno: int
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqnoAdvanced(Request):
    """The vbucket reached ``by_seqno`` with something this stream does not carry.

    Sent by: a producer, with collections. Answered: never.
    """

    by_seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OsoSnapshot(Request):
    """A snapshot out of seqno order begins (1) or ends (2).

    Sent by: a producer, when asked for. Answered: never.
    """

    oso_flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedItem:
    """One record of a cache transfer; no part of any snapshot."""

    cas: int
    by_seqno: int
    rev_seqno: int
    flags: int = 0
    expiration: int = 0
    datatype: int = 0
    cache_hint: int = 0
    key: bytes
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTransfer(Request):
    """Items of the producer's cache, unordered, all at or below the requested start.

    Sent by: a producer. Answered: never (ENOMEM cancels the transfer).
    """

    items: tuple[CachedItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTransferEnd(Request):
    """The cache transfer is over; normal streaming follows.

    Sent by: a producer. Answered: never.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustermapChange(Request):
    """The server tells of a new cluster map (magic 82).

    Sent by: a server, after HELLO duplex and clustermap change. Answered: optional.
    """

    epoch: int | None = None
    revision: int | None = None
    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustermapChangeReply(EmptyReply):
    """Noted (magic 83)."""
