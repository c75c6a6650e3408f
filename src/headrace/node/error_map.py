"""GET_ERROR_MAP: what each status means, for clients that do not know it.

An attribute tells a client what to do with a status it has never met. Version 1 has the first set
of attributes, version 2 a few more; each map is built once.

Imports: wire.opcodes.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Final

from headrace.wire.opcodes import Status

VERSION_MAX: Final = 2
REVISION: Final = 1

_SINCE_2: Final = frozenset({"item-locked", "rate-limit"})

ITEM: Final = ("item-only",)
INPUT: Final = ("invalid-input", "internal")
SUBDOC: Final = ("subdoc", "item-only")

MEANINGS: Final[dict[Status, tuple[str, tuple[str, ...]]]] = {
    Status.SUCCESS: ("success", ("success",)),
    Status.KEY_ENOENT: ("no such document", ITEM),
    Status.KEY_EEXISTS: ("the document exists or has another CAS", ITEM),
    Status.E2BIG: ("the value is too big", ("item-only", "invalid-input")),
    Status.EINVAL: ("the request is malformed", INPUT),
    Status.NOT_STORED: ("the document was not stored", ITEM),
    Status.DELTA_BADVAL: ("the document is no number", ("item-only", "invalid-input")),
    Status.NOT_MY_VBUCKET: ("the vbucket lives elsewhere", ("fetch-config", "invalid-input")),
    Status.NO_BUCKET: ("no bucket is selected", ("conn-state-invalidated",)),
    Status.LOCKED: ("the document is locked", ("item-locked", "item-only", "retry-now")),
    Status.STREAM_NOT_FOUND: ("no such stream", ("internal",)),
    Status.OPAQUE_NO_MATCH: ("the opaque belongs to no live stream", ("internal",)),
    Status.WOULD_THROTTLE: ("too fast", ("temp", "rate-limit")),
    Status.CONFIG_ONLY: ("the bucket has a configuration and no data", ("conn-state-invalidated",)),
    Status.NOT_LOCKED: ("the document is not locked", ITEM),
    Status.CAS_VALUE_INVALID: ("the CAS is no valid one", ITEM),
    Status.AUTH_STALE: ("the login has expired", ("conn-state-invalidated", "auth")),
    Status.AUTH_ERROR: ("the login failed", ("conn-state-invalidated", "auth")),
    Status.AUTH_CONTINUE: ("the login goes on", ("special-handling",)),
    Status.ERANGE: ("a number is out of its range", INPUT),
    Status.ROLLBACK: ("go back to an earlier seqno", ("special-handling",)),
    Status.EACCESS: ("not allowed", ("support",)),
    Status.NOT_INITIALIZED: ("the node is not ready", ("conn-state-invalidated",)),
    Status.EXPIRY_OVERFLOW: ("the expiry is too large", INPUT),
    Status.LOCK_OVERFLOW: ("the lock time is too large", INPUT),
    Status.BUCKET_PAUSED: ("the bucket is paused", ("temp", "retry-later")),
    Status.UNKNOWN_FRAME_INFO: ("unknown frame info", INPUT),
    Status.UNKNOWN_COMMAND: ("unknown command", ("support",)),
    Status.ENOMEM: ("no room", ("temp", "retry-later")),
    Status.NOT_SUPPORTED: ("not supported here", ("support",)),
    Status.EINTERNAL: ("a failure of the node", ("internal", "conn-state-invalidated")),
    Status.EBUSY: ("busy, try later", ("temp", "retry-later")),
    Status.ETMPFAIL: ("try later", ("temp", "retry-later")),
    Status.XATTR_EINVAL: ("the xattr block is malformed", ("item-only", "invalid-input")),
    Status.UNKNOWN_COLLECTION: ("no such collection", ("item-only", "invalid-input")),
    Status.CANNOT_APPLY_MANIFEST: ("the manifest cannot be applied", ("internal",)),
    Status.MANIFEST_IS_AHEAD: (
        "the client knows a newer collections manifest",
        ("item-only", "invalid-input"),
    ),
    Status.UNKNOWN_SCOPE: ("no such scope", ("item-only", "invalid-input")),
    Status.STREAM_ID_INVALID: ("the stream id is missing or not allowed", INPUT),
    Status.DURABILITY_INVALID_LEVEL: ("durability level not possible here", INPUT),
    Status.DURABILITY_IMPOSSIBLE: ("durability cannot be met", ITEM),
    Status.SYNC_WRITE_IN_PROGRESS: (
        "another durable write is in flight",
        ("item-only", "retry-later"),
    ),
    Status.SYNC_WRITE_AMBIGUOUS: ("the durable write may or may not happen", ITEM),
    Status.SYNC_WRITE_RE_COMMIT: (
        "the durable write is being completed",
        ("item-only", "retry-later"),
    ),
}


@cache
def error_map(version: int) -> bytes:
    """The map in the newest version that is not above ``version``, as JSON."""
    version = min(version, VERSION_MAX)
    errors = {}
    for status in Status:
        text, attributes = MEANINGS.get(status, (status.name.lower().replace("_", " "), SUBDOC))
        kept = [name for name in attributes if version > 1 or name not in _SINCE_2]
        errors[f"{status:x}"] = {"name": status.name, "desc": text, "attrs": kept}
    return json.dumps({"version": version, "revision": REVISION, "errors": errors}).encode()
