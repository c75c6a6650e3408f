"""From options to a running reader: where every vbucket starts, where it ends, what is asked for.

Imports: client.*, errors, history, protocol, wire.
"""

from __future__ import annotations

import dataclasses
import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.client.changes import CAS_SECOND, Kind
from headrace.client.courses import Course, Courses, course_of
from headrace.client.filters import Filter
from headrace.client.gate import Gate
from headrace.client.intake import Intake
from headrace.client.options import ReadOptions
from headrace.client.reader import Changes, Follow
from headrace.client.shelf import Shelf
from headrace.client.steering import Steering, jitter
from headrace.client.tokens import BEGINNING, TokenSet
from headrace.errors import ConfigError
from headrace.history import SEQNO_MAX, Boundaries, ResumeToken, Seqno, VBucketId
from headrace.protocol.talk import Position, StreamPlan
from headrace.wire.opcodes import StreamFlag

if TYPE_CHECKING:
    from headrace.client.bucket import Bucket
    from headrace.client.changes import Trouble

LOG: Final = logging.getLogger("headrace.client")
FILTERS: Final = ("key_prefix", "value_contains", "kinds", "where", "expression")
_OPTIONS: Final = frozenset(one.name for one in dataclasses.fields(ReadOptions))


def changes_of(bucket: Bucket, given: dict[str, object]) -> Changes:
    """A reader of batches."""
    options, wanted = split_options(given)
    return Changes(lambda: start(bucket, options, bulk=True), wanted, options.on_rollback)


def follow_of(bucket: Bucket, given: dict[str, object]) -> Follow:
    """A reader of single changes; from now on unless told otherwise."""
    options, wanted = split_options({"since": "now", **given})
    return Follow(lambda: start(bucket, options, bulk=False), wanted, "yield")


def split_options(given: dict[str, object]) -> tuple[ReadOptions, Filter]:
    """The options of the streams and those of the filter; an unknown one is a ConfigError."""
    unknown = [name for name in given if name not in _OPTIONS and name not in FILTERS]
    if unknown:
        allowed = ", ".join(sorted([*_OPTIONS, *FILTERS]))
        raise ConfigError(f"option {unknown[0]!r} is unknown; allowed: {allowed}")
    # The names were checked just now; ReadOptions and Filter check the values.
    streams: dict[str, Any] = {name: value for name, value in given.items() if name in _OPTIONS}
    for name in ("vbuckets", "collections", "controls"):
        if isinstance(streams.get(name), list | range | set | frozenset):
            streams[name] = tuple(streams[name])
    if isinstance(streams.get("collections"), str):
        streams["collections"] = (streams["collections"],)
    filters: dict[str, Any] = {name: value for name, value in given.items() if name in FILTERS}
    for name in ("key_prefix", "value_contains"):
        if isinstance(filters.get(name), str):
            filters[name] = filters[name].encode()
    if filters.get("kinds") is not None:
        filters["kinds"] = frozenset(Kind(kind) for kind in filters["kinds"])
    return ReadOptions(**streams), Filter(**filters)


def start(bucket: Bucket, options: ReadOptions, *, bulk: bool) -> tuple[Steering, TokenSet]:
    """Settle where everything starts and ends; no stream is open yet."""
    intake, began, highs = prepare(bucket, options, bulk=bulk)
    steering = Steering(
        intake,
        bucket.access,
        options.settings(bucket.access, bucket.name),
        bulk=bulk,
        inflate=options.inflate,
        on_trouble=options.on_trouble or log_trouble,
    )
    steering.high_seqnos.update(highs)
    return steering, began


def prepare(
    bucket: Bucket, options: ReadOptions, *, bulk: bool
) -> tuple[Intake, TokenSet, dict[int, int]]:
    """What both skins need: the intake with its courses, the tokens at the start, high seqnos."""
    bucket.refresh()
    wanted = _vbuckets(bucket, options)
    highs = bucket.seqnos()
    began = _began(bucket, options, wanted)
    # A time is no position of the application's: it holds nothing that could be withdrawn.
    handed = 0 if isinstance(options.since, datetime) else None
    courses = Courses(
        [_course(vbucket, began, options, highs, handed) for vbucket in wanted],
        bucket.cluster_map,
        plan=_plan(bucket, options),
        random=jitter,
        patience_seconds=options.patience,
        backfills_max=options.backfills_max,
    )
    shelf = Shelf(whole=options.whole, memory_max=options.shelf_memory) if bulk else None
    intake = Intake(courses, shelf, gate=_gate(bucket, options), listener=options.on_event)
    return intake, began, highs


def _vbuckets(bucket: Bucket, options: ReadOptions) -> tuple[int, ...]:
    if options.vbuckets is None:
        return tuple(range(bucket.vbuckets))
    wrong = [vbucket for vbucket in options.vbuckets if not 0 <= vbucket < bucket.vbuckets]
    if wrong:
        raise ConfigError(
            f"vbucket {wrong[0]}, bucket {bucket.name!r} has 0..{bucket.vbuckets - 1}"
        )
    return tuple(sorted(set(options.vbuckets)))


def _began(bucket: Bucket, options: ReadOptions, vbuckets: tuple[int, ...]) -> TokenSet:
    since = options.since
    if isinstance(since, TokenSet):
        since.check_bucket(bucket=bucket.name, uuid=bucket.uuid, vbuckets=bucket.vbuckets)
        return since
    if since == "now":
        return bucket.tokens_now()
    if isinstance(since, datetime):
        return tokens_at_time(bucket, since, vbuckets)
    return bucket.tokens_at_beginning()


def _course(
    vbucket: int,
    began: TokenSet,
    options: ReadOptions,
    highs: dict[int, int],
    handed: int | None,
) -> Course:
    position, high = began.position(vbucket), highs.get(vbucket, 0)
    end = SEQNO_MAX
    if options.until == "now":
        end = Seqno(high)
    elif isinstance(options.until, TokenSet):
        end = options.until.seqno(vbucket)
    return course_of(vbucket, position, end_seqno=end, high_seqno=high, handed=handed)


def _plan(bucket: Bucket, options: ReadOptions) -> StreamPlan:
    flags = StreamFlag(0)
    if options.active_only:
        flags |= StreamFlag.ACTIVE_ONLY
    if options.ignore_purged:
        flags |= StreamFlag.IGNORE_PURGED_TOMBSTONES
    ids: tuple[int, ...] = ()
    scope = uid = None
    if options.collections or options.scope is not None:
        manifest = bucket.manifest()
        ids = tuple(manifest.collection_id(name) for name in options.collections)
        scope = None if options.scope is None else manifest.scope_id(options.scope)
        uid = manifest.uid
    return StreamPlan(
        vbucket=VBucketId(0),
        flags=flags,
        collections=ids,
        scope=scope,
        manifest_uid=uid,
        stream_id=options.stream_id,
    )


def log_trouble(trouble: Trouble) -> None:
    """Say it in the log, where nobody else listens."""
    LOG.warning("%s", trouble)


def tokens_at_time(bucket: Bucket, time: datetime, vbuckets: tuple[int, ...]) -> TokenSet:
    """The latest place in every vbucket before any change whose CAS is not before ``time``.

    No server has an index of times: all keys are read once, without values. A CAS may lie behind
    those before it (a document replicated from elsewhere), so the place is before the first change
    that is late enough, and older ones may follow it. Deletions that were purged are not missed:
    they are older than anything that is left.
    """
    threshold = np.uint64(max(0, int(time.timestamp() * CAS_SECOND)))
    first: dict[int, int] = {}
    tokens = bucket.tokens_at_beginning()
    with changes_of(
        bucket, {"until": "now", "vbuckets": vbuckets, "no_value": True, "whole": False}
    ) as reader:
        for batch in reader:
            late = batch.column("cas").to_numpy() >= threshold
            numbers = batch.column("vbucket").to_numpy()[late]
            seqnos = batch.column("seqno").to_numpy()[late]
            for vbucket in np.unique(numbers).tolist():
                least = int(seqnos[numbers == vbucket].min())
                first[vbucket] = min(least, first.get(vbucket, least))
        ends = reader.tokens
    for vbucket in vbuckets:
        end = ends.position(vbucket).token
        seqno = Seqno(first[vbucket] - 1) if vbucket in first else end.seqno
        if seqno and end.log is not None:
            token = ResumeToken.at_boundary(end.branch, seqno, end.log)
            tokens = tokens.updated({vbucket: Position(token, Boundaries())})
        else:
            tokens = tokens.updated({vbucket: BEGINNING})
    return tokens


def _gate(bucket: Bucket, options: ReadOptions) -> Gate | None:
    """Hold back what is not on disk; a bucket that never reaches one has nothing to wait for."""
    if not options.persisted_only or bucket.cluster_map.is_memory_only:
        return None
    return Gate(bucket.persisted)
