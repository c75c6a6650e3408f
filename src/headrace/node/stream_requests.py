"""A stream request understood: from a message to the decision, and to the stream it makes.

The decision itself is `headrace.protocol.decision.decide`; here the request, the vbucket and the
connection become its inputs.

Imports: history, protocol, wire, node.controls, node.disk_pass, node.event_tables, node.filters,
node.producer_context, node.shape, node.stream, node.takeover.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from headrace.history import BranchId, Seqno
from headrace.node.controls import OutOfOrder
from headrace.node.event_tables import event_rewriter
from headrace.node.filters import OPEN_GATE, PASS_ALL, EventGate, StreamFilter, read_filter
from headrace.node.manifest import DEFAULT_ID
from headrace.node.shape import Shape, Terms
from headrace.node.stream import Stream
from headrace.node.takeover import Takeover
from headrace.protocol.decision import (
    Accepted,
    ConnectionView,
    Refused,
    StreamStart,
    VBucketView,
    decide,
)
from headrace.wire.opcodes import Status, StreamFlag, VBucketState

if TYPE_CHECKING:
    from collections.abc import Container

    from headrace.node.controls import Controls
    from headrace.node.disk_pass import OsoLimits
    from headrace.node.manifest import Manifest
    from headrace.node.opening import OpenOptions
    from headrace.node.producer_context import Host, ProducerSettings, Session
    from headrace.protocol.decision import Decision
    from headrace.store.vbucket import VBucket
    from headrace.wire.messages import StreamRequest

STREAM_FLAGS_ALL: Final = sum(StreamFlag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The connection at the moment of a request."""

    session: Session
    host: Host
    options: OpenOptions
    controls: Controls
    settings: ProducerSettings
    terms: Terms = field(init=False)

    def __post_init__(self) -> None:
        """Gather the terms that streams accepted now will share."""
        terms = Terms(
            dialect=self.session.dialect,
            features=self.session.features,
            collections=self.session.collections,
            options=self.options,
            controls=self.controls,
            long_markers=self.settings.long_markers,
        )
        object.__setattr__(self, "terms", terms)


@dataclass(frozen=True, slots=True)
class Answer:
    """The decision, and what an accepted stream needs besides."""

    decision: Decision
    vbucket: VBucket | None
    filter: StreamFilter
    purge_seqno: int = 0
    """The vbucket's when it was decided; a compaction may move it before the stream reads."""


def answer(message: StreamRequest, asker: Asker, live: Container[tuple[int, int]]) -> Answer:
    """Decide a stream request; ``live`` are the (vbucket, stream id) this connection streams."""
    vbucket = asker.host.bucket.find(message.vbucket)
    malformed = _malformed(message)
    if malformed is not None:
        return Answer(malformed, vbucket, PASS_ALL)
    manifest = asker.host.manifest
    found = read_filter(
        message.value,
        collections=asker.session.collections,
        controls=asker.controls,
        manifest=manifest,
    )
    filter_ = PASS_ALL if isinstance(found, Refused) else found
    asked = _asked(message, filter_)
    connection = ConnectionView(
        needs_noop=asker.options.xattrs or asker.session.collections,
        noop_enabled=asker.controls.noop,
        filter_refusal=found if isinstance(found, Refused) else None,
        stream_is_live=(message.vbucket, filter_.stream_id or 0) in live,
        backfill_full=asker.settings.backfill_is_full(),
    )
    view = None if vbucket is None else _view(vbucket, asked, filter_, manifest)
    decision = decide(asked, view, connection)
    if isinstance(decision, Accepted):
        decision = _not_served(asked, view, filter_, asker) or decision
    return Answer(decision, vbucket, filter_, 0 if view is None else view.purge)


def _not_served(
    asked: StreamStart, view: VBucketView | None, filter_: StreamFilter, asker: Asker
) -> Refused | None:
    if StreamFlag.CACHE_TRANSFER in asked.flags:
        return Refused(Status.NOT_SUPPORTED, "cache transfer is not served")
    if StreamFlag.TAKEOVER not in asked.flags:
        return None
    assert view is not None
    if view.state != VBucketState.ACTIVE:
        return Refused(
            Status.NOT_MY_VBUCKET,
            f"the vbucket is {view.state.name.lower()}, a takeover needs active",
        )
    # What the stream leaves out would be lost with our copy.
    default_alone = asker.host.manifest.collections.keys() <= {DEFAULT_ID}
    everything = filter_.passes_all or (filter_.legacy and default_alone)
    if StreamFlag.DISK_ONLY in asked.flags or not everything or not asker.options.values:
        return Refused(
            Status.EINVAL,
            "a takeover streams everything: all collections, values, disk and memory",
        )
    return None


def _malformed(message: StreamRequest) -> Refused | None:
    if message.flags & ~STREAM_FLAGS_ALL:
        return Refused(
            Status.EINVAL, f"stream flags {message.flags:#x}, allowed {STREAM_FLAGS_ALL:#x}"
        )
    if message.frame_infos:
        return Refused(Status.EINVAL, "a stream request names its stream id in its value")
    return None


def _asked(message: StreamRequest, filter_: StreamFilter) -> StreamStart:
    start = Seqno(message.start_seqno)
    low, high = message.snap_start_seqno, message.snap_end_seqno
    return StreamStart(
        start=start,
        end=Seqno(message.end_seqno),
        branch=BranchId(message.vb_uuid),
        # The draft's request carries no snapshot.
        snapshot_start=start if low is None else Seqno(low),
        snapshot_end=start if high is None else Seqno(high),
        flags=StreamFlag(message.flags),
        purge_seqno=Seqno(filter_.purge_seqno),
    )


def _view(
    vbucket: VBucket, asked: StreamStart, filter_: StreamFilter, manifest: Manifest
) -> VBucketView:
    high, purge = vbucket.high_seqno, vbucket.purge_seqno
    filter_high: int | None = None
    wants_latest = StreamFlag.TO_LATEST in asked.flags
    if not filter_.passes_all and (wants_latest or 0 < asked.start < purge):
        living = filter_.living(manifest) or frozenset()
        # A reader that was told of a later seqno, or whose last tombstone was purged since, is at
        # the end of its collections, not beyond it.
        filter_high = max(vbucket.collection_high_seqno(living), min(asked.start, high))
    return VBucketView(
        state=vbucket.state,
        high=Seqno(high),
        log=vbucket.failover_log,
        purge=Seqno(purge),
        persisted=Seqno(vbucket.persisted_seqno),
        filter_high=None if filter_high is None else Seqno(filter_high),
        filling=vbucket.initial_disk_snapshot,
    )


def make_stream(message: StreamRequest, accepted: Accepted, found: Answer, asker: Asker) -> Stream:
    """The stream of an accepted request; it has sent nothing yet."""
    vbucket, filter_ = found.vbucket, found.filter
    assert vbucket is not None
    host = asker.host
    tables = asker.controls.flatbuffers_events
    rewrite = event_rewriter(lambda: host.manifest) if tables else None
    gate = OPEN_GATE if filter_.is_open and rewrite is None else EventGate(filter_, rewrite=rewrite)
    shape = Shape.of(
        asker.terms,
        vbucket=vbucket.id,
        opaque=message.opaque,
        filter_=filter_,
        only=filter_.living(asker.host.manifest),
        gate=gate,
    )
    takeover = StreamFlag.TAKEOVER in StreamFlag(message.flags)
    return Stream(
        source=asker.host,
        vbucket=vbucket,
        accepted=accepted,
        flags=StreamFlag(message.flags),
        shape=shape,
        filter_=filter_,
        gate=gate,
        cursor_name=f"{asker.options.name}:{vbucket.id}:{filter_.stream_id or 0}",
        oso=None if takeover else _oso_limits(asker),
        purge_seqno=found.purge_seqno,
        takeover=Takeover(acknowledges=shape.can_acknowledge) if takeover else None,
    )


def _oso_limits(asker: Asker) -> OsoLimits | None:
    out_of_order = asker.controls.out_of_order
    if out_of_order is OutOfOrder.NO:
        return None
    tells_end = out_of_order is OutOfOrder.WITH_SEQNO_ADVANCED
    return replace(asker.settings.oso, tells_end=tells_end)
