"""One message -> its essence in one line of words.

A message with something particular to say has a function in WORDS; every other one is shown field
by field, with the names that its layout row gives to numbers. What is 0, empty or absent is not
said.

Imports: wire, cli.texts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.texts import (
    code_name,
    key_text,
    preview,
    quoted,
    seqno_text,
    status_name,
    time_text,
    uuid_text,
    value_text,
)
from headrace.errors import RemoteProtocolError
from headrace.wire import admin, kv
from headrace.wire import messages as m
from headrace.wire.message import (
    HEADER_FIELDS,
    ErrorReply,
    Message,
    Reply,
    UnknownCommand,
    UnknownReply,
)
from headrace.wire.opcodes import (
    DurabilityLevel,
    Feature,
    FrameInfoId,
    MarkerFlag,
    OpenFlag,
    OsoFlag,
    ReplyFrameInfoId,
    StreamEndReason,
    StreamFlag,
    SystemEventId,
    VBucketState,
)
from headrace.wire.system_events import detail_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import IntEnum, IntFlag

    from headrace.wire.frame import FrameInfo
    from headrace.wire.layout import Row

SHOWN_MAX: Final = 8
"""Entries of a list that one line shows."""
AGENT_SIZE: Final = 30
"""Characters of an agent's name; what it asks for is worth more room."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the conversation has told so far that a single message does not say."""

    collections: bool | None = None
    row: Row | None = None


def words(message: Message, setting: Setting) -> str:
    """Return the line: a reply's status first, frame infos last."""
    said = WORDS.get(type(message), _field_by_field)(message, setting)
    parts = [said] if said else []
    if isinstance(message, Reply) and not isinstance(message, ErrorReply | m.RollbackReply):
        parts.insert(0, status_name(message.status))
    infos = [_info_words(info, message) for info in message.frame_infos]
    return "  ".join(parts + [f"[{info}]" for info in infos])


def _listed(entries: list[str]) -> str:
    shown = entries[:SHOWN_MAX]
    if len(entries) > SHOWN_MAX:
        shown.append(f"... {len(entries)} in all")
    return " ".join(shown)


def _flags(number: int, codes: type[IntFlag], label: str = "") -> list[str]:
    return [label + code_name(number, codes)] if number else []


# Opening a connection.


def _hello(message: admin.Hello, _: Setting) -> str:
    return f"{_agent(message.key)} asks for {_features(message.features)}"


def _agent(key: bytes) -> str:
    """The name an agent gives itself; newer ones wrap it in JSON."""
    try:
        name = json.loads(key)["a"]
    except (ValueError, LookupError, TypeError):
        return quoted(key)
    return quoted(preview(str(name).encode(), AGENT_SIZE).encode())


def _hello_reply(message: admin.HelloReply, _: Setting) -> str:
    return f"grants {_features(message.features)}"


def _features(numbers: tuple[int, ...]) -> str:
    return " ".join(code_name(number, Feature) for number in numbers) or "nothing"


def _sasl(message: admin.SaslAuth | admin.SaslStep, _: Setting) -> str:
    """The mechanism and the user; a password is never shown in words."""
    mechanism = quoted(message.key)
    parts = message.value.split(b"\0")
    return f"{mechanism} as {quoted(parts[1])}" if len(parts) == 3 else mechanism


def _open(message: m.Open, _: Setting) -> str:
    parts = [quoted(message.key), "server becomes", code_name(message.flags, OpenFlag)]
    if not message.flags & OpenFlag.PRODUCER:
        parts[2] = "consumer" + (f"|{parts[2]}" if message.flags else "")
    if message.value:
        parts.append(preview(message.value))
    return " ".join(parts)


def _control(message: m.Control, _: Setting) -> str:
    return f"{quoted(message.key)} = {quoted(message.value)}"


# Streams.


def _stream_request(message: m.StreamRequest, _: Setting) -> str:
    end = seqno_text(message.end_seqno)
    parts = [f"from {message.start_seqno}", end if end == "endless" else f"to {end}"]
    parts.append(f"branch {uuid_text(message.vb_uuid)}")
    if message.snap_start_seqno is not None:
        parts.append(f"snapshot {message.snap_start_seqno}..{message.snap_end_seqno}")
    if message.high_seqno:
        parts.append(f"high seqno {message.high_seqno}")
    parts += _flags(message.flags, StreamFlag)
    if message.value:
        parts.append(preview(message.value))
    return " ".join(parts)


def _failover_log(
    message: m.StreamRequestReply | m.GetFailoverLogReply | m.FailoverLogReply, _: Setting
) -> str:
    return "branches " + _listed(
        [f"{uuid_text(entry.uuid)}@{entry.seqno}" for entry in message.failover_log]
    )


def _rollback(message: m.RollbackReply, _: Setting) -> str:
    return f"{status_name(message.status)} to {message.rollback_seqno}"


def _seqnos(message: m.GetAllVbSeqnosReply, _: Setting) -> str:
    return _listed([f"{line.vbucket}:{line.seqno}" for line in message.seqnos])


def _marker(message: m.SnapshotMarker, _: Setting) -> str:
    if message.start_seqno is None:
        return "until the next marker"
    parts = [f"{message.start_seqno}..{message.end_seqno}"]
    parts += _flags(message.flags or 0, MarkerFlag)
    for label, number in (
        ("visible", message.max_visible_seqno),
        ("completed", message.high_completed_seqno),
        ("prepared", message.high_prepared_seqno),
        ("purged", message.purge_seqno),
        ("timestamp", message.timestamp),
    ):
        if number is not None:
            parts.append(f"{label} {number}")
    return " ".join(parts)


def _document(message: m.Mutation | m.Prepare, setting: Setting) -> str:
    parts = [f"seqno {message.by_seqno}", key_text(message.key, setting.collections)]
    parts.append("= " + value_text(message.value, message.datatype))
    parts.append(f"rev {message.rev_seqno}")
    for label, number in (("flags", message.flags), ("locked", message.lock_time)):
        if number:
            parts.append(f"{label} {number:#x}")
    if message.expiration:
        parts.append(f"expires {time_text(message.expiration)}")
    if message.nmeta if isinstance(message, m.Mutation) else False:
        parts.append("with extended metadata")
    return " ".join(parts)


def _prepare(message: m.Prepare, setting: Setting) -> str:
    kind = " delete" if message.deleted else ""
    level = code_name(message.durability, DurabilityLevel)
    return f"{_document(message, setting)}{kind} needs {level}"


def _removal(message: m.Deletion | m.Expiration, setting: Setting) -> str:
    parts = [f"seqno {message.by_seqno}", key_text(message.key, setting.collections)]
    parts.append(f"rev {message.rev_seqno}")
    if message.delete_time:
        parts.append(f"at {time_text(message.delete_time)}")
    if message.value:
        parts.append("= " + value_text(message.value, message.datatype))
    return " ".join(parts)


def _completion(message: m.Commit | m.Abort, setting: Setting) -> str:
    seqno = message.commit_seqno if isinstance(message, m.Commit) else message.abort_seqno
    key = key_text(message.key, setting.collections)
    return f"seqno {seqno} {key} prepared at {message.prepared_seqno}"


def _system_event(message: m.SystemEvent, _: Setting) -> str:
    parts = [f"seqno {message.by_seqno}", code_name(message.event, SystemEventId).replace("_", " ")]
    if message.key:
        parts.append(quoted(message.key))
    try:
        detail = detail_of(message)
    except RemoteProtocolError as error:
        return " ".join([*parts, f"(but {error})"])
    if detail is not None:
        if detail.collection_id is not None:
            parts.append(f"{detail.collection_id:#x} of scope")
        parts.append(f"{detail.scope_id:#x} manifest {detail.manifest_uid:#x}")
        if detail.max_ttl is not None:
            parts.append(f"max ttl {detail.max_ttl}")
    elif message.value:
        parts.append(f"version {message.version}: {value_text(message.value, 0)}")
    return " ".join(parts)


# Documents on ordinary connections.


def _write(message: Any, setting: Setting) -> str:  # noqa: ANN401 - one of the writes of kv
    parts = [key_text(message.key, setting.collections)]
    parts.append("= " + value_text(message.value, message.datatype))
    if getattr(message, "expiration", 0):
        parts.append(f"expiration {message.expiration}")
    if message.cas:
        parts.append(f"if cas {message.cas:#x}")
    return " ".join(parts)


def _stored(message: kv.StoredReply, _: Setting) -> str:
    parts = [] if message.seqno is None else [f"seqno {message.seqno}"]
    if message.vb_uuid is not None:
        parts.append(f"on branch {uuid_text(message.vb_uuid)}")
    return " ".join([*parts, f"cas {message.cas:#x}"])


def _got(message: kv.GetReply | kv.GatReply | kv.GetLockedReply, _: Setting) -> str:
    return value_text(message.value, message.datatype)


def _stat(message: admin.StatReply, _: Setting) -> str:
    return f"{quoted(message.key)} = {quoted(message.value)}" if message.key else "end"


# Everything else.


def _error(message: ErrorReply, _: Setting) -> str:
    """A refusal: its status, and the server's own words when it sent some."""
    name = status_name(message.status)
    if not message.value:
        return name
    try:
        context = json.loads(message.value)["error"]["context"]
    except (ValueError, LookupError, TypeError):
        return f"{name} {preview(message.value)}"
    return f"{name} {preview(str(context).encode())}"


def _unknown(message: UnknownCommand | UnknownReply, _: Setting) -> str:
    sizes = (("extras", message.extras), ("key", message.key), ("value", message.value))
    told = [f"{label} {preview(data)}" for label, data in sizes if data]
    return "unknown here" + (f": {', '.join(told)}" if told else "")


def _field_by_field(message: Message, setting: Setting) -> str:
    names = field_codes(setting.row)
    parts = []
    for field in fields(message):
        content = getattr(message, field.name)
        if field.name in HEADER_FIELDS or not content:
            continue
        if field.name == "value":
            parts.append(value_text(content, message.datatype))
            continue
        if isinstance(content, bytes):
            shown = key_text(content, None if setting.collections else False)
        elif isinstance(content, bool):
            parts.append(field.name)
            continue
        elif isinstance(content, int):
            shown = code_name(content, names.get(field.name))
        else:
            shown = _listed([str(entry) for entry in content])
        parts.append(f"{field.name} {shown}")
    return " ".join(parts)


def field_codes(row: Row | None) -> dict[str, type[IntEnum] | type[IntFlag]]:
    """Return name -> codes of the fields whose numbers have names in this layout."""
    if row is None:
        return {}
    value_fields = getattr(row.value, "fields", None)
    every = row.extras.fields + (value_fields.fields if value_fields else ())
    return {field.name: field.codes for field in every if field.codes is not None}


def _info_words(info: FrameInfo, message: Message) -> str:
    number = int.from_bytes(info.data, "big")
    if isinstance(message, Reply):
        if info.id == ReplyFrameInfoId.SERVER_DURATION:
            return f"took {server_duration_us(number):,.0f} us"
        return f"{code_name(info.id, ReplyFrameInfoId)} {number}"
    if info.id == FrameInfoId.STREAM_ID:
        return f"stream id {number}"
    if info.id == FrameInfoId.DURABILITY and info.data:
        level = code_name(info.data[0], DurabilityLevel)
        timeout = int.from_bytes(info.data[1:3], "big")
        return f"durability {level}" + (f" within {timeout} ms" if timeout else "")
    return f"{code_name(info.id, FrameInfoId)} {info.data.hex()}".rstrip()


def server_duration_us(number: int) -> float:
    """Return the microseconds that a server's two-byte duration stands for."""
    return float(number**1.74 / 2)


def _acknowledged(message: m.SeqnoAcknowledged, _: Setting) -> str:
    return f"prepares up to {message.prepared_seqno}"


def _end_words(message: m.StreamEnd, _: Setting) -> str:
    return code_name(message.reason, StreamEndReason).replace("_", " ")


def _state(
    message: m.SetVBucketState | admin.SetVBucket | admin.GetVBucketReply, _: Setting
) -> str:
    topology = getattr(message, "value", b"")
    shown = code_name(message.state, VBucketState)
    return f"{shown} {preview(topology)}" if topology else shown


WORDS: Final[dict[type[Message], Callable[[Any, Setting], str]]] = {
    ErrorReply: _error,
    UnknownCommand: _unknown,
    UnknownReply: _unknown,
    admin.Hello: _hello,
    admin.HelloReply: _hello_reply,
    admin.SaslAuth: _sasl,
    admin.SaslStep: _sasl,
    admin.SaslAuthReply: lambda message, _: preview(message.value),
    admin.SaslStepReply: lambda message, _: preview(message.value),
    admin.SelectBucket: lambda message, _: quoted(message.key),
    m.Open: _open,
    m.Control: _control,
    m.AddStream: lambda message, _: " ".join(_flags(message.flags, StreamFlag)),
    m.AddStreamReply: lambda message, _: f"stream opaque {message.stream_opaque:#x}",
    m.StreamRequest: _stream_request,
    m.StreamRequestReply: _failover_log,
    m.RollbackReply: _rollback,
    m.GetFailoverLogReply: _failover_log,
    m.FailoverLogReply: _failover_log,
    m.GetAllVbSeqnosReply: _seqnos,
    m.StreamEnd: _end_words,
    m.SnapshotMarker: _marker,
    m.Mutation: _document,
    m.Deletion: _removal,
    m.Expiration: _removal,
    m.SetVBucketState: _state,
    m.BufferAck: lambda message, _: f"{message.ack_bytes:,} bytes",
    m.SystemEvent: _system_event,
    m.Prepare: _prepare,
    m.SeqnoAcknowledged: _acknowledged,
    m.Commit: _completion,
    m.Abort: _completion,
    m.SeqnoAdvanced: lambda message, _: f"to seqno {message.by_seqno}",
    m.OsoSnapshot: lambda message, _: code_name(message.oso_flags, OsoFlag),
    m.CacheTransfer: lambda message, _: f"{len(message.items)} items",
    kv.Set: _write,
    kv.Add: _write,
    kv.Replace: _write,
    kv.Append: _write,
    kv.Prepend: _write,
    kv.SetReply: _stored,
    kv.AddReply: _stored,
    kv.ReplaceReply: _stored,
    kv.AppendReply: _stored,
    kv.PrependReply: _stored,
    kv.DeleteReply: _stored,
    kv.GetReply: _got,
    kv.GatReply: _got,
    kv.GetLockedReply: _got,
    kv.Get: lambda message, setting: key_text(message.key, setting.collections),
    kv.GetK: lambda message, setting: key_text(message.key, setting.collections),
    kv.Delete: lambda message, setting: key_text(message.key, setting.collections),
    admin.Stat: lambda message, _: quoted(message.key) if message.key else "",
    admin.StatReply: _stat,
    admin.SetVBucket: _state,
    admin.GetVBucketReply: _state,
}
"""Message class -> its words. A class that is not here is shown field by field."""
