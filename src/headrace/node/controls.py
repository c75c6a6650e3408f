"""CONTROL: every key a consumer can set, what values it takes, and what else it needs.

`Controls` is a value: a control makes a new one. A stream keeps the `Controls` of the moment it was
accepted, so a later control changes new streams only; what belongs to the connection (window, noop,
priority) the producer reads from its newest. Keys match as a whole. An unknown key or a bad value
is EINVAL, a known key that cannot be had here NOT_SUPPORTED; nothing changes then.

Spec: docs/protocol.md, "CONTROL".

Imports: protocol, wire.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from headrace.protocol.decision import Refused
from headrace.protocol.flow import NOOP_INTERVAL_SECONDS, NOOP_INTERVAL_SECONDS_MIN, WINDOW_MAX
from headrace.wire.dialect import Dialect, since
from headrace.wire.opcodes import Feature, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from headrace.node.opening import OpenOptions

NOOP_INTERVAL_SECONDS_MAX: Final = 86_400.0
CONSUMER_NAME_SIZE_MAX: Final = 250
# Names of connections between nodes: their cursors hold what a replica still needs.
KEPT_CURSOR_MARK: Final = "replication"

_SECONDS: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_UNSIGNED: Final = re.compile(r"[0-9]{1,20}")


class Priority(Enum):
    """How much of its turn a connection may use; the value is the control's text."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class BackfillOrder(Enum):
    """Whether backfills of a connection take turns or follow each other."""

    ROUND_ROBIN = "round-robin"
    SEQUENTIAL = "sequential"


class OutOfOrder(Enum):
    """Whether a first backfill may come out of seqno order."""

    NO = "false"
    YES = "true"
    WITH_SEQNO_ADVANCED = "true_with_seqno_advanced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """What a consumer has asked of the connection."""

    noop: bool = False
    noop_interval_seconds: float = NOOP_INTERVAL_SECONDS
    window: int = 0
    priority: Priority = Priority.MEDIUM
    cursor_dropping: bool = True
    end_on_close: bool = False
    expiry_opcode: bool = False
    force_compression: bool = False
    hifi_mfu: bool = False
    backfill_order: BackfillOrder = BackfillOrder.ROUND_ROBIN
    stream_ids: bool = False
    out_of_order: OutOfOrder = OutOfOrder.NO
    sync_writes: bool = False
    consumer_name: str = ""
    v7_status_codes: bool = False
    flatbuffers_events: bool = False
    change_streams: bool = False
    purge_in_markers: bool = False

    @property
    def sync_replication(self) -> bool:
        """Whether the consumer takes part in synchronous writes: it has a name for them."""
        return self.sync_writes and bool(self.consumer_name)

    @classmethod
    def for_name(cls, name: str) -> Controls:
        """The controls a connection of this name starts with."""
        return cls(cursor_dropping=KEPT_CURSOR_MARK not in name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One control on its way: the text asked for, and what the connection and bucket can do."""

    text: str
    before: Controls
    options: OpenOptions
    features: Collection[int]
    collections: bool
    keeps_history: bool


class _Bad(Exception):
    """The value is not one this key takes."""


class _Unavailable(Exception):
    """The key is known, and cannot be had here."""


def _boolean(setting: Setting) -> bool:
    if setting.text not in ("true", "false"):
        raise _Bad("allowed: true, false")
    return setting.text == "true"


def _only_true(setting: Setting) -> bool:
    if setting.text != "true":
        raise _Bad("allowed: true")
    return True


def _interval(setting: Setting) -> float:
    seconds = float(setting.text) if _SECONDS.fullmatch(setting.text) else 0.0
    if not NOOP_INTERVAL_SECONDS_MIN <= seconds <= NOOP_INTERVAL_SECONDS_MAX:
        raise _Bad(f"allowed: {NOOP_INTERVAL_SECONDS_MIN}..{NOOP_INTERVAL_SECONDS_MAX:.0f} seconds")
    return seconds


def _window(setting: Setting) -> int:
    size = int(setting.text) if _UNSIGNED.fullmatch(setting.text) else WINDOW_MAX + 1
    if size > WINDOW_MAX:
        raise _Bad(f"allowed: 0..{WINDOW_MAX} bytes")
    return size


def _one_of(kind: type[Enum]) -> Callable[[Setting], object]:
    def read(setting: Setting) -> object:
        try:
            return kind(setting.text)
        except ValueError:
            raise _Bad("allowed: " + ", ".join(str(one.value) for one in kind)) from None

    return read


def _out_of_order(setting: Setting) -> OutOfOrder:
    try:
        asked = OutOfOrder(setting.text)
    except ValueError:
        asked = OutOfOrder.NO
    if asked is OutOfOrder.NO:
        raise _Bad("allowed: true, true_with_seqno_advanced")
    return asked


def _compression(setting: Setting) -> bool:
    asked = _boolean(setting)
    if asked and Feature.SNAPPY not in setting.features:
        raise _Bad("it needs the HELLO feature snappy")
    return asked


def _stream_ids(setting: Setting) -> bool:
    if setting.before.sync_writes:
        raise _Unavailable("it excludes enable_sync_writes")
    if not setting.collections:
        raise _Unavailable("it needs collections")
    return _only_true(setting)


def _sync_writes(setting: Setting) -> bool:
    if setting.before.stream_ids:
        raise _Unavailable("it excludes enable_stream_id")
    return _only_true(setting)


def _consumer_name(setting: Setting) -> str:
    if not 1 <= len(setting.text) <= CONSUMER_NAME_SIZE_MAX:
        raise _Bad(f"allowed: 1..{CONSUMER_NAME_SIZE_MAX} characters")
    return setting.text


def _deleted_user_xattrs(setting: Setting) -> bool:
    if not setting.options.deleted_user_xattrs:
        raise _Bad("it needs open flag 0x100")
    return _only_true(setting)


def _with_collections(setting: Setting) -> bool:
    if not setting.collections:
        raise _Unavailable("it needs collections")
    return _only_true(setting)


def _change_streams(setting: Setting) -> bool:
    if not setting.keeps_history:
        raise _Unavailable("the bucket retains no history")
    return _only_true(setting)


def _marker_version(setting: Setting) -> bool:
    if setting.text not in ("2.0", "2.2"):
        raise _Bad("allowed: 2.0, 2.2")
    if not setting.collections:
        raise _Unavailable("it needs collections")
    return setting.text == "2.2"


def _unavailable(reason: str) -> Callable[[Setting], object]:
    def read(setting: Setting) -> object:  # noqa: ARG001 - whatever is asked
        raise _Unavailable(reason)

    return read


@dataclass(frozen=True, slots=True)
class Row:
    """A key: the field it sets ("" for none), how its text is read, the dialects that have it."""

    field: str
    read: Callable[[Setting], object]
    dialects: frozenset[Dialect]


_SINCE_2014: Final = since(Dialect.UPR_2014)
_SINCE_3: Final = since(Dialect.DCP_3)
_SINCE_5: Final = since(Dialect.DCP_5)
_SINCE_7: Final = since(Dialect.DCP_7)

CONTROLS: Final[dict[str, Row]] = {
    "enable_noop": Row("noop", _boolean, _SINCE_2014),
    "set_noop_interval": Row("noop_interval_seconds", _interval, _SINCE_2014),
    "connection_buffer_size": Row("window", _window, _SINCE_2014),
    "stream_buffer_size": Row("", _unavailable("windows are per connection"), _SINCE_2014),
    "set_priority": Row("priority", _one_of(Priority), _SINCE_3),
    "supports_cursor_dropping": Row("cursor_dropping", _boolean, _SINCE_3),
    "supports_cursor_dropping_vulcan": Row("cursor_dropping", _boolean, _SINCE_5),
    "send_stream_end_on_client_close_stream": Row("end_on_close", _only_true, _SINCE_5),
    "enable_expiry_opcode": Row("expiry_opcode", _boolean, _SINCE_5),
    "force_value_compression": Row("force_compression", _compression, _SINCE_5),
    "supports_hifi_MFU": Row("hifi_mfu", _boolean, _SINCE_5),
    "backfill_order": Row("backfill_order", _one_of(BackfillOrder), _SINCE_7),
    "enable_stream_id": Row("stream_ids", _stream_ids, _SINCE_7),
    "enable_out_of_order_snapshots": Row("out_of_order", _out_of_order, _SINCE_7),
    "enable_sync_writes": Row("sync_writes", _sync_writes, _SINCE_7),
    "consumer_name": Row("consumer_name", _consumer_name, _SINCE_7),
    "include_deleted_user_xattrs": Row("", _deleted_user_xattrs, _SINCE_7),
    "v7_dcp_status_codes": Row("v7_status_codes", _only_true, _SINCE_7),
    "flatbuffers_system_events": Row("flatbuffers_events", _with_collections, _SINCE_7),
    "change_streams": Row("change_streams", _change_streams, _SINCE_7),
    "max_marker_version": Row("purge_in_markers", _marker_version, _SINCE_7),
    "cache_transfer": Row("", _unavailable("there is no cache to transfer"), _SINCE_7),
    "enable_ext_metadata": Row(
        "", _unavailable("no extended metadata is kept"), frozenset({Dialect.DCP_3})
    ),
}


def apply_control(key: bytes, setting: Setting, dialect: Dialect) -> Controls | Refused:
    """The controls after this one, or why it is refused."""
    name = key.decode("utf-8", "backslashreplace")
    row = CONTROLS.get(name)
    if row is None or dialect not in row.dialects:
        return Refused(Status.EINVAL, f"control {name!r} is unknown in {dialect.value}")
    try:
        value = row.read(setting)
    except _Bad as bad:
        return Refused(Status.EINVAL, f"control {name} with value {setting.text!r}; {bad}")
    except _Unavailable as unavailable:
        return Refused(Status.NOT_SUPPORTED, f"control {name}: {unavailable}")
    if not row.field:
        return setting.before
    changed: dict[str, object] = {row.field: value}
    return replace(setting.before, **changed)  # type: ignore[arg-type]
