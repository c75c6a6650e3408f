"""Numbers with names: every code that travels in a frame.

Spec: docs/protocol.md. Codes are sorted by number. A number without a name here is not an error
of the peer: decoding keeps it as a plain integer.

Imports: nothing of ours.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

SEQNO_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
"""End seqno of an endless stream."""


class Magic(IntEnum):
    """First byte of a frame: who speaks, and in which framing."""

    ALT_REQUEST = 0x08
    ALT_REPLY = 0x18
    REQUEST = 0x80
    REPLY = 0x81
    SERVER_REQUEST = 0x82
    SERVER_REPLY = 0x83

    @property
    def is_reply(self) -> bool:
        """True when bytes 6-7 of the header hold a status, not a vbucket."""
        return self in _REPLIES

    @property
    def is_flexible(self) -> bool:
        """True when byte 2 of the header is the framing extras' length and byte 3 the key's."""
        return self in _FLEXIBLE


_REPLIES: Final = frozenset({Magic.REPLY, Magic.ALT_REPLY, Magic.SERVER_REPLY})
_FLEXIBLE: Final = frozenset({Magic.ALT_REQUEST, Magic.ALT_REPLY})


class Opcode(IntEnum):
    """Second byte of a client's request and its reply."""

    GET = 0x00
    SET = 0x01
    ADD = 0x02
    REPLACE = 0x03
    DELETE = 0x04
    INCREMENT = 0x05
    DECREMENT = 0x06
    QUIT = 0x07
    FLUSH_ALL = 0x08
    GETQ = 0x09
    KV_NOOP = 0x0A
    VERSION = 0x0B
    GETK = 0x0C
    GETKQ = 0x0D
    APPEND = 0x0E
    PREPEND = 0x0F
    STAT = 0x10
    SETQ = 0x11
    ADDQ = 0x12
    REPLACEQ = 0x13
    DELETEQ = 0x14
    INCREMENTQ = 0x15
    DECREMENTQ = 0x16
    QUITQ = 0x17
    FLUSH_ALLQ = 0x18
    APPENDQ = 0x19
    PREPENDQ = 0x1A
    VERBOSITY = 0x1B
    TOUCH = 0x1C
    GAT = 0x1D
    GATQ = 0x1E
    HELLO = 0x1F
    SASL_LIST_MECHS = 0x20
    SASL_AUTH = 0x21
    SASL_STEP = 0x22
    SET_VBUCKET = 0x3D
    GET_VBUCKET = 0x3E
    DEL_VBUCKET = 0x3F
    GET_ALL_VB_SEQNOS = 0x48
    OPEN = 0x50
    ADD_STREAM = 0x51
    CLOSE_STREAM = 0x52
    STREAM_REQ = 0x53
    GET_FAILOVER_LOG = 0x54
    STREAM_END = 0x55
    SNAPSHOT_MARKER = 0x56
    MUTATION = 0x57
    DELETION = 0x58
    EXPIRATION = 0x59
    FLUSH = 0x5A
    SET_VBUCKET_STATE = 0x5B
    NOOP = 0x5C
    BUFFER_ACK = 0x5D
    CONTROL = 0x5E
    SYSTEM_EVENT = 0x5F
    PREPARE = 0x60
    SEQNO_ACKNOWLEDGED = 0x61
    COMMIT = 0x62
    ABORT = 0x63
    SEQNO_ADVANCED = 0x64
    OSO_SNAPSHOT = 0x65
    CACHE_TRANSFER = 0x66
    CACHE_TRANSFER_END = 0x67
    STOP_PERSISTENCE = 0x80
    START_PERSISTENCE = 0x81
    CREATE_BUCKET = 0x85
    DELETE_BUCKET = 0x86
    LIST_BUCKETS = 0x87
    SELECT_BUCKET = 0x89
    OBSERVE_SEQNO = 0x91
    GET_LOCKED = 0x94
    UNLOCK = 0x95
    FAILOVER_LOG = 0x96
    GET_META = 0xA0
    GETQ_META = 0xA1
    SET_WITH_META = 0xA2
    SETQ_WITH_META = 0xA3
    ADD_WITH_META = 0xA4
    ADDQ_WITH_META = 0xA5
    DEL_WITH_META = 0xA8
    DELQ_WITH_META = 0xA9
    COMPACT_DB = 0xB3
    SET_CLUSTER_CONFIG = 0xB4
    GET_CLUSTER_CONFIG = 0xB5
    GET_RANDOM_KEY = 0xB6
    SEQNO_PERSISTENCE = 0xB7
    SET_COLLECTIONS_MANIFEST = 0xB9
    GET_COLLECTIONS_MANIFEST = 0xBA
    GET_COLLECTION_ID = 0xBB
    GET_SCOPE_ID = 0xBC
    SUBDOC_GET = 0xC5
    SUBDOC_EXISTS = 0xC6
    SUBDOC_DICT_ADD = 0xC7
    SUBDOC_DICT_UPSERT = 0xC8
    SUBDOC_DELETE = 0xC9
    SUBDOC_REPLACE = 0xCA
    SUBDOC_ARRAY_PUSH_LAST = 0xCB
    SUBDOC_ARRAY_PUSH_FIRST = 0xCC
    SUBDOC_ARRAY_INSERT = 0xCD
    SUBDOC_ARRAY_ADD_UNIQUE = 0xCE
    SUBDOC_COUNTER = 0xCF
    SUBDOC_MULTI_LOOKUP = 0xD0
    SUBDOC_MULTI_MUTATION = 0xD1
    SUBDOC_GET_COUNT = 0xD2
    GET_ERROR_MAP = 0xFE


class ServerOpcode(IntEnum):
    """Second byte of a request the server begins (magic 82)."""

    CLUSTERMAP_CHANGE = 0x01


class Status(IntEnum):
    """Bytes 6-7 of a reply; an unknown one is a failure."""

    SUCCESS = 0x00
    KEY_ENOENT = 0x01
    KEY_EEXISTS = 0x02
    E2BIG = 0x03
    EINVAL = 0x04
    NOT_STORED = 0x05
    DELTA_BADVAL = 0x06
    NOT_MY_VBUCKET = 0x07
    NO_BUCKET = 0x08
    LOCKED = 0x09
    STREAM_NOT_FOUND = 0x0A
    OPAQUE_NO_MATCH = 0x0B
    WOULD_THROTTLE = 0x0C
    CONFIG_ONLY = 0x0D
    NOT_LOCKED = 0x0E
    CAS_VALUE_INVALID = 0x0F
    AUTH_STALE = 0x1F
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    ERANGE = 0x22
    ROLLBACK = 0x23
    EACCESS = 0x24
    NOT_INITIALIZED = 0x25
    EXPIRY_OVERFLOW = 0x28
    LOCK_OVERFLOW = 0x29
    BUCKET_PAUSED = 0x50
    UNKNOWN_FRAME_INFO = 0x80
    UNKNOWN_COMMAND = 0x81
    ENOMEM = 0x82
    NOT_SUPPORTED = 0x83
    EINTERNAL = 0x84
    EBUSY = 0x85
    ETMPFAIL = 0x86
    XATTR_EINVAL = 0x87
    UNKNOWN_COLLECTION = 0x88
    CANNOT_APPLY_MANIFEST = 0x8A
    MANIFEST_IS_AHEAD = 0x8B
    UNKNOWN_SCOPE = 0x8C
    STREAM_ID_INVALID = 0x8D
    DURABILITY_INVALID_LEVEL = 0xA0
    DURABILITY_IMPOSSIBLE = 0xA1
    SYNC_WRITE_IN_PROGRESS = 0xA2
    SYNC_WRITE_AMBIGUOUS = 0xA3
    SYNC_WRITE_RE_COMMIT = 0xA4
    SUBDOC_PATH_ENOENT = 0xC0
    SUBDOC_PATH_MISMATCH = 0xC1
    SUBDOC_PATH_EINVAL = 0xC2
    SUBDOC_PATH_E2BIG = 0xC3
    SUBDOC_DOC_E2DEEP = 0xC4
    SUBDOC_VALUE_CANTINSERT = 0xC5
    SUBDOC_DOC_NOTJSON = 0xC6
    SUBDOC_NUM_ERANGE = 0xC7
    SUBDOC_DELTA_EINVAL = 0xC8
    SUBDOC_PATH_EEXISTS = 0xC9
    SUBDOC_VALUE_E2DEEP = 0xCA
    SUBDOC_INVALID_COMBO = 0xCB
    SUBDOC_MULTI_PATH_FAILURE = 0xCC
    SUBDOC_SUCCESS_DELETED = 0xCD
    SUBDOC_XATTR_INVALID_FLAG_COMBO = 0xCE
    SUBDOC_XATTR_INVALID_KEY_COMBO = 0xCF
    SUBDOC_XATTR_UNKNOWN_MACRO = 0xD0
    SUBDOC_XATTR_UNKNOWN_VATTR = 0xD1
    SUBDOC_XATTR_CANT_MODIFY_VATTR = 0xD2
    SUBDOC_MULTI_PATH_FAILURE_DELETED = 0xD3
    SUBDOC_INVALID_XATTR_ORDER = 0xD4
    SUBDOC_XATTR_UNKNOWN_VATTR_MACRO = 0xD5
    SUBDOC_CAN_ONLY_REVIVE_DELETED = 0xD6
    SUBDOC_DELETED_CANT_HAVE_VALUE = 0xD7


class Datatype(IntFlag):
    """Byte 5 of the header: what the value is made of."""

    RAW = 0x00
    JSON = 0x01
    SNAPPY = 0x02
    XATTR = 0x04


DATATYPE_ALL: Final = 0x07


class FrameInfoId(IntEnum):
    """Frame infos of a request."""

    BARRIER = 0
    DURABILITY = 1
    STREAM_ID = 2
    IMPERSONATE = 4
    PRESERVE_TTL = 5
    EXTRA_PRIVILEGE = 6
    TOKEN = 7


class ReplyFrameInfoId(IntEnum):
    """Frame infos of a reply."""

    SERVER_DURATION = 0
    READ_UNITS = 1
    WRITE_UNITS = 2
    THROTTLE_TIME = 3


class DurabilityLevel(IntEnum):
    """How safe a synchronous write asks to be."""

    MAJORITY = 1
    MAJORITY_AND_PERSIST_ON_ACTIVE = 2
    PERSIST_TO_MAJORITY = 3


class OpenFlag(IntFlag):
    """Flags of OPEN."""

    PRODUCER = 0x01
    NOTIFIER = 0x02
    INCLUDE_XATTRS = 0x04
    NO_VALUE = 0x08
    COLLECTIONS_PROTOTYPE = 0x10
    INCLUDE_DELETE_TIMES = 0x20
    NO_VALUE_KEEP_DATATYPE = 0x40
    PITR = 0x80
    INCLUDE_DELETED_USER_XATTRS = 0x100
    SKIP_DELETES_IN_BACKFILL = 0x200


class StreamFlag(IntFlag):
    """Flags of STREAM_REQ and ADD_STREAM."""

    TAKEOVER = 0x01
    DISK_ONLY = 0x02
    TO_LATEST = 0x04
    NO_VALUE = 0x08
    ACTIVE_ONLY = 0x10
    STRICT_UUID = 0x20
    FROM_LATEST = 0x40
    IGNORE_PURGED_TOMBSTONES = 0x80
    CACHE_TRANSFER = 0x100


class MarkerFlag(IntFlag):
    """What a snapshot is made of; exactly one of MEMORY and DISK is set."""

    MEMORY = 0x01
    DISK = 0x02
    CHECKPOINT = 0x04
    ACK = 0x08
    HISTORY = 0x10
    MAY_DUPLICATE_KEYS = 0x20


class StreamEndReason(IntEnum):
    """Why a producer ended a stream, in the released numbering."""

    FINISHED = 0
    CLOSED = 1
    STATE_CHANGED = 2
    DISCONNECTED = 3
    TOO_SLOW = 4
    BACKFILL_FAILED = 5
    ROLLBACK = 6
    FILTER_EMPTY = 7
    LOST_PRIVILEGES = 8


class VBucketState(IntEnum):
    """State of a vbucket on a node, in the released numbering."""

    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


class OsoFlag(IntFlag):
    """Flags of OSO_SNAPSHOT."""

    START = 0x01
    END = 0x02


class SystemEventId(IntEnum):
    """What a system event tells; 2 is reserved."""

    BEGIN_COLLECTION = 0
    END_COLLECTION = 1
    CREATE_SCOPE = 3
    DROP_SCOPE = 4
    MODIFY_COLLECTION = 5


class MetaOption(IntFlag):
    """Options of the WITH_META commands."""

    FORCE = 0x01
    FORCE_ACCEPT = 0x02
    REGENERATE_CAS = 0x04
    SKIP_CONFLICT_RESOLUTION = 0x08
    IS_EXPIRATION = 0x10


class SubdocFlag(IntFlag):
    """Flags of one path of a sub-document command."""

    MKDIR_P = 0x01
    XATTR_PATH = 0x04
    EXPAND_MACROS = 0x10


class SubdocDocFlag(IntFlag):
    """Flags of a whole sub-document command."""

    MKDOC = 0x01
    ADD = 0x02
    ACCESS_DELETED = 0x04
    CREATE_AS_DELETED = 0x08
    REVIVE_DOCUMENT = 0x10


class Feature(IntEnum):
    """HELLO features."""

    DATATYPE_OLD = 0x01
    TLS = 0x02
    TCP_NODELAY = 0x03
    MUTATION_SEQNO = 0x04
    TCP_DELAY = 0x05
    XATTR = 0x06
    XERROR = 0x07
    SELECT_BUCKET = 0x08
    COLLECTIONS_OLD = 0x09
    SNAPPY = 0x0A
    JSON = 0x0B
    DUPLEX = 0x0C
    CLUSTERMAP_CHANGE = 0x0D
    UNORDERED = 0x0E
    TRACING = 0x0F
    ALT_REQUEST = 0x10
    SYNC_REPLICATION = 0x11
    COLLECTIONS = 0x12
    SNAPPY_EVERYWHERE = 0x13
    PRESERVE_TTL = 0x14
    VATTR = 0x15
    PITR = 0x16
    SUBDOC_CREATE_AS_DELETED = 0x17
    SUBDOC_MACRO = 0x18
    SUBDOC_REPLACE_BODY = 0x19
    UNITS = 0x1A
    NON_BLOCKING_THROTTLE = 0x1B
    SUBDOC_REPLICA_READ = 0x1C
    CONFIG_WITH_KNOWN_VERSION = 0x1D
    DEDUPE_NMVB_CLUSTERMAP = 0x1E
    CLUSTERMAP_CHANGE_BRIEF = 0x1F
    SUBDOC_ALLOWS_ACCESS_DELETED = 0x20
    SUBDOC_BINARY_XATTR = 0x21
    RANGE_SCAN_KEY_INCLUDES_XATTR = 0x22
    SUBDOC_ALLOWS_REPLICA_WRITE = 0x23
    MISC_24 = 0x24
    MUTATE_WITH_META = 0x25
    SKIP_DELETES = 0x26
