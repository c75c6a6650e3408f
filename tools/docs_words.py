"""Words for names that the code has without them; `tools.docs_reference` checks none is missing.

Imports: nothing of ours.
"""

from __future__ import annotations

from typing import Final

CONTROL_WORDS: Final[dict[str, str]] = {
    "enable_noop": "the producer sends NOOP when it has nothing else to send",
    "set_noop_interval": "seconds between two NOOPs",
    "connection_buffer_size": "flow-control window in bytes; 0 turns flow control off",
    "stream_buffer_size": "a window per stream, of the first drafts",
    "set_priority": "how large a share of the node's turns the connection takes",
    "supports_cursor_dropping": "the node may take a slow stream's cursor away",
    "supports_cursor_dropping_vulcan": "the same, under its later name",
    "send_stream_end_on_client_close_stream": "CLOSE_STREAM is followed by STREAM_END",
    "enable_expiry_opcode": "expirations come as EXPIRATION, not as DELETION",
    "force_value_compression": "every value that shrinks is sent compressed",
    "supports_hifi_MFU": "the field nru carries a finer frequency counter",
    "backfill_order": "whether backfills of a connection take turns",
    "enable_stream_id": "several streams per vbucket, told apart by an id",
    "enable_out_of_order_snapshots": "a first backfill may come out of seqno order",
    "enable_sync_writes": "prepares, commits and aborts are sent",
    "consumer_name": "the consumer's name in a chain; with it, it acknowledges prepares",
    "include_deleted_user_xattrs": "deletions carry user xattrs (also an OPEN flag)",
    "v7_dcp_status_codes": "STREAM_NOT_FOUND and OPAQUE_NO_MATCH instead of older statuses",
    "flatbuffers_system_events": "system events as FlatBuffers",
    "change_streams": "every retained version, not only the newest",
    "max_marker_version": "2.2 adds the purge seqno to markers",
    "cache_transfer": "send what is in memory first, of 8.x",
    "enable_ext_metadata": "metadata behind the value, of 4.x",
}

STATUS_IN_STREAMS: Final[dict[str, str]] = {
    "KEY_ENOENT": "no such stream; in the draft also: unknown branch, go back to 0",
    "KEY_EEXISTS": "the vbucket has a stream on this connection",
    "EINVAL": "the request's parts or its filter are wrong",
    "NOT_MY_VBUCKET": "the vbucket is elsewhere; the value may be the cluster map",
    "STREAM_NOT_FOUND": "no such stream, with v7_dcp_status_codes",
    "OPAQUE_NO_MATCH": "an answer to a stream that ended",
    "ERANGE": "start above end, or outside its snapshot",
    "ROLLBACK": "go back; the value is the seqno",
    "EACCESS": "the user may not read this bucket",
    "ENOMEM": "no room now",
    "NOT_SUPPORTED": "also: xattrs or collections without noop",
    "ETMPFAIL": "not now",
    "UNKNOWN_COLLECTION": "the filter names what is not there",
    "MANIFEST_IS_AHEAD": "the filter's manifest is newer than the node's",
    "UNKNOWN_SCOPE": "the filter names what is not there",
    "STREAM_ID_INVALID": "an id without enable_stream_id, or none with it",
}

SUBDOC_WORDS: Final[dict[str, str]] = {
    "SUBDOC_PATH_ENOENT": "the path is not there",
    "SUBDOC_PATH_MISMATCH": "the path meets a value of another kind",
    "SUBDOC_PATH_EINVAL": "the path is malformed",
    "SUBDOC_PATH_E2BIG": "the path is too long or too deep",
    "SUBDOC_DOC_E2DEEP": "the document is nested too deeply",
    "SUBDOC_VALUE_CANTINSERT": "the value is no JSON, or would break the document",
    "SUBDOC_DOC_NOTJSON": "the document is not JSON",
    "SUBDOC_NUM_ERANGE": "the number there is out of range",
    "SUBDOC_DELTA_EINVAL": "the delta is no number, or 0",
    "SUBDOC_PATH_EEXISTS": "the path exists",
    "SUBDOC_VALUE_E2DEEP": "the value would nest too deeply",
    "SUBDOC_INVALID_COMBO": "these commands do not go together",
    "SUBDOC_MULTI_PATH_FAILURE": "some of several paths failed",
    "SUBDOC_SUCCESS_DELETED": "success, on a deleted document",
    "SUBDOC_XATTR_INVALID_FLAG_COMBO": "these flags of an xattr path do not go together",
    "SUBDOC_XATTR_INVALID_KEY_COMBO": "paths of more than one xattr",
    "SUBDOC_XATTR_UNKNOWN_MACRO": "the macro is unknown",
    "SUBDOC_XATTR_UNKNOWN_VATTR": "the virtual xattr is unknown",
    "SUBDOC_XATTR_CANT_MODIFY_VATTR": "a virtual xattr cannot be changed",
    "SUBDOC_MULTI_PATH_FAILURE_DELETED": "some of several paths failed, on a deleted document",
    "SUBDOC_INVALID_XATTR_ORDER": "xattr paths must come first",
    "SUBDOC_XATTR_UNKNOWN_VATTR_MACRO": "the macro of a virtual xattr is unknown",
    "SUBDOC_CAN_ONLY_REVIVE_DELETED": "only a deleted document can be revived",
    "SUBDOC_DELETED_CANT_HAVE_VALUE": "a deleted document can have no value",
}

SPARK_ATTRIBUTES: Final[dict[str, str]] = {
    "url": "needed",
    "bucket": ".bucket",
    "user": "HEADRACE_USER",
    "credentialsFile": ".credentials_file",
    "collections": ".collections",
    "scope": ".scope",
    "keyPrefix": ".key_prefix",
    "events": "all",
    "start": ".start",
    "snapshots": ".snapshots",
    "values": ".values",
    "columns": "",
    "maxRowsPerBatch": ".rows_max",
    "maxBytesPerBatch": ".bytes_max",
    "partitions": "the machine's cores, at most 8",
    "pollSeconds": ".poll_seconds",
    "patienceSeconds": ".patience_seconds",
    "stateDirectory": ".state_directory",
    "reportHost": ".report_host",
    "mode": "upsert",
    "keyColumn": "key",
    "valueColumn": "",
    "collection": "the default one",
}
"""Option -> its default: the attribute of `SourceOptions` that holds it, or words."""

TABLE_COLUMNS: Final[dict[str, str]] = {
    "part": "directory of the file; a vbucket's rows are all in one",
    "turn": "the turn that published the row",
    "deleted": "true: the key is deleted (only with `--soft-deletes`, or in a tail)",
}

USERS_FILE: Final[dict[str, str]] = {
    "password": "the password; or",
    "password_file": "a file beside this one that holds it, mode 600",
    "role": "`read`, `write` or `admin`; `write` when left out",
    "buckets": "list of buckets; all of them when left out",
}

CLUSTER_FILE: Final[dict[str, str]] = {
    "revision": "counted up by whoever edits the file",
    "buckets": "list of buckets that are managed",
    "replicas": "replicas wanted of every vbucket, 0..3",
    "credentials": "file beside this one, for nodes that name none of their own",
    "nodes.NAME.url": "connection string of the node",
    "nodes.NAME.credentials": "file beside this one",
    "nodes.NAME.leaving": "true: rebalance moves everything away from it",
    "credentials: user": "who logs in; must be an administrator",
    "credentials: password": "the password",
    "credentials: trust": "authority to trust, PEM",
    "credentials: certificate": "client certificate, PEM",
    "credentials: key": "its private key, PEM",
    "credentials: verify": "false trusts any certificate",
}

ENVIRONMENT: Final[dict[str, str]] = {
    "HEADRACE_USER": "who logs in, where no option says it",
    "HEADRACE_PASSWORD": "the password, where no file is given",
    "HEADRACE_ADMIN": "URL or file of a node's fault levers, for `headrace fault`",
    "HEADRACE_ADMIN_TOKEN": "the token that goes with it",
    "HEADRACE_CACHE": "directory for what is made once, such as the wrapper around Java",
    "HEADRACE_COMPLETE": "used by completion scripts, with an underscore in front",
}
