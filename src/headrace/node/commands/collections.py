"""Collections: SET/GET_COLLECTIONS_MANIFEST, GET_COLLECTION_ID, GET_SCOPE_ID.

Imports: wire, node.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from headrace.node.command import administering, reading
from headrace.node.manifest import parse_manifest
from headrace.node.refusal import Refusal
from headrace.wire import admin
from headrace.wire.opcodes import Datatype, Feature, Opcode, Status

if TYPE_CHECKING:
    from headrace.node.session import Session


def set_manifest(
    session: Session, message: admin.SetCollectionsManifest
) -> admin.SetCollectionsManifestReply:
    """Give the bucket its next manifest; every active vbucket gets the system events."""
    session.host.apply_manifest(parse_manifest(message.value))
    return admin.SetCollectionsManifestReply()


def get_manifest(
    session: Session,
    message: admin.GetCollectionsManifest,  # noqa: ARG001
) -> admin.GetCollectionsManifestReply:
    """Send the bucket's manifest."""
    value = json.dumps(session.host.manifest.to_json(), separators=(",", ":")).encode()
    datatype = Datatype.JSON if session.has(Feature.JSON) else 0
    return admin.GetCollectionsManifestReply(value=value, datatype=datatype)


def _name(message: admin.GetCollectionId | admin.GetScopeId) -> str:
    text = message.value or message.key
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(Status.EINVAL, "the name is not UTF-8") from error


def get_collection_id(
    session: Session, message: admin.GetCollectionId
) -> admin.GetCollectionIdReply:
    """Find the id of "scope.collection"."""
    manifest = session.host.manifest
    return admin.GetCollectionIdReply(
        manifest_uid=manifest.uid, collection_id=manifest.collection_named(_name(message))
    )


def get_scope_id(session: Session, message: admin.GetScopeId) -> admin.GetScopeIdReply:
    """Find the id of a scope; a collection behind a dot is left alone."""
    manifest = session.host.manifest
    scope = _name(message).partition(".")[0]
    return admin.GetScopeIdReply(manifest_uid=manifest.uid, scope_id=manifest.scope_named(scope))


ROWS: Final = (
    *administering(set_manifest, Opcode.SET_COLLECTIONS_MANIFEST),
    *reading(get_manifest, Opcode.GET_COLLECTIONS_MANIFEST),
    *reading(get_collection_id, Opcode.GET_COLLECTION_ID),
    *reading(get_scope_id, Opcode.GET_SCOPE_ID),
)
