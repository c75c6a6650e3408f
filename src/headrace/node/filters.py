"""Stream filters: what the JSON value of a stream request asks for, and what passes it.

The value is an object with ``uid`` (the manifest the client knows, hex), ``collections`` (hex ids)
or ``scope`` (one hex id), ``sid`` (a stream id), ``purge_seqno`` (decimal) and ``cts``. At least
one of them but ``sid`` must be there; unknown keys beside known ones are passed over.

Rules:

* Without collections a value is refused and only the default collection is streamed.
* A collection filter lets through the documents and the events of its collections; a scope filter
  those of all collections that are or come into the scope, and the scope's own events.
* When the last collection of a filter (or its scope) is dropped, the event that says so is sent and
  the stream ends.
* A manifest uid ahead of ours is refused: the client knows collections that we do not yet.

Spec: docs/protocol.md, "Stream request" and "Collections".

Imports: protocol, wire.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.protocol.decision import Refused
from headrace.wire.opcodes import Status, SystemEventId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.node.controls import Controls
    from headrace.node.manifest import Manifest
    from headrace.store.model import SystemEventView

    EventRewrite = Callable[[SystemEventView], tuple[int, bytes, bytes] | None]

FILTER_SIZE_MAX: Final = 1024 * 1024
DEFAULT_COLLECTION: Final = 0
STREAM_ID_MAX: Final = 0xFFFF

_KNOWN: Final = frozenset({"uid", "collections", "scope", "sid", "purge_seqno", "cts"})
_HEX_32: Final = re.compile(r"(0x)?[0-9a-fA-F]{1,8}")
_HEX_64: Final = re.compile(r"(0x)?[0-9a-fA-F]{1,16}")
_DECIMAL_64: Final = re.compile(r"[0-9]{1,20}")

COLLECTION_EVENTS: Final = frozenset(
    {
        SystemEventId.BEGIN_COLLECTION,
        SystemEventId.END_COLLECTION,
        SystemEventId.MODIFY_COLLECTION,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFilter:
    """What a stream request's value asked for.

    ``collections`` None: everything, or everything of ``scope``. ``legacy``: the client does not
    know collections and gets the default one alone.
    """

    legacy: bool = False
    collections: frozenset[int] | None = None
    scope: int | None = None
    stream_id: int | None = None
    purge_seqno: int = 0

    @property
    def passes_all(self) -> bool:
        """Whether nothing is filtered out."""
        return not self.legacy and self.collections is None and self.scope is None

    @property
    def is_open(self) -> bool:
        """Whether no collection or scope is asked for: such a filter cannot run empty."""
        return self.collections is None and self.scope is None

    def living(self, manifest: Manifest) -> frozenset[int] | None:
        """The collections whose documents pass now; None for all."""
        if self.legacy:
            return frozenset({DEFAULT_COLLECTION})
        if self.scope is not None:
            members = manifest.collections.values()
            return frozenset(one.id for one in members if one.scope_id == self.scope)
        return self.collections

    def passes_event(self, event: SystemEventView) -> bool:
        """Whether a system event belongs to the stream."""
        if self.passes_all:
            return True
        about_collection = event.event in COLLECTION_EVENTS
        if self.collections is not None:
            return about_collection and event.subject in self.collections
        if self.scope is not None:
            return (scope_of(event) if about_collection else event.subject) == self.scope
        return False


def scope_of(event: SystemEventView) -> int:
    """The scope a collection event's value names (versions 0 and 1: after the manifest uid)."""
    return int.from_bytes(event.value[8:12], "big")


PASS_ALL: Final = StreamFilter()
LEGACY: Final = StreamFilter(legacy=True)


def _invalid(reason: str) -> Refused:
    return Refused(Status.EINVAL, reason)


def read_filter(
    value: bytes, *, collections: bool, controls: Controls, manifest: Manifest
) -> StreamFilter | Refused:
    """The filter a stream request asks for, or why it is refused."""
    if not collections:
        if value:
            return _invalid("a stream request with a value needs collections")
        if DEFAULT_COLLECTION not in manifest.collections:
            return Refused(Status.UNKNOWN_COLLECTION, "the default collection was dropped")
        return LEGACY
    asked = _read_object(value)
    if isinstance(asked, Refused):
        return asked
    found = _read_fields(asked, manifest)
    if isinstance(found, Refused):
        return found
    if (found.stream_id is None) == controls.stream_ids:
        allowed = "needs a stream id" if controls.stream_ids else "must not have a stream id"
        return Refused(Status.STREAM_ID_INVALID, f"a stream request here {allowed}")
    if controls.sync_writes and not found.passes_all:
        return Refused(Status.NOT_SUPPORTED, "a filter excludes enable_sync_writes")
    return found


def _read_object(value: bytes) -> Mapping[str, object] | Refused:
    if not value:
        return {}
    if len(value) > FILTER_SIZE_MAX:
        return _invalid(f"stream request value of {len(value)} bytes, limit {FILTER_SIZE_MAX}")
    try:
        asked = json.loads(value)
    except (ValueError, RecursionError):
        return _invalid("the stream request's value is not JSON")
    if not isinstance(asked, dict):
        return _invalid("the stream request's value must be a JSON object")
    # A stream id alone filters nothing and names no manifest: real servers refuse it.
    if not (asked.keys() & _KNOWN) - {"sid"}:
        known = ", ".join(sorted(_KNOWN))
        return _invalid(f"the stream request's value has none of the keys {known}")
    return asked


def _read_fields(asked: Mapping[str, object], manifest: Manifest) -> StreamFilter | Refused:
    if "collections" in asked and "scope" in asked:
        return _invalid("a filter has collections or a scope, not both")
    uid = asked.get("uid", "0")
    if not isinstance(uid, str) or not _HEX_64.fullmatch(uid):
        return _invalid(f"uid {uid!r}, expected a hex text")
    purge = asked.get("purge_seqno", "0")
    if not isinstance(purge, str) or not _DECIMAL_64.fullmatch(purge) or int(purge) >= 1 << 64:
        return _invalid(f"purge_seqno {purge!r}, expected a decimal text of 64 bits")
    stream_id = asked.get("sid")
    if stream_id is not None and not _is_stream_id(stream_id):
        return Refused(Status.STREAM_ID_INVALID, f"sid {stream_id!r}, allowed 1..{STREAM_ID_MAX}")
    if not isinstance(asked.get("cts", {}), dict):
        return _invalid("cts must be an object")
    ids = _read_ids(asked)
    if isinstance(ids, Refused):
        return ids
    if int(uid, 16) > manifest.uid:
        return Refused(
            Status.MANIFEST_IS_AHEAD,
            f"manifest uid {uid} is ahead of {manifest.uid:x}",
        )
    found = StreamFilter(
        collections=ids,
        scope=int(str(asked["scope"]), 16) if "scope" in asked else None,
        stream_id=stream_id if isinstance(stream_id, int) else None,
        purge_seqno=int(purge),
    )
    return _check_known(found, manifest) or found


def _is_stream_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= STREAM_ID_MAX


def _read_ids(asked: Mapping[str, object]) -> frozenset[int] | Refused | None:
    if "scope" in asked:
        scope = asked["scope"]
        if not isinstance(scope, str) or not _HEX_32.fullmatch(scope):
            return _invalid(f"scope {scope!r}, expected a hex text")
    if "collections" not in asked:
        return None
    names = asked["collections"]
    if not isinstance(names, list) or not names:
        return _invalid("collections must be a list of hex texts that is not empty")
    for name in names:
        if not isinstance(name, str) or not _HEX_32.fullmatch(name):
            return _invalid(f"collection {name!r}, expected a hex text")
    return frozenset(int(name, 16) for name in names)


def _check_known(found: StreamFilter, manifest: Manifest) -> Refused | None:
    if found.scope is not None and found.scope not in manifest.scopes:
        return Refused(Status.UNKNOWN_SCOPE, f"scope {found.scope:#x} is unknown")
    for collection in found.collections or ():
        if collection not in manifest.collections:
            return Refused(Status.UNKNOWN_COLLECTION, f"collection {collection:#x} is unknown")
    return None


class EventGate:
    """Which system events one stream sends, in which version, and when its filter ran empty.

    The store may ask about the same event more than once (to look ahead, then to send), so asking
    changes nothing but the note of drops; `passed` is told how far the stream has come.
    """

    __slots__ = ("_drops", "_filter", "_left", "_rewrite", "is_empty")

    def __init__(self, filter_: StreamFilter, *, rewrite: EventRewrite | None = None) -> None:
        """Start with every collection of the filter alive."""
        self._filter = filter_
        self._left = set(filter_.collections or ())
        self._drops: dict[int, SystemEventView] = {}
        self._rewrite = rewrite
        self.is_empty = False

    def __call__(self, event: SystemEventView) -> tuple[int, bytes, bytes] | None:
        """The event as it goes out, or None; the signature `Transform.system_event` asks for."""
        if not self._filter.passes_event(event):
            return None
        if not self._filter.passes_all and event.event in (
            SystemEventId.END_COLLECTION,
            SystemEventId.DROP_SCOPE,
        ):
            self._drops[event.seqno] = event
        if self._rewrite is not None:
            return self._rewrite(event)
        if event.event == SystemEventId.MODIFY_COLLECTION:
            return None
        return event.version, event.key, event.value

    def passed(self, seqno: int) -> None:
        """Note that the stream has sent everything up to ``seqno``."""
        if not self._drops:
            return
        for at in sorted(self._drops):
            if at > seqno:
                return
            event = self._drops.pop(at)
            if event.event == SystemEventId.DROP_SCOPE:
                self.is_empty = True
            elif self._filter.collections is not None:
                self._left.discard(event.subject)
                self.is_empty = not self._left


OPEN_GATE: Final = EventGate(PASS_ALL)
"""The gate of every stream without a filter: it has nothing to remember."""
