"""The collections of a bucket: a manifest read, checked, compared with the one before.

A manifest is JSON with hexadecimal ids::

    {"uid": "2", "scopes": [{"name": "_default", "uid": "0", "collections": [
        {"name": "_default", "uid": "0"}, {"name": "fruit", "uid": "9", "maxTTL": 60}]}]}

Rules. The uid only grows; the same manifest twice is no change. The scope ``_default`` never goes;
its collection ``_default`` may, and never comes back. Ids 1..7 are reserved, an id names one thing
for ever, names are unique among their siblings. A change becomes system events in one order:
collections dropped, scopes created, collections created, scopes dropped; only the last event
carries the new uid, so that a reader who stops in between knows that it has not seen the whole
change.

Imports: wire.opcodes, wire.system_events, node.refusal.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.node.refusal import Refusal
from headrace.wire.opcodes import Status, SystemEventId
from headrace.wire.system_events import EventDetail, value_of

MANIFEST_SIZE_MAX: Final = 1024 * 1024
SCOPES_MAX: Final = 1_200
COLLECTIONS_MAX: Final = 1_200
NAME: Final = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_%-]{0,250}")
DEFAULT: Final = "_default"
SYSTEM: Final = "_system"
DEFAULT_ID: Final = 0
ID_MAX: Final = 0xFFFF_FFFF
FIRST_FREE_ID: Final = 8
_HEX: Final = re.compile(r"[0-9a-fA-F]{1,16}")


class Event(NamedTuple):
    """One system event of a change, ready for `VBucket.system_event`."""

    event: int
    version: int
    subject: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """One collection."""

    id: int
    name: str
    scope_id: int
    max_ttl: int | None = None
    history: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One scope."""

    id: int
    name: str
    history: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The scopes and collections of a bucket, found by id and by name."""

    uid: int
    scopes: dict[int, Scope]
    collections: dict[int, Collection]
    scope_ids: dict[str, int] = field(init=False)
    collection_ids: dict[tuple[int, str], int] = field(init=False)

    def __post_init__(self) -> None:
        """Build the ways by name."""
        names = {scope.name: scope.id for scope in self.scopes.values()}
        object.__setattr__(self, "scope_ids", names)
        places = {(item.scope_id, item.name): item.id for item in self.collections.values()}
        object.__setattr__(self, "collection_ids", places)

    def collection_named(self, path: str) -> int:
        """The id of ``scope.collection``; an empty part is ``_default``."""
        scope, dot, name = path.partition(".")
        if not dot or "." in name or not all(_is_name(part) for part in (scope, name)):
            raise Refusal(Status.EINVAL, f"{path!r} is not scope.collection")
        scope_id = self.scope_named(scope)
        found = self.collection_ids.get((scope_id, name or DEFAULT))
        if found is None:
            raise self.unknown_collection()
        return found

    def scope_named(self, name: str) -> int:
        """The id of a scope; an empty name is ``_default``."""
        if not _is_name(name):
            raise Refusal(Status.EINVAL, f"{name!r} is not the name of a scope")
        found = self.scope_ids.get(name or DEFAULT)
        if found is None:
            raise Refusal(Status.UNKNOWN_SCOPE, manifest_uid=self.uid)
        return found

    def unknown_collection(self) -> Refusal:
        """The refusal for an id or name that is not here."""
        return Refusal(Status.UNKNOWN_COLLECTION, manifest_uid=self.uid)

    def to_json(self) -> dict[str, object]:
        """The manifest as clients are sent it."""
        scopes = []
        for scope in self.scopes.values():
            collections = [
                _without_none(
                    name=item.name,
                    uid=f"{item.id:x}",
                    maxTTL=item.max_ttl,
                    history=item.history,
                )
                for item in self.collections.values()
                if item.scope_id == scope.id
            ]
            scopes.append(
                _without_none(
                    name=scope.name,
                    uid=f"{scope.id:x}",
                    history=scope.history,
                    collections=collections,
                )
            )
        return {"uid": f"{self.uid:x}", "scopes": scopes}


FIRST: Final = Manifest(
    uid=0,
    scopes={DEFAULT_ID: Scope(id=DEFAULT_ID, name=DEFAULT)},
    collections={DEFAULT_ID: Collection(id=DEFAULT_ID, name=DEFAULT, scope_id=DEFAULT_ID)},
)
"""What every bucket begins with."""


def _without_none(**facts: object) -> dict[str, object]:
    return {name: value for name, value in facts.items() if value is not None}


def _is_name(text: str) -> bool:
    return text in ("", DEFAULT, SYSTEM) or text.startswith("_") or bool(NAME.fullmatch(text))


def parse_manifest(value: bytes) -> Manifest:
    """The manifest of a SET_COLLECTIONS_MANIFEST; Refusal EINVAL says what is wrong."""
    if len(value) > MANIFEST_SIZE_MAX:
        raise Refusal(Status.E2BIG, f"manifest of {len(value)} bytes, limit {MANIFEST_SIZE_MAX}")
    try:
        return from_json(json.loads(value))
    except (ValueError, RecursionError) as error:
        raise Refusal(Status.EINVAL, f"manifest is not JSON: {error}") from error


def from_json(data: object) -> Manifest:
    """The manifest of parsed JSON; Refusal EINVAL says what is wrong."""
    document = _object(data, "manifest")
    scopes: dict[int, Scope] = {}
    collections: dict[int, Collection] = {}
    for entry in _list(document, "scopes"):
        table = _object(entry, "scope")
        scope = Scope(
            id=_id(table, "scope"), name=_name(table, "scope"), history=_flag(table, "scope")
        )
        if scope.id in scopes or scope.name in {known.name for known in scopes.values()}:
            raise _wrong(f"scope {scope.name} ({scope.id:x}) stands twice")
        scopes[scope.id] = scope
        _add_collections(collections, scope, _list(table, "collections"))
    if scopes.get(DEFAULT_ID, Scope(id=0, name="")).name != DEFAULT:
        raise _wrong("there is no scope _default with uid 0")
    if len(scopes) > SCOPES_MAX or len(collections) > COLLECTIONS_MAX:
        raise _wrong(
            f"{len(scopes)} scopes and {len(collections)} collections, "
            f"limits {SCOPES_MAX} and {COLLECTIONS_MAX}"
        )
    return Manifest(uid=_hex(document, "manifest"), scopes=scopes, collections=collections)


def _add_collections(known: dict[int, Collection], scope: Scope, entries: list[object]) -> None:
    names: set[str] = set()
    for entry in entries:
        table = _object(entry, "collection")
        made = Collection(
            id=_id(table, "collection"),
            name=_name(table, "collection"),
            scope_id=scope.id,
            max_ttl=_ttl(table),
            history=_flag(table, "collection"),
        )
        if made.id in known or made.name in names:
            raise _wrong(f"collection {scope.name}.{made.name} ({made.id:x}) stands twice")
        if (made.id == DEFAULT_ID) != (made.name == DEFAULT and scope.id == DEFAULT_ID):
            raise _wrong("collection uid 0 belongs to _default._default and to nothing else")
        names.add(made.name)
        known[made.id] = made


def _wrong(why: str) -> Refusal:
    return Refusal(Status.EINVAL, f"manifest: {why}")


def _object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _wrong(f"a {what} must be an object")
    return value


def _list(table: dict[str, object], name: str) -> list[object]:
    value = table.get(name, [])
    if not isinstance(value, list):
        raise _wrong(f"{name} must be a list")
    return value


def _hex(table: dict[str, object], what: str) -> int:
    text = table.get("uid")
    if not isinstance(text, str) or not _HEX.fullmatch(text):
        raise _wrong(f"uid {text!r} of a {what} is not 1..16 hexadecimal digits in a string")
    return int(text, 16)


def _id(table: dict[str, object], what: str) -> int:
    number = _hex(table, what)
    if number > ID_MAX or 0 < number < FIRST_FREE_ID:
        raise _wrong(f"{what} uid {number:x} is reserved or too large")
    return number


def _name(table: dict[str, object], what: str) -> str:
    name = table.get("name")
    if not isinstance(name, str) or not (
        NAME.fullmatch(name)
        or name in (DEFAULT, SYSTEM)
        or (what == "collection" and name[:1] == "_")
    ):
        raise _wrong(
            f"{what} name {name!r}; allowed: 1..251 of letters, digits and _ - %, not starting "
            "with _ or %"
        )
    return name


def _ttl(table: dict[str, object]) -> int | None:
    value = table.get("maxTTL")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 2**31 - 1:
        raise _wrong(f"maxTTL {value!r}, allowed 0..2**31-1")
    return value


def _flag(table: dict[str, object], what: str) -> bool | None:
    value = table.get("history")
    if value is not None and not isinstance(value, bool):
        raise _wrong(f"history {value!r} of a {what}, allowed true or false")
    return value


def changes(old: Manifest, new: Manifest) -> list[Event]:
    """The system events that lead from one manifest to the next, in order.

    Refusal CANNOT_APPLY_MANIFEST when the new one is no successor.
    """
    _check_successor(old, new)
    uid = old.uid
    dropped = [item for item in old.collections.values() if item.id not in new.collections]
    scopes_made = [scope for scope in new.scopes.values() if scope.id not in old.scopes]
    made = [item for item in new.collections.values() if item.id not in old.collections]
    scopes_dropped = [scope for scope in old.scopes.values() if scope.id not in new.scopes]
    steps: list[tuple[SystemEventId, int, str, EventDetail]] = [
        *((SystemEventId.END_COLLECTION, item.id, "", _of(uid, item)) for item in dropped),
        *((SystemEventId.CREATE_SCOPE, one.id, one.name, _of(uid, one)) for one in scopes_made),
        *((SystemEventId.BEGIN_COLLECTION, item.id, item.name, _of(uid, item)) for item in made),
        *((SystemEventId.DROP_SCOPE, one.id, "", _of(uid, one)) for one in scopes_dropped),
    ]
    return [
        _event(*step, uid=new.uid if place == len(steps) - 1 else uid)
        for place, step in enumerate(steps)
    ]


def _of(uid: int, item: Collection | Scope) -> EventDetail:
    if isinstance(item, Scope):
        return EventDetail(manifest_uid=uid, scope_id=item.id)
    return EventDetail(
        manifest_uid=uid, scope_id=item.scope_id, collection_id=item.id, max_ttl=item.max_ttl
    )


def _event(event: SystemEventId, subject: int, name: str, detail: EventDetail, uid: int) -> Event:
    begins = event is SystemEventId.BEGIN_COLLECTION
    version = 1 if begins and detail.max_ttl is not None else 0
    told = EventDetail(
        manifest_uid=uid,
        scope_id=detail.scope_id,
        collection_id=detail.collection_id,
        max_ttl=detail.max_ttl,
    )
    return Event(event, version, subject, name.encode(), value_of(event, version, told))


def _check_successor(old: Manifest, new: Manifest) -> None:
    same = (new.scopes, new.collections) == (old.scopes, old.collections)
    if new.uid < old.uid or (new.uid == old.uid and not same):
        raise _cannot(f"uid {new.uid:x} does not follow {old.uid:x}")
    if DEFAULT_ID in new.collections and DEFAULT_ID not in old.collections:
        raise _cannot("the collection _default was dropped and cannot come back")
    for scope in old.scopes.values():
        kept = new.scopes.get(scope.id)
        if kept is not None and kept.name != scope.name:
            raise _cannot(f"scope {scope.id:x} was {scope.name} and cannot become {kept.name}")
    for item in old.collections.values():
        still = new.collections.get(item.id)
        if still is not None and still != item:
            raise _cannot(
                f"collection {item.id:x} ({item.name}) would change its name, scope, maxTTL "
                "or history"
            )


def _cannot(why: str) -> Refusal:
    return Refusal(Status.CANNOT_APPLY_MANIFEST, why)


def catching_up(known: Manifest, new: Manifest) -> list[Event]:
    """The events that lead a vbucket from the manifest it knows by events to a bucket's.

    None when it knows a newer one. What both have is the same thing, whatever its events left out.
    """
    if known.uid > new.uid:
        return []
    scopes = {one: new.scopes.get(one, scope) for one, scope in known.scopes.items()}
    collections = {one: new.collections.get(one, item) for one, item in known.collections.items()}
    if DEFAULT_ID in new.collections:
        collections[DEFAULT_ID] = new.collections[DEFAULT_ID]
    if (scopes, collections) == (new.scopes, new.collections):
        return []
    before = max(0, min(known.uid, new.uid - 1))
    return changes(Manifest(uid=before, scopes=scopes, collections=collections), new)


def followed(manifest: Manifest, event: int, name: str, detail: EventDetail) -> Manifest:
    """The manifest after one system event, as a replica's vbucket keeps it."""
    scopes, collections = dict(manifest.scopes), dict(manifest.collections)
    collection = detail.collection_id
    if event == SystemEventId.CREATE_SCOPE:
        scopes[detail.scope_id] = Scope(id=detail.scope_id, name=name)
    elif event == SystemEventId.DROP_SCOPE:
        scopes.pop(detail.scope_id, None)
    elif event == SystemEventId.BEGIN_COLLECTION and collection is not None:
        collections[collection] = Collection(
            id=collection, name=name, scope_id=detail.scope_id, max_ttl=detail.max_ttl
        )
    elif event == SystemEventId.END_COLLECTION and collection is not None:
        collections.pop(collection, None)
    uid = max(manifest.uid, detail.manifest_uid)
    return Manifest(uid=uid, scopes=scopes, collections=collections)
