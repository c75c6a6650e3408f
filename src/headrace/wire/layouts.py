"""LAYOUTS of change-stream messages: one row per message, layout and dialect.

Rows of one message stand in the order a writer prefers them; the first row a dialect speaks that
can say everything the message says is the one sent. Spec: docs/protocol.md, generated from here.

Imports: wire.dialect, wire.layout, wire.messages, wire.opcodes, wire.cache_transfer.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.wire import cache_transfer
from headrace.wire import messages as m
from headrace.wire.dialect import ALL, Dialect, since, until
from headrace.wire.layout import (
    ANY_KEY,
    NO_KEY,
    REPLY,
    REQUEST,
    SERVER_REPLY,
    SERVER_REQUEST,
    SOME_KEY,
    Bytes,
    Custom,
    Field,
    Fields,
    Fixed,
    Nothing,
    Repeated,
    Row,
    Value,
)
from headrace.wire.opcodes import (
    DurabilityLevel,
    MarkerFlag,
    Opcode,
    OpenFlag,
    OsoFlag,
    ServerOpcode,
    Status,
    StreamEndReason,
    StreamFlag,
    SystemEventId,
    VBucketState,
)

if TYPE_CHECKING:
    from headrace.wire.message import Message

NOBODY: Final[frozenset[Dialect]] = frozenset()
DRAFT: Final = frozenset({Dialect.UPR_DRAFT})
SINCE_2014: Final = since(Dialect.UPR_2014)
SINCE_3: Final = since(Dialect.DCP_3)
SINCE_5: Final = since(Dialect.DCP_5)
SINCE_7: Final = since(Dialect.DCP_7)

U64, U32, U16, U8 = "Q", "I", "H", "B"
NO_EXTRAS: Final = Fields()

BY_SEQNO: Final = Field("by_seqno", U64)
REV_SEQNO: Final = Field("rev_seqno", U64)
ITEM: Final = (BY_SEQNO, REV_SEQNO)
DOCUMENT: Final = (
    *ITEM,
    Field("flags", U32),
    Field("expiration", U32),
    Field("lock_time", U32),
)
NMETA: Final = Field("nmeta", U16)
DELETE_TIME: Final = Field("delete_time", U32)
RANGE: Final = (Field("start_seqno", U64), Field("end_seqno", U64))
MARKER_RANGE: Final = (
    Field("start_seqno", U64, needed=True),
    Field("end_seqno", U64, needed=True),
)
MARKER: Final = (*MARKER_RANGE, Field("flags", U32, MarkerFlag, needed=True))
MARKER_V2: Final = (
    *MARKER,
    Field("max_visible_seqno", U64, needed=True),
    Field("high_completed_seqno", U64, needed=True),
)
PURGE: Final = Field("purge_seqno", U64, needed=True)
VERSION: Final = Fields(Field("marker_version", U8, absent=True))

MARKER_TYPES: Final = {0: int(MarkerFlag.MEMORY), 1: int(MarkerFlag.DISK)}
"""Seed 000 enumerates what later dialects say in bits."""
DRAFT_STATES: Final = {
    1: int(VBucketState.ACTIVE),
    2: int(VBucketState.PENDING),
    3: int(VBucketState.REPLICA),
    4: int(VBucketState.DEAD),
}
"""Seed 002 swaps pending and replica."""
DRAFT_END_REASONS: Final = {
    0: int(StreamEndReason.FINISHED),
    1: int(StreamEndReason.STATE_CHANGED),
}

STREAM_REQUEST_HEAD: Final = (
    Field("flags", U32, StreamFlag),
    Field("reserved", U32),
    *RANGE,
    Field("vb_uuid", U64),
)


def failover_log(at_least: int = 1) -> Repeated:
    """Return the shape of a failover log."""
    return Repeated(
        "failover_log",
        Struct(">QQ"),
        m.FailoverEntry,
        lambda entry: (entry.uuid, entry.seqno),
        at_least,
        "failover log entries",
    )


SEQNO_LIST: Final = Repeated(
    "seqnos", Struct(">HQ"), m.VBucketSeqno, lambda line: (line.vbucket, line.seqno)
)
CACHED_ITEMS: Final = Custom(
    ("items",), cache_transfer.parse, cache_transfer.build, "records of cached items"
)


def request(
    message: type[Message],
    opcode: Opcode,
    extras: Fields = NO_EXTRAS,
    *,
    name: str = "",
    key: str = NO_KEY,
    value: Value | None = None,
    speak: frozenset[Dialect] = ALL,
    hear: frozenset[Dialect] = ALL,
    version: int | None = None,
) -> Row:
    """Return a row of a request."""
    return Row(
        message=message,
        opcode=opcode,
        kind=REQUEST,
        name=name or f"{extras.size} bytes",
        extras=extras,
        key=key,
        value=value if value is not None else Nothing(),
        speak=speak & hear,
        hear=hear,
        version=version,
    )


def reply(
    message: type[Message],
    opcode: Opcode,
    extras: Fields = NO_EXTRAS,
    *,
    name: str = "",
    value: Value | None = None,
    speak: frozenset[Dialect] = ALL,
    hear: frozenset[Dialect] = ALL,
    statuses: frozenset[int] = frozenset({0}),
) -> Row:
    """Return a row of a reply."""
    return Row(
        message=message,
        opcode=opcode,
        kind=REPLY,
        name=name or f"{extras.size} bytes",
        extras=extras,
        value=value if value is not None else Nothing(),
        speak=speak & hear,
        hear=hear,
        statuses=statuses,
    )


ROLLBACK: Final = frozenset({int(Status.ROLLBACK)})
ROLLBACK_SEQNO: Final = Fields(Field("rollback_seqno", U64))
OPAQUE: Final = Fields(Field("stream_opaque", U32))
PREPARED: Final = Field("prepared_seqno", U64)

CONNECTION_ROWS: Final = (
    request(
        m.GetAllVbSeqnos,
        Opcode.GET_ALL_VB_SEQNOS,
        Fields(Field("state", U32, VBucketState), Field("collection_id", U32)),
        hear=SINCE_7,
    ),
    request(
        m.GetAllVbSeqnos,
        Opcode.GET_ALL_VB_SEQNOS,
        Fields(Field("state", U32, VBucketState)),
        hear=SINCE_3,
    ),
    request(m.GetAllVbSeqnos, Opcode.GET_ALL_VB_SEQNOS, hear=SINCE_3),
    reply(m.GetAllVbSeqnosReply, Opcode.GET_ALL_VB_SEQNOS, value=SEQNO_LIST, hear=SINCE_3),
    request(
        m.Open,
        Opcode.OPEN,
        Fields(Field("reserved", U32), Field("flags", U32, OpenFlag)),
        key=ANY_KEY,
        value=Bytes(),
    ),
    reply(m.OpenReply, Opcode.OPEN),
    request(m.AddStream, Opcode.ADD_STREAM, Fields(Field("flags", U32, StreamFlag))),
    reply(m.AddStreamReply, Opcode.ADD_STREAM, OPAQUE),
    request(m.CloseStream, Opcode.CLOSE_STREAM),
    reply(m.CloseStreamReply, Opcode.CLOSE_STREAM),
    request(
        m.StreamRequest,
        Opcode.STREAM_REQ,
        Fields(*STREAM_REQUEST_HEAD, Field("snap_start_seqno", U64), Field("snap_end_seqno", U64)),
        value=Bytes(),
        speak=SINCE_2014,
    ),
    request(
        m.StreamRequest,
        Opcode.STREAM_REQ,
        Fields(*STREAM_REQUEST_HEAD, Field("high_seqno", U64)),
        hear=DRAFT,
    ),
    reply(m.StreamRequestReply, Opcode.STREAM_REQ, value=failover_log()),
    reply(m.RollbackReply, Opcode.STREAM_REQ, value=Fixed(ROLLBACK_SEQNO), statuses=ROLLBACK),
    reply(
        m.RollbackReply,
        Opcode.STREAM_REQ,
        ROLLBACK_SEQNO,
        name="in extras, as the draft draws it",
        speak=NOBODY,
        statuses=ROLLBACK,
    ),
    request(m.GetFailoverLog, Opcode.GET_FAILOVER_LOG),
    reply(m.GetFailoverLogReply, Opcode.GET_FAILOVER_LOG, value=failover_log()),
    request(m.FailoverLogRequest, Opcode.FAILOVER_LOG),
    reply(m.FailoverLogReply, Opcode.FAILOVER_LOG, value=failover_log()),
    request(m.Noop, Opcode.NOOP, hear=SINCE_2014),
    reply(m.NoopReply, Opcode.NOOP, hear=SINCE_2014),
    request(m.BufferAck, Opcode.BUFFER_ACK, Fields(Field("ack_bytes", U32)), hear=SINCE_2014),
    reply(m.BufferAckReply, Opcode.BUFFER_ACK, hear=SINCE_2014),
    request(m.Control, Opcode.CONTROL, key=ANY_KEY, value=Bytes(), hear=SINCE_2014),
    reply(m.ControlReply, Opcode.CONTROL, hear=SINCE_2014),
)

MARKER_ROWS: Final = (
    request(m.SnapshotMarker, Opcode.SNAPSHOT_MARKER, name="empty", speak=DRAFT, hear=ALL),
    request(
        m.SnapshotMarker,
        Opcode.SNAPSHOT_MARKER,
        Fields(*MARKER_RANGE, Field("flags", U32, MarkerFlag, wire=MARKER_TYPES, needed=True)),
        name="enumerated type",
        hear=frozenset({Dialect.UPR_2014}),
    ),
    request(
        m.SnapshotMarker,
        Opcode.SNAPSHOT_MARKER,
        Fields(*MARKER),
        name="V1",
        speak=SINCE_3,
        hear=ALL - frozenset({Dialect.UPR_2014}),
    ),
    request(
        m.SnapshotMarker,
        Opcode.SNAPSHOT_MARKER,
        VERSION,
        name="V2.0",
        value=Fixed(Fields(*MARKER_V2)),
        version=0,
        hear=SINCE_7,
    ),
    request(
        m.SnapshotMarker,
        Opcode.SNAPSHOT_MARKER,
        VERSION,
        name="V2.2, 44 bytes",
        value=Fixed(Fields(*MARKER_V2, PURGE)),
        version=2,
        hear=SINCE_7,
    ),
    request(
        m.SnapshotMarker,
        Opcode.SNAPSHOT_MARKER,
        VERSION,
        name="V2.2, 52 bytes",
        value=Fixed(Fields(*MARKER_V2, PURGE, Field("high_prepared_seqno", U64, needed=True))),
        version=2,
        hear=SINCE_7,
    ),
    request(
        m.SnapshotMarker,
        Opcode.SNAPSHOT_MARKER,
        VERSION,
        name="V2.1",
        value=Fixed(Fields(*MARKER_V2, Field("timestamp", U64, needed=True))),
        version=1,
        speak=NOBODY,
        hear=SINCE_7,
    ),
    request(
        m.SnapshotMarker,
        Opcode.SNAPSHOT_MARKER,
        Fields(*MARKER, Field("high_completed_seqno", U64, needed=True)),
        name="2019, unreleased",
        speak=NOBODY,
        hear=SINCE_7,
    ),
    reply(m.SnapshotMarkerReply, Opcode.SNAPSHOT_MARKER, hear=SINCE_3),
)

ITEM_ROWS: Final = (
    request(
        m.Mutation,
        Opcode.MUTATION,
        Fields(*DOCUMENT, NMETA, Field("nru", U8)),
        key=SOME_KEY,
        value=Bytes(),
        speak=SINCE_2014,
    ),
    request(
        m.Mutation,
        Opcode.MUTATION,
        Fields(*DOCUMENT, NMETA),
        key=SOME_KEY,
        value=Bytes(),
        speak=DRAFT,
    ),
    request(
        m.Mutation,
        Opcode.MUTATION,
        Fields(*DOCUMENT),
        key=SOME_KEY,
        value=Bytes(),
        speak=NOBODY,
    ),
    request(
        m.Deletion,
        Opcode.DELETION,
        Fields(*ITEM, NMETA),
        name="V1, 18 bytes",
        key=SOME_KEY,
        value=Bytes(),
    ),
    request(
        m.Deletion,
        Opcode.DELETION,
        Fields(*ITEM, DELETE_TIME, Field("unused", U8, absent=True)),
        name="V2, 21 bytes",
        key=SOME_KEY,
        value=Bytes(),
        hear=SINCE_5,
    ),
    request(
        m.Deletion,
        Opcode.DELETION,
        Fields(*ITEM),
        key=SOME_KEY,
        value=Bytes(),
        speak=NOBODY,
    ),
    request(
        m.Expiration,
        Opcode.EXPIRATION,
        Fields(*ITEM, DELETE_TIME),
        key=SOME_KEY,
        value=Bytes(),
        hear=SINCE_5,
    ),
    request(
        m.Expiration,
        Opcode.EXPIRATION,
        Fields(*ITEM, NMETA),
        key=SOME_KEY,
        value=Bytes(),
        speak=until(Dialect.DCP_3),
    ),
    request(
        m.Expiration,
        Opcode.EXPIRATION,
        Fields(*ITEM),
        key=SOME_KEY,
        value=Bytes(),
        speak=NOBODY,
    ),
    request(m.Flush, Opcode.FLUSH, speak=until(Dialect.UPR_2014)),
    request(
        m.SystemEvent,
        Opcode.SYSTEM_EVENT,
        Fields(BY_SEQNO, Field("event", U32, SystemEventId), Field("version", U8)),
        key=ANY_KEY,
        value=Bytes(),
        hear=SINCE_7,
    ),
    request(
        m.Prepare,
        Opcode.PREPARE,
        Fields(
            *DOCUMENT,
            Field("nru", U8),
            Field("deleted", U8),
            Field("durability", U8, DurabilityLevel),
        ),
        key=SOME_KEY,
        value=Bytes(),
        hear=SINCE_7,
    ),
    request(m.SeqnoAcknowledged, Opcode.SEQNO_ACKNOWLEDGED, Fields(PREPARED), hear=SINCE_7),
    request(
        m.Commit,
        Opcode.COMMIT,
        Fields(PREPARED, Field("commit_seqno", U64)),
        key=SOME_KEY,
        hear=SINCE_7,
    ),
    request(
        m.Abort,
        Opcode.ABORT,
        Fields(PREPARED, Field("abort_seqno", U64)),
        key=SOME_KEY,
        hear=SINCE_7,
    ),
    request(m.SeqnoAdvanced, Opcode.SEQNO_ADVANCED, Fields(BY_SEQNO), hear=SINCE_7),
    request(
        m.OsoSnapshot, Opcode.OSO_SNAPSHOT, Fields(Field("oso_flags", U32, OsoFlag)), hear=SINCE_7
    ),
    request(m.CacheTransfer, Opcode.CACHE_TRANSFER, value=CACHED_ITEMS, hear=SINCE_7),
    request(m.CacheTransferEnd, Opcode.CACHE_TRANSFER_END, hear=SINCE_7),
)

STATE_ROWS: Final = (
    request(
        m.StreamEnd,
        Opcode.STREAM_END,
        Fields(Field("reason", U32, StreamEndReason)),
        hear=SINCE_2014,
    ),
    request(
        m.StreamEnd,
        Opcode.STREAM_END,
        Fields(Field("reason", U32, StreamEndReason, wire=DRAFT_END_REASONS)),
        name="draft numbering",
        hear=DRAFT,
    ),
    request(
        m.SetVBucketState,
        Opcode.SET_VBUCKET_STATE,
        Fields(Field("state", U8, VBucketState)),
        hear=SINCE_2014,
    ),
    request(
        m.SetVBucketState,
        Opcode.SET_VBUCKET_STATE,
        Fields(Field("state", U8, VBucketState, wire=DRAFT_STATES)),
        name="draft numbering",
        hear=DRAFT,
    ),
    reply(m.SetVBucketStateReply, Opcode.SET_VBUCKET_STATE),
)

SERVER_ROWS: Final = (
    *(
        Row(
            message=m.ClustermapChange,
            opcode=ServerOpcode.CLUSTERMAP_CHANGE,
            kind=SERVER_REQUEST,
            name=f"{extras.size} bytes",
            extras=extras,
            key=ANY_KEY,
            value=Bytes(),
            speak=SINCE_5,
            hear=SINCE_5,
        )
        for extras in (
            Fields(Field("epoch", U64), Field("revision", U64)),
            Fields(Field("revision", U32)),
        )
    ),
    Row(
        message=m.ClustermapChangeReply,
        opcode=ServerOpcode.CLUSTERMAP_CHANGE,
        kind=SERVER_REPLY,
        name="empty",
        extras=NO_EXTRAS,
        value=Nothing(),
        speak=SINCE_5,
        hear=SINCE_5,
    ),
)

STREAM_ROWS: Final = CONNECTION_ROWS + MARKER_ROWS + ITEM_ROWS + STATE_ROWS + SERVER_ROWS
