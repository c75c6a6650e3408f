"""What one stream's messages look like: layouts, markers, values, by everything agreed so far.

A `Shape` is made once, when a stream is accepted, from the dialect, the HELLO features, the flags
of OPEN, the controls and the filter; later controls do not change it.

Rules:

* Deletions have 21 bytes of extras with delete times, else 18; expirations have their own opcode
  only with delete times. The draft's mutations have 30 bytes.
* Commits go out as COMMIT only from memory and only to a consumer that takes part in synchronous
  writes; everyone else gets the mutation or deletion the commit made.
* A marker is V2.2 for disk snapshots when asked for, else V2.0 for consumers of synchronous
  writes, else V1; older dialects have their own.
* SEQNO_ADVANCED exists with collections only: without them a snapshot ends at the last seqno its
  reader is shown.

Spec: docs/protocol.md, "SNAPSHOT_MARKER", "MUTATION", "DELETION", "Snapshots".

Imports: store.transform, wire.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.store.transform import Compression, Transform
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.message import stream_id_info
from headrace.wire.messages import (
    OsoSnapshot,
    SeqnoAdvanced,
    SetVBucketState,
    SnapshotMarker,
    StreamEnd,
)
from headrace.wire.opcodes import (
    Datatype,
    Feature,
    MarkerFlag,
    OsoFlag,
    StreamEndReason,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.node.controls import Controls
    from headrace.node.filters import EventGate, StreamFilter
    from headrace.node.opening import OpenOptions
    from headrace.store.backfill import Backfill
    from headrace.store.model import MemorySnapshot
    from headrace.wire.frame import FrameInfo
    from headrace.wire.opcodes import VBucketState

# Released servers set the checkpoint flag on disk snapshots since 6.5.
DISK_FLAGS: Final = {
    Dialect.UPR_DRAFT: MarkerFlag.DISK,
    Dialect.UPR_2014: MarkerFlag.DISK,
    Dialect.DCP_3: MarkerFlag.DISK,
    Dialect.DCP_5: MarkerFlag.DISK,
    Dialect.DCP_7: MarkerFlag.DISK | MarkerFlag.CHECKPOINT,
}
# upr-2014 enumerates memory and disk; the draft says nothing at all.
WITHOUT_CHECKPOINTS: Final = frozenset({Dialect.UPR_DRAFT, Dialect.UPR_2014})
MARKER_HEADS_MAX: Final = 65_536
_RANGE: Final = Struct(">QQI")
"""A short marker's extras: start, end, flags."""
HISTORY_FLAGS: Final = MarkerFlag.HISTORY | MarkerFlag.MAY_DUPLICATE_KEYS
JSON_DIALECTS: Final = frozenset({Dialect.DCP_5, Dialect.DCP_7})
"""Dialects in which OPEN switches the JSON datatype on."""

ENDS_WITHOUT_COLLECTIONS: Final = {
    StreamEndReason.FILTER_EMPTY: StreamEndReason.FINISHED,
    StreamEndReason.LOST_PRIVILEGES: StreamEndReason.FINISHED,
}
ENDS_IN_THE_DRAFT: Final = {
    StreamEndReason.STATE_CHANGED: StreamEndReason.STATE_CHANGED,
    StreamEndReason.ROLLBACK: StreamEndReason.STATE_CHANGED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the connection has agreed on when a stream is accepted.

    ``long_markers``: V2.2 markers carry the high prepared seqno (52 bytes instead of 44).
    """

    dialect: Dialect
    features: Collection[int]
    collections: bool
    options: OpenOptions
    controls: Controls
    long_markers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How one stream writes."""

    terms: Terms
    vbucket: int
    opaque: int
    infos: tuple[FrameInfo, ...]
    memory: Transform
    disk: Transform

    @classmethod
    def of(
        cls,
        terms: Terms,
        *,
        vbucket: int,
        opaque: int,
        filter_: StreamFilter,
        only: frozenset[int] | None,
        gate: EventGate,
    ) -> Shape:
        """The shape of a stream; ``only`` are the collections whose documents pass now."""
        disk = _transform(terms, opaque=opaque, filter_=filter_, only=only, gate=gate)
        commits = terms.controls.sync_replication
        stream_id = filter_.stream_id
        return cls(
            terms=terms,
            vbucket=vbucket,
            opaque=opaque,
            infos=() if stream_id is None else (stream_id_info(stream_id),),
            memory=replace(disk, commits=True) if commits else disk,
            disk=disk,
        )

    def for_collections(self, only: frozenset[int] | None) -> Shape:
        """The same for another set of collections: a scope got new ones."""
        memory = replace(self.memory, only_collections=only)
        return replace(self, memory=memory, disk=replace(self.disk, only_collections=only))

    @property
    def can_acknowledge(self) -> bool:
        """Whether a marker can ask to be answered."""
        return self.terms.dialect not in WITHOUT_CHECKPOINTS

    @property
    def can_advance(self) -> bool:
        """Whether the reader can be told of a seqno that carries nothing for it."""
        return self.terms.collections

    # -- messages -------------------------------------------------------------------------------

    def memory_marker(
        self,
        snapshot: MemorySnapshot,
        *,
        start: int,
        end: int,
        checkpoint: bool,
        acked: bool = False,
        purge_seqno: int = 0,
        high_prepared_seqno: int = 0,
    ) -> bytes:
        """The marker of a snapshot read from memory; a replica's may be one it got from disk.

        ``acked``: it asks to be answered. What was purged before it came from that disk is missing
        in memory, too: its readers must hear of it.
        """
        if snapshot.from_disk:
            flags = DISK_FLAGS[self.terms.dialect]
        else:
            flags = MarkerFlag.MEMORY
            if checkpoint and self.terms.dialect not in WITHOUT_CHECKPOINTS:
                flags |= MarkerFlag.CHECKPOINT
        if acked:
            flags |= MarkerFlag.ACK
        controls = self.terms.controls
        tells_purge = snapshot.from_disk and controls.purge_in_markers
        if not (controls.sync_replication or tells_purge):
            return self._marker(start, end, flags)
        more = {
            "max_visible_seqno": snapshot.max_visible_seqno,
            "high_completed_seqno": snapshot.high_completed_seqno if snapshot.from_disk else 0,
        }
        if tells_purge:
            more["purge_seqno"] = min(purge_seqno, end)
            if self.terms.long_markers:
                more["high_prepared_seqno"] = high_prepared_seqno
        return self._marker(start, end, flags, **more)

    def disk_marker(self, view: Backfill, *, start: int, end: int, history: bool) -> bytes:
        """The marker of a snapshot read from disk; ``history``: every version is in it."""
        flags = DISK_FLAGS[self.terms.dialect] | (HISTORY_FLAGS if history else MarkerFlag(0))
        controls = self.terms.controls
        if not (controls.sync_replication or controls.purge_in_markers):
            return self._marker(start, end, flags)
        more = {
            "max_visible_seqno": view.max_visible_seqno,
            "high_completed_seqno": view.high_completed_seqno,
        }
        if controls.purge_in_markers:
            more["purge_seqno"] = view.purge_seqno
            if self.terms.long_markers:
                more["high_prepared_seqno"] = view.high_prepared_seqno
        return self._marker(start, end, flags, **more)

    def _marker(self, start: int, end: int, flags: MarkerFlag, **more: int) -> bytes:
        dialect = self.terms.dialect
        if not more:
            head = _marker_head(dialect, self.vbucket, self.opaque, self.infos)
            if head:
                return head + _RANGE.pack(start, end, flags)
        if dialect is Dialect.UPR_DRAFT:
            return encode(SnapshotMarker(vbucket=self.vbucket, opaque=self.opaque), dialect)
        return encode(
            SnapshotMarker(
                vbucket=self.vbucket,
                opaque=self.opaque,
                frame_infos=self.infos,
                start_seqno=start,
                end_seqno=end,
                flags=flags,
                **more,
            ),
            dialect,
        )

    def seqno_advanced(self, seqno: int) -> bytes:
        """Nothing of this stream lies between its last item and ``seqno``."""
        return encode(
            SeqnoAdvanced(
                vbucket=self.vbucket, opaque=self.opaque, frame_infos=self.infos, by_seqno=seqno
            ),
            self.terms.dialect,
        )

    def out_of_order(self, flag: OsoFlag) -> bytes:
        """A snapshot out of seqno order begins or ends."""
        return encode(
            OsoSnapshot(
                vbucket=self.vbucket, opaque=self.opaque, frame_infos=self.infos, oso_flags=flag
            ),
            self.terms.dialect,
        )

    def state_change(self, state: VBucketState) -> bytes:
        """The consumer is asked to give its vbucket a state."""
        return encode(
            SetVBucketState(
                vbucket=self.vbucket, opaque=self.opaque, frame_infos=self.infos, state=state
            ),
            self.terms.dialect,
        )

    def stream_end(self, reason: StreamEndReason) -> bytes:
        """The stream's last message."""
        if reason is StreamEndReason.ROLLBACK:  # defined, and sent as a change of state by everyone
            reason = StreamEndReason.STATE_CHANGED
        if self.terms.dialect is Dialect.UPR_DRAFT:
            reason = ENDS_IN_THE_DRAFT.get(reason, StreamEndReason.FINISHED)
        elif not self.terms.collections:
            reason = ENDS_WITHOUT_COLLECTIONS.get(reason, reason)
        return encode(
            StreamEnd(
                vbucket=self.vbucket, opaque=self.opaque, frame_infos=self.infos, reason=reason
            ),
            self.terms.dialect,
        )


@lru_cache(MARKER_HEADS_MAX)
def _marker_head(
    dialect: Dialect, vbucket: int, opaque: int, infos: tuple[FrameInfo, ...]
) -> bytes:
    """What a stream's short markers begin with; empty where they do not end with a range.

    Live streams send a marker with nearly every change: the codec would be half of their cost.
    """
    if dialect is Dialect.UPR_DRAFT:
        return b""
    made = encode(
        SnapshotMarker(
            vbucket=vbucket,
            opaque=opaque,
            frame_infos=infos,
            start_seqno=1,
            end_seqno=2,
            flags=MarkerFlag.MEMORY,
        ),
        dialect,
    )
    whole = made.endswith(_RANGE.pack(1, 2, MarkerFlag.MEMORY))
    return made[: -_RANGE.size] if whole else b""


def _transform(
    terms: Terms,
    *,
    opaque: int,
    filter_: StreamFilter,
    only: frozenset[int] | None,
    gate: EventGate,
) -> Transform:
    options, controls = terms.options, terms.controls
    snappy = Feature.SNAPPY in terms.features
    mask = Datatype.XATTR if options.xattrs or options.keep_datatype else Datatype.RAW
    if terms.dialect in JSON_DIALECTS or Feature.JSON in terms.features:
        mask |= Datatype.JSON
    compression = Compression.INFLATE
    if snappy:
        mask |= Datatype.SNAPPY
        compression = Compression.DEFLATE if controls.force_compression else Compression.AS_STORED
    return Transform(
        opaque=opaque,
        stream_id=filter_.stream_id,
        collections=terms.collections,
        only_collections=None if filter_.legacy else only,
        mutation_extras=30 if terms.dialect is Dialect.UPR_DRAFT else 31,
        deletion_extras=21 if options.delete_times else 18,
        expiry_opcode=controls.expiry_opcode and options.delete_times,
        values=options.values,
        xattrs=options.xattrs,
        keep_datatype=options.keep_datatype,
        deleted_user_xattrs=options.deleted_user_xattrs,
        datatype_mask=int(mask),
        compression=compression,
        sync_writes=controls.sync_writes,
        system_event=gate if terms.collections else None,
    )
