"""LAYOUTS of ordinary connections: documents, administration, login, configuration.

Rows of one message stand in the order a writer prefers them. These layouts are older than change
streams and the same in every dialect, but for what newer servers added.

Imports: wire.dialect, wire.kv, wire.layout, wire.opcodes, wire.subdoc.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.wire import admin, kv, subdoc
from headrace.wire.dialect import ALL, Dialect, since
from headrace.wire.layout import (
    ANY_KEY,
    NO_KEY,
    REPLY,
    REQUEST,
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
    MetaOption,
    Opcode,
    Status,
    SubdocDocFlag,
    SubdocFlag,
    VBucketState,
)

if TYPE_CHECKING:
    from headrace.wire.message import Message

U64, U32, U16, U8 = "Q", "I", "H", "B"
NO_EXTRAS: Final = Fields()
OK: Final = frozenset({int(Status.SUCCESS)})
SINCE_5: Final = since(Dialect.DCP_5)
SINCE_7: Final = since(Dialect.DCP_7)

FLAGS: Final = Field("flags", U32)
EXPIRATION: Final = Field("expiration", U32)
TOKEN: Final = Fields(Field("vb_uuid", U64, needed=True), Field("seqno", U64, needed=True))
STORE: Final = Fields(FLAGS, EXPIRATION)
ARITHMETIC: Final = Fields(Field("delta", U64), Field("initial", U64), EXPIRATION)
NUMBER: Final = Fixed(Fields(Field("number", U64)))
META: Final = (FLAGS, EXPIRATION, Field("rev_seqno", U64), Field("meta_cas", U64))
NMETA: Final = Field("nmeta", U16)
OPTIONS: Final = Field("options", U32, MetaOption)
FEATURES: Final = Repeated(
    "features", Struct(">H"), lambda number: number, lambda number: (number,), 0, "features"
)
LOGIN: Final = frozenset({int(Status.SUCCESS), int(Status.AUTH_CONTINUE)})


def row(
    message: type[Message],
    opcode: Opcode,
    kind: str,
    extras: Fields = NO_EXTRAS,
    *,
    key: str = NO_KEY,
    value: Value | None = None,
    dialects: frozenset[Dialect] = ALL,
    speak: frozenset[Dialect] = ALL,
    statuses: frozenset[int] = OK,
    fixed: tuple[tuple[str, object], ...] = (),
    name: str = "",
) -> Row:
    """Return one row."""
    return Row(
        message=message,
        opcode=opcode,
        kind=kind,
        name=name or f"{extras.size} bytes",
        extras=extras,
        key=key,
        value=value if value is not None else Nothing(),
        speak=speak & dialects,
        hear=dialects,
        statuses=statuses,
        fixed=fixed,
    )


def pair(
    request: type[Message],
    reply: type[Message],
    opcode: Opcode,
    extras: tuple[Fields, ...] = (NO_EXTRAS,),
    reply_extras: tuple[Fields, ...] = (NO_EXTRAS,),
    *,
    key: str = NO_KEY,
    value: Value | None = None,
    reply_key: str = NO_KEY,
    reply_value: Value | None = None,
    statuses: frozenset[int] = OK,
    quiet: Opcode | None = None,
    dialects: frozenset[Dialect] = ALL,
) -> tuple[Row, ...]:
    """Return the rows of a command, its reply, and their quiet twins."""
    twins: list[tuple[Opcode, tuple[tuple[str, object], ...]]] = [(opcode, ())]
    if quiet is not None:
        twins = [(opcode, (("quiet", False),)), (quiet, (("quiet", True),))]
    rows: list[Row] = []
    for number, fixed in twins:
        rows += (
            row(
                request, number, REQUEST, form, key=key, value=value, dialects=dialects, fixed=fixed
            )
            for form in extras
        )
        rows += (
            row(
                reply,
                number,
                REPLY,
                form,
                key=reply_key,
                value=reply_value,
                dialects=dialects,
                statuses=statuses,
                fixed=fixed,
            )
            for form in reply_extras
        )
    return tuple(rows)


STORED: Final = (TOKEN, NO_EXTRAS)
"""A write's reply, with and without its mutation token."""


def write(
    request: type[Message], reply: type[Message], opcode: Opcode, quiet: Opcode, extras: Fields
) -> tuple[Row, ...]:
    """Return the rows of a command that writes one document."""
    return pair(request, reply, opcode, (extras,), STORED, key=SOME_KEY, value=Bytes(), quiet=quiet)


def read(
    request: type[Message],
    reply: type[Message],
    opcode: Opcode,
    quiet: Opcode | None,
    extras: tuple[Fields, ...] = (NO_EXTRAS,),
    reply_key: str = NO_KEY,
) -> tuple[Row, ...]:
    """Return the rows of a command that reads one document."""
    return pair(
        request,
        reply,
        opcode,
        extras,
        (Fields(FLAGS),),
        key=SOME_KEY,
        reply_key=reply_key,
        reply_value=Bytes(),
        quiet=quiet,
    )


def arithmetic(
    request: type[Message], reply: type[Message], opcode: Opcode, quiet: Opcode
) -> tuple[Row, ...]:
    """Return the rows of a command on a decimal number."""
    return pair(
        request,
        reply,
        opcode,
        (ARITHMETIC,),
        STORED,
        key=SOME_KEY,
        reply_value=NUMBER,
        quiet=quiet,
    )


def with_meta(
    request: type[Message], reply: type[Message], opcode: Opcode, quiet: Opcode
) -> tuple[Row, ...]:
    """Return the rows of a command that brings its own metadata, in its four lengths."""
    forms = (
        Fields(*META),
        Fields(*META, NMETA),
        Fields(*META, OPTIONS),
        Fields(*META, OPTIONS, NMETA),
    )
    return pair(request, reply, opcode, forms, STORED, key=SOME_KEY, value=Bytes(), quiet=quiet)


DOCUMENT_ROWS: Final = (
    *read(kv.Get, kv.GetReply, Opcode.GET, Opcode.GETQ),
    *read(kv.GetK, kv.GetKReply, Opcode.GETK, Opcode.GETKQ, reply_key=ANY_KEY),
    *write(kv.Set, kv.SetReply, Opcode.SET, Opcode.SETQ, STORE),
    *write(kv.Add, kv.AddReply, Opcode.ADD, Opcode.ADDQ, STORE),
    *write(kv.Replace, kv.ReplaceReply, Opcode.REPLACE, Opcode.REPLACEQ, STORE),
    *pair(
        kv.Delete,
        kv.DeleteReply,
        Opcode.DELETE,
        (NO_EXTRAS,),
        STORED,
        key=SOME_KEY,
        quiet=Opcode.DELETEQ,
    ),
    *arithmetic(kv.Increment, kv.IncrementReply, Opcode.INCREMENT, Opcode.INCREMENTQ),
    *arithmetic(kv.Decrement, kv.DecrementReply, Opcode.DECREMENT, Opcode.DECREMENTQ),
    *write(kv.Append, kv.AppendReply, Opcode.APPEND, Opcode.APPENDQ, NO_EXTRAS),
    *write(kv.Prepend, kv.PrependReply, Opcode.PREPEND, Opcode.PREPENDQ, NO_EXTRAS),
    *pair(
        kv.Touch,
        kv.TouchReply,
        Opcode.TOUCH,
        (Fields(EXPIRATION),),
        (TOKEN, Fields(FLAGS), NO_EXTRAS),
        key=SOME_KEY,
    ),
    *read(kv.Gat, kv.GatReply, Opcode.GAT, Opcode.GATQ, (Fields(EXPIRATION),)),
    *read(
        kv.GetLocked,
        kv.GetLockedReply,
        Opcode.GET_LOCKED,
        None,
        (Fields(Field("lock_seconds", U32)), NO_EXTRAS),
    ),
    *pair(kv.Unlock, kv.UnlockReply, Opcode.UNLOCK, key=SOME_KEY),
    *pair(
        kv.GetMeta,
        kv.GetMetaReply,
        Opcode.GET_META,
        (Fields(Field("request_version", U8)), NO_EXTRAS),
        (
            Fields(
                Field("deleted", U32),
                FLAGS,
                EXPIRATION,
                Field("rev_seqno", U64),
                Field("document_datatype", U8),
            ),
            Fields(Field("deleted", U32), FLAGS, EXPIRATION, Field("rev_seqno", U64)),
        ),
        key=SOME_KEY,
        quiet=Opcode.GETQ_META,
    ),
    *with_meta(kv.SetWithMeta, kv.SetWithMetaReply, Opcode.SET_WITH_META, Opcode.SETQ_WITH_META),
    *with_meta(kv.AddWithMeta, kv.AddWithMetaReply, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META),
    *with_meta(kv.DelWithMeta, kv.DelWithMetaReply, Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META),
    *pair(
        kv.GetRandomKey,
        kv.GetRandomKeyReply,
        Opcode.GET_RANDOM_KEY,
        (Fields(Field("collection_id", U32)), NO_EXTRAS),
        (Fields(FLAGS),),
        reply_key=SOME_KEY,
        reply_value=Bytes(),
    ),
)

SESSION_ROWS: Final = (
    *pair(admin.Quit, admin.QuitReply, Opcode.QUIT, quiet=Opcode.QUITQ),
    *pair(
        admin.FlushAll,
        admin.FlushAllReply,
        Opcode.FLUSH_ALL,
        (Fields(EXPIRATION), NO_EXTRAS),
        quiet=Opcode.FLUSH_ALLQ,
    ),
    *pair(admin.KvNoop, admin.KvNoopReply, Opcode.KV_NOOP),
    *pair(admin.Version, admin.VersionReply, Opcode.VERSION, reply_value=Bytes()),
    *pair(
        admin.Stat,
        admin.StatReply,
        Opcode.STAT,
        key=ANY_KEY,
        value=Bytes(),
        reply_key=ANY_KEY,
        reply_value=Bytes(),
    ),
    *pair(admin.Verbosity, admin.VerbosityReply, Opcode.VERBOSITY, (Fields(Field("level", U32)),)),
    *pair(
        admin.Hello,
        admin.HelloReply,
        Opcode.HELLO,
        key=ANY_KEY,
        value=FEATURES,
        reply_value=FEATURES,
    ),
    *pair(
        admin.SaslListMechs, admin.SaslListMechsReply, Opcode.SASL_LIST_MECHS, reply_value=Bytes()
    ),
    *pair(
        admin.SaslAuth,
        admin.SaslAuthReply,
        Opcode.SASL_AUTH,
        key=SOME_KEY,
        value=Bytes(),
        reply_value=Bytes(),
        statuses=LOGIN,
    ),
    *pair(
        admin.SaslStep,
        admin.SaslStepReply,
        Opcode.SASL_STEP,
        key=ANY_KEY,
        value=Bytes(),
        reply_value=Bytes(),
        statuses=LOGIN,
    ),
    *pair(admin.ListBuckets, admin.ListBucketsReply, Opcode.LIST_BUCKETS, reply_value=Bytes()),
    *pair(admin.SelectBucket, admin.SelectBucketReply, Opcode.SELECT_BUCKET, key=ANY_KEY),
    *pair(
        admin.GetErrorMap,
        admin.GetErrorMapReply,
        Opcode.GET_ERROR_MAP,
        value=Fixed(Fields(Field("version", U16))),
        reply_value=Bytes(),
    ),
    *pair(
        admin.SetClusterConfig,
        admin.SetClusterConfigReply,
        Opcode.SET_CLUSTER_CONFIG,
        (Fields(Field("epoch", U64), Field("revision", U64)),),
        key=SOME_KEY,
        value=Bytes(),
    ),
    *pair(
        admin.GetClusterConfig,
        admin.GetClusterConfigReply,
        Opcode.GET_CLUSTER_CONFIG,
        (Fields(Field("known_epoch", U64), Field("known_revision", U64)), NO_EXTRAS),
        (Fields(Field("epoch", U64), Field("revision", U64)), NO_EXTRAS),
        reply_key=ANY_KEY,
        reply_value=Bytes(),
    ),
)

OBSERVED: Final = (
    Field("failed_over", U8),
    Field("observed_vbucket", U16),
    Field("vb_uuid", U64),
    Field("persisted_seqno", U64),
    Field("high_seqno", U64),
)

ADMIN_ROWS: Final = (
    row(
        admin.SetVBucket,
        Opcode.SET_VBUCKET,
        REQUEST,
        Fields(Field("state", U8, VBucketState)),
        value=Bytes(),
        dialects=ALL,
    ),
    row(
        admin.SetVBucket,
        Opcode.SET_VBUCKET,
        REQUEST,
        Fields(Field("state", U32, VBucketState)),
        speak=frozenset(),
        name="4 bytes, before 6.5",
    ),
    row(admin.SetVBucketReply, Opcode.SET_VBUCKET, REPLY),
    *pair(
        admin.GetVBucket,
        admin.GetVBucketReply,
        Opcode.GET_VBUCKET,
        reply_value=Fixed(Fields(Field("state", U32, VBucketState))),
    ),
    *pair(admin.DelVBucket, admin.DelVBucketReply, Opcode.DEL_VBUCKET, value=Bytes()),
    *pair(admin.StopPersistence, admin.StopPersistenceReply, Opcode.STOP_PERSISTENCE),
    *pair(admin.StartPersistence, admin.StartPersistenceReply, Opcode.START_PERSISTENCE),
    *pair(
        admin.CreateBucket,
        admin.CreateBucketReply,
        Opcode.CREATE_BUCKET,
        key=SOME_KEY,
        value=Bytes(),
    ),
    *pair(
        admin.DeleteBucket,
        admin.DeleteBucketReply,
        Opcode.DELETE_BUCKET,
        key=SOME_KEY,
        value=Bytes(),
    ),
    row(
        admin.ObserveSeqno,
        Opcode.OBSERVE_SEQNO,
        REQUEST,
        value=Fixed(Fields(Field("vb_uuid", U64))),
    ),
    row(
        admin.ObserveSeqnoReply,
        Opcode.OBSERVE_SEQNO,
        REPLY,
        value=Fixed(Fields(*OBSERVED, Field("old_vb_uuid", U64), Field("old_high_seqno", U64))),
        name="after a failover",
    ),
    row(admin.ObserveSeqnoReply, Opcode.OBSERVE_SEQNO, REPLY, value=Fixed(Fields(*OBSERVED))),
    *pair(
        admin.CompactDb,
        admin.CompactDbReply,
        Opcode.COMPACT_DB,
        (
            Fields(
                Field("purge_before_time", U64),
                Field("purge_before_seqno", U64),
                Field("drop_deletes", U8),
                Field("pad", U8, absent=True),
                Field("pad", U16, absent=True),
                Field("pad", U32, absent=True),
            ),
        ),
    ),
    *pair(
        admin.SeqnoPersistence,
        admin.SeqnoPersistenceReply,
        Opcode.SEQNO_PERSISTENCE,
        (Fields(Field("seqno", U64)),),
    ),
)

COLLECTION_ROWS: Final = (
    *pair(
        admin.SetCollectionsManifest,
        admin.SetCollectionsManifestReply,
        Opcode.SET_COLLECTIONS_MANIFEST,
        value=Bytes(),
        dialects=SINCE_5,
    ),
    *pair(
        admin.GetCollectionsManifest,
        admin.GetCollectionsManifestReply,
        Opcode.GET_COLLECTIONS_MANIFEST,
        reply_value=Bytes(),
        dialects=SINCE_5,
    ),
    *pair(
        admin.GetCollectionId,
        admin.GetCollectionIdReply,
        Opcode.GET_COLLECTION_ID,
        (NO_EXTRAS,),
        (Fields(Field("manifest_uid", U64), Field("collection_id", U32)),),
        key=ANY_KEY,
        value=Bytes(),
        dialects=SINCE_5,
    ),
    *pair(
        admin.GetScopeId,
        admin.GetScopeIdReply,
        Opcode.GET_SCOPE_ID,
        (NO_EXTRAS,),
        (Fields(Field("manifest_uid", U64), Field("scope_id", U32)),),
        key=ANY_KEY,
        value=Bytes(),
        dialects=SINCE_5,
    ),
)

DOC_FLAGS: Final = Field("doc_flags", U8, SubdocDocFlag)
PATH: Final = (Field("path_length", U16), Field("path_flags", U8, SubdocFlag))
SINGLE_FORMS: Final = (
    Fields(*PATH, EXPIRATION, DOC_FLAGS),
    Fields(*PATH, EXPIRATION),
    Fields(*PATH, DOC_FLAGS),
    Fields(*PATH),
)
MULTI: Final = frozenset(
    int(status)
    for status in (
        Status.SUCCESS,
        Status.SUBDOC_MULTI_PATH_FAILURE,
        Status.SUBDOC_SUCCESS_DELETED,
        Status.SUBDOC_MULTI_PATH_FAILURE_DELETED,
    )
)
SINGLE_OPCODES: Final = (
    *(Opcode(number) for number in range(Opcode.SUBDOC_GET, Opcode.SUBDOC_COUNTER + 1)),
    Opcode.SUBDOC_GET_COUNT,
)
PATH_AND_VALUE: Final = Custom(
    ("path", "value"), subdoc.parse_path, subdoc.build_path, "a path and a value"
)

SUBDOC_ROWS: Final = (
    *(
        row(
            subdoc.SubdocRequest,
            opcode,
            REQUEST,
            extras,
            key=SOME_KEY,
            value=PATH_AND_VALUE,
            fixed=(("operation", opcode),),
        )
        for opcode in SINGLE_OPCODES
        for extras in SINGLE_FORMS
    ),
    *(
        row(
            subdoc.SubdocReply,
            opcode,
            REPLY,
            extras,
            value=Bytes(),
            statuses=OK | {int(Status.SUBDOC_SUCCESS_DELETED)},
            fixed=(("operation", opcode),),
        )
        for opcode in SINGLE_OPCODES
        for extras in STORED
    ),
    *(
        row(
            subdoc.SubdocMultiLookup,
            Opcode.SUBDOC_MULTI_LOOKUP,
            REQUEST,
            extras,
            key=SOME_KEY,
            value=Custom(
                ("specs",), subdoc.parse_lookups, subdoc.build_lookups, "paths to look up"
            ),
        )
        for extras in (Fields(DOC_FLAGS), NO_EXTRAS)
    ),
    row(
        subdoc.SubdocMultiLookupReply,
        Opcode.SUBDOC_MULTI_LOOKUP,
        REPLY,
        value=Custom(
            ("results",),
            subdoc.parse_lookup_results,
            subdoc.build_lookup_results,
            "lookup results",
        ),
        statuses=MULTI,
    ),
    *(
        row(
            subdoc.SubdocMultiMutation,
            Opcode.SUBDOC_MULTI_MUTATION,
            REQUEST,
            extras,
            key=SOME_KEY,
            value=Custom(
                ("specs",), subdoc.parse_mutations, subdoc.build_mutations, "paths to change"
            ),
        )
        for extras in (
            Fields(EXPIRATION, DOC_FLAGS),
            Fields(EXPIRATION),
            Fields(DOC_FLAGS),
            NO_EXTRAS,
        )
    ),
    *(
        row(
            subdoc.SubdocMultiMutationReply,
            Opcode.SUBDOC_MULTI_MUTATION,
            REPLY,
            extras,
            value=Custom(
                ("results",),
                subdoc.parse_mutation_results,
                subdoc.build_mutation_results,
                "mutation results",
            ),
            statuses=MULTI,
        )
        for extras in STORED
    ),
)

KV_ROWS: Final = DOCUMENT_ROWS + SESSION_ROWS + ADMIN_ROWS + COLLECTION_ROWS + SUBDOC_ROWS
