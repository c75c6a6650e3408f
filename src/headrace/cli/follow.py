"""What a conversation tells as it goes by: features granted, vbuckets asked about, when it began.

A reply carries a status where its request carried the vbucket, and a key carries a collection
prefix only after HELLO granted collections. A follower sees every item in order and remembers just
that.

Rules
- A reply belongs to the last request of the other direction with its opcode and opaque.
- At most `REQUESTS_MAX` open requests are kept per capture; the oldest is forgotten first.

Imports: wire, capture.conversation, capture.walk.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from headrace.wire.admin import Hello, HelloReply
from headrace.wire.opcodes import Feature, Opcode

if TYPE_CHECKING:
    from headrace.capture.conversation import Connection, Direction
    from headrace.capture.walk import Item

REQUESTS_MAX: Final = 1 << 16
WITHOUT_VBUCKET: Final = frozenset(
    int(opcode)
    for opcode in (
        Opcode.QUIT,
        Opcode.QUITQ,
        Opcode.KV_NOOP,
        Opcode.VERSION,
        Opcode.STAT,
        Opcode.VERBOSITY,
        Opcode.HELLO,
        Opcode.SASL_LIST_MECHS,
        Opcode.SASL_AUTH,
        Opcode.SASL_STEP,
        Opcode.GET_ALL_VB_SEQNOS,
        Opcode.OPEN,
        Opcode.NOOP,
        Opcode.BUFFER_ACK,
        Opcode.CONTROL,
        Opcode.CREATE_BUCKET,
        Opcode.DELETE_BUCKET,
        Opcode.LIST_BUCKETS,
        Opcode.SELECT_BUCKET,
        Opcode.GET_CLUSTER_CONFIG,
        Opcode.SET_COLLECTIONS_MANIFEST,
        Opcode.GET_COLLECTIONS_MANIFEST,
        Opcode.GET_COLLECTION_ID,
        Opcode.GET_SCOPE_ID,
        Opcode.GET_ERROR_MAP,
    )
)
"""Opcodes whose vbucket field means nothing: a 0 there is not vbucket 0."""


class Follower:
    """Remembers what later items need; `see` every item before asking about it.

    ``start_ns`` is the time of the first item, from which a reader counts.
    """

    def __init__(self) -> None:
        """Start knowing nothing."""
        self.start_ns: int | None = None
        self._collections: dict[int, bool] = {}
        self._vbuckets: OrderedDict[tuple[int, Direction, int, int], int] = OrderedDict()

    def see(self, item: Item) -> None:
        """Take note of one item."""
        if self.start_ns is None:
            self.start_ns = item.timestamp_ns
        message, frame = item.message, item.frame
        if isinstance(message, HelloReply):
            granted = Feature.COLLECTIONS in message.features
            self._collections[item.connection.number] = granted
        elif isinstance(message, Hello):
            # A second HELLO starts over: until it is answered nothing is granted.
            self._collections.pop(item.connection.number, None)
        if frame is not None and not frame.is_reply:
            key = (item.connection.number, item.direction, frame.opcode, frame.opaque)
            self._vbuckets[key] = frame.vbucket
            self._vbuckets.move_to_end(key)
            if len(self._vbuckets) > REQUESTS_MAX:
                self._vbuckets.popitem(last=False)

    def collections(self, connection: Connection) -> bool | None:
        """True when keys have a collection prefix here, False when not, None when nobody said."""
        return self._collections.get(connection.number)

    def vbucket(self, item: Item) -> int | None:
        """The vbucket a frame is about: its own, that of the request it answers, or none."""
        frame = item.frame
        if frame is None:
            return None
        vbucket: int | None = frame.vbucket
        if frame.is_reply:
            asked = item.direction.reverse
            key = (item.connection.number, asked, frame.opcode, frame.opaque)
            vbucket = self._vbuckets.get(key)
        return vbucket if vbucket or frame.opcode not in WITHOUT_VBUCKET else None
