"""Collections by name: what a manifest says, and the ids a stream is narrowed to.

Imports: errors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from headrace.errors import ConfigError, RemoteProtocolError

DEFAULT: Final = "_default"
NAMES_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Manifest:
    """Scopes and collections of a bucket: names to ids and back."""

    uid: int
    scopes: dict[str, int]
    collections: dict[tuple[str, str], int]

    def name_of(self, collection_id: int) -> str | None:
        """``scope.collection`` of an id, or None."""
        for (scope, collection), number in self.collections.items():
            if number == collection_id:
                return f"{scope}.{collection}"
        return None

    def collection_id(self, name: str | int) -> int:
        """The id of ``scope.collection`` or ``collection`` (of the default scope)."""
        if isinstance(name, int):
            return name
        scope, dot, collection = name.rpartition(".")
        found = self.collections.get((scope if dot else DEFAULT, collection))
        if found is None:
            known = [f"{s}.{c}" for s, c in self.collections]
            raise ConfigError(f"collection {name!r} does not exist; there are: {_some(known)}")
        return found

    def scope_id(self, name: str | int) -> int:
        """The id of a scope."""
        if isinstance(name, int):
            return name
        found = self.scopes.get(name)
        if found is None:
            raise ConfigError(f"scope {name!r} does not exist; there are: {_some([*self.scopes])}")
        return found


def read_manifest(data: bytes) -> Manifest:
    """Read the JSON a node sends."""
    try:
        said = json.loads(data)
        scopes = {scope["name"]: int(scope["uid"], 16) for scope in said["scopes"]}
        collections = {
            (scope["name"], collection["name"]): int(collection["uid"], 16)
            for scope in said["scopes"]
            for collection in scope.get("collections", ())
        }
        return Manifest(int(said["uid"], 16), scopes, collections)
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"collections manifest that cannot be read: {error}") from error


def _some(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"
