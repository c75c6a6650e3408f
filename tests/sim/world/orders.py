"""Orders that a manager gives to nodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.wire import admin
from headrace.wire.opcodes import Datatype, VBucketState

if TYPE_CHECKING:
    from headrace.cluster.chains import Chain
    from headrace.wire.message import Request


def set_vbucket(vbucket: int, state: VBucketState, chain: Chain = ()) -> admin.SetVBucket:
    """The order, as the manager gives it."""
    value = json.dumps({"topology": [list(chain)]}).encode() if chain else b""
    return admin.SetVBucket(
        vbucket=vbucket,
        state=int(state),
        value=value,
        datatype=Datatype.JSON if value else Datatype.RAW,
    )


def deletion(vbucket: int) -> list[Request]:
    """The orders that make a node forget its copy."""
    return [
        set_vbucket(vbucket, VBucketState.DEAD),
        admin.DelVBucket(vbucket=vbucket, value=b"async=0"),
    ]
