"""Messages become what the store keeps."""

from __future__ import annotations

import pytest

from headrace.node.replica_parts import parts_of
from headrace.store.plain import build_frame
from headrace.wire import messages as m
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect

ITEMS = [
    m.Mutation(
        by_seqno=7, rev_seqno=2, flags=3, expiration=4, nru=5, key=b"\x09k", value=b"v", cas=6
    ),
    m.Deletion(by_seqno=7, rev_seqno=2, delete_time=9, key=b"\x09k", value=b"x", cas=6, datatype=4),
    m.Expiration(by_seqno=7, rev_seqno=2, delete_time=9, key=b"\x09k", cas=6),
    m.SystemEvent(by_seqno=7, event=3, version=0, key=b"shop", value=bytes(12)),
    m.Prepare(
        by_seqno=7, rev_seqno=2, flags=3, expiration=4, nru=5, deleted=1, durability=2, key=b"\x09k"
    ),
    m.Commit(prepared_seqno=5, commit_seqno=7, key=b"\x09k"),
    m.Abort(prepared_seqno=5, abort_seqno=7, key=b"\x09k"),
    m.SeqnoAdvanced(by_seqno=7),
]


@pytest.mark.parametrize("message", ITEMS, ids=lambda one: type(one).__name__)
def test_an_item_at_rest_is_its_frame(message: m.Mutation) -> None:
    """What the store would lay down is what a dcp-7 producer sends."""
    parts = parts_of(message, collections=True)
    assert parts.seqno == 7
    frame = build_frame(
        parts.opcode,
        vbucket=parts.vbucket,
        extras=parts.extras,
        key=parts.key,
        value=parts.value,
        datatype=parts.datatype,
        cas=parts.cas,
    )
    assert frame == encode(message, Dialect.DCP_7)


def test_keys_get_the_default_collection_where_the_peer_knows_none() -> None:
    item = m.Mutation(by_seqno=1, key=b"k")
    assert parts_of(item, collections=False).key == b"\0k"
    assert parts_of(item, collections=True).key == b"k"


def test_extended_metadata_is_cut_off() -> None:
    changed = m.Mutation(by_seqno=1, key=b"k", value=b"valueMETA", nmeta=4)
    assert parts_of(changed, collections=False).value == b"value"
    deleted = m.Deletion(by_seqno=1, key=b"k", value=b"META", nmeta=4)
    assert parts_of(deleted, collections=False).value == b""
