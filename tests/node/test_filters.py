"""Stream filters: what may be asked, what passes, when a filter runs empty."""

from __future__ import annotations

import pytest

from headrace.node.controls import Controls
from headrace.node.filters import (
    LEGACY,
    PASS_ALL,
    EventGate,
    StreamFilter,
    read_filter,
)
from headrace.node.manifest import FIRST, from_json
from headrace.protocol.decision import Refused
from headrace.store.model import SystemEventView
from headrace.wire.opcodes import Status, SystemEventId

MANIFEST = from_json(
    {
        "uid": "5",
        "scopes": [
            {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
            {
                "name": "shop",
                "uid": "8",
                "collections": [{"name": "fruit", "uid": "9"}, {"name": "veg", "uid": "8a"}],
            },
        ],
    }
)
PLAIN = Controls()


def asked(
    value: bytes, *, collections: bool = True, controls: Controls = PLAIN
) -> StreamFilter | Refused:
    return read_filter(value, collections=collections, controls=controls, manifest=MANIFEST)


ACCEPTED = {
    "nothing": (b"", PASS_ALL),
    "a uid": (b'{"uid":"0"}', PASS_ALL),
    "the newest uid": (b'{"uid":"5"}', PASS_ALL),
    "unknown keys beside known ones": (b'{"uid":"1","color":"red"}', PASS_ALL),
    "one collection": (b'{"collections":["9"]}', StreamFilter(collections=frozenset({9}))),
    "two": (b'{"collections":["9","8a"]}', StreamFilter(collections=frozenset({9, 0x8A}))),
    "the default one": (b'{"collections":["0"]}', StreamFilter(collections=frozenset({0}))),
    "a scope": (b'{"scope":"8"}', StreamFilter(scope=8)),
    "a purge seqno": (b'{"purge_seqno":"77"}', StreamFilter(purge_seqno=77)),
    "a cache transfer's wish": (b'{"cts":{"free_memory":1}}', PASS_ALL),
}


@pytest.mark.parametrize("case", ACCEPTED.values(), ids=ACCEPTED)
def test_a_filter_is_read(case: tuple[bytes, StreamFilter]) -> None:
    assert asked(case[0]) == case[1]


REFUSED = {
    "an empty object": (b"{}", Status.EINVAL),
    "unknown keys alone": (b'{"color":"red"}', Status.EINVAL),
    "half of it": (b'{"collections":[8', Status.EINVAL),
    "no object": (b"[]", Status.EINVAL),
    "too deep": (b"[" * 50_000, Status.EINVAL),
    "not UTF-8": (b'{"uid":"\xff"}', Status.EINVAL),
    "both kinds": (b'{"collections":["9"],"scope":"8"}', Status.EINVAL),
    "no collection": (b'{"collections":[]}', Status.EINVAL),
    "a number for a collection": (b'{"collections":[9]}', Status.EINVAL),
    "a name for a collection": (b'{"collections":["fruit"]}', Status.EINVAL),
    "a number for a scope": (b'{"scope":8}', Status.EINVAL),
    "a number for a uid": (b'{"uid":1}', Status.EINVAL),
    "a purge seqno that is a number": (b'{"purge_seqno":1}', Status.EINVAL),
    "a purge seqno of 65 bits": (b'{"purge_seqno":"18446744073709551616"}', Status.EINVAL),
    "a wish that is no object": (b'{"uid":"0","cts":1}', Status.EINVAL),
    "an unknown collection": (b'{"collections":["77"]}', Status.UNKNOWN_COLLECTION),
    "an unknown scope": (b'{"scope":"77"}', Status.UNKNOWN_SCOPE),
    "a manifest of the future": (b'{"uid":"99","collections":["0"]}', Status.MANIFEST_IS_AHEAD),
    "a stream id nobody enabled": (b'{"uid":"0","sid":1}', Status.STREAM_ID_INVALID),
    "more than the limit": (b'{"uid":"0","x":"' + b"x" * (1 << 20) + b'"}', Status.EINVAL),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_wrong_filter_is_refused(case: tuple[bytes, int]) -> None:
    answer = asked(case[0])
    assert isinstance(answer, Refused)
    assert answer.status == case[1]


WITH_IDS = Controls(stream_ids=True)


@pytest.mark.parametrize("value", [b"", b'{"uid":"0"}', b'{"uid":"0","sid":0}'])
def test_where_streams_have_ids_one_is_needed(value: bytes) -> None:
    answer = asked(value, controls=WITH_IDS)
    assert isinstance(answer, Refused)
    assert answer.status is Status.STREAM_ID_INVALID


@pytest.mark.parametrize("sid", [b"true", b"65536", b'"1"', b"1.5", b"-1"])
def test_a_stream_id_is_a_number_of_16_bits(sid: bytes) -> None:
    answer = asked(b'{"uid":"0","sid":' + sid + b"}", controls=WITH_IDS)
    assert isinstance(answer, Refused)


def test_a_stream_id_alone_is_no_filter() -> None:
    answer = asked(b'{"sid":3}', controls=WITH_IDS)
    assert isinstance(answer, Refused)
    assert answer.status is Status.EINVAL
    known = asked(b'{"collections":["9"],"sid":3}', controls=WITH_IDS)
    assert known == StreamFilter(collections=frozenset({9}), stream_id=3)


def test_without_collections_only_the_default_one_is_streamed() -> None:
    assert asked(b"", collections=False) == LEGACY
    assert LEGACY.living(MANIFEST) == frozenset({0})
    refusal = asked(b'{"uid":"0"}', collections=False)
    assert isinstance(refusal, Refused)
    assert refusal.status is Status.EINVAL


def test_without_the_default_collection_there_is_nothing_for_a_legacy_client() -> None:
    without = from_json(
        {"uid": "6", "scopes": [{"name": "_default", "uid": "0", "collections": []}]}
    )
    answer = read_filter(b"", collections=False, controls=PLAIN, manifest=without)
    assert isinstance(answer, Refused)
    assert answer.status is Status.UNKNOWN_COLLECTION


def test_a_filter_and_sync_writes_exclude_each_other() -> None:
    answer = asked(b'{"collections":["9"]}', controls=Controls(sync_writes=True))
    assert isinstance(answer, Refused)
    assert answer.status is Status.NOT_SUPPORTED
    assert asked(b'{"uid":"0"}', controls=Controls(sync_writes=True)) == PASS_ALL


def test_a_scope_holds_the_collections_of_its_moment() -> None:
    scope = StreamFilter(scope=8)
    assert scope.living(FIRST) == frozenset()
    assert scope.living(MANIFEST) == frozenset({9, 0x8A})
    assert PASS_ALL.living(MANIFEST) is None


def event(kind: int, subject: int, *, seqno: int = 1, scope: int = 8) -> SystemEventView:
    value = (5).to_bytes(8, "big") + scope.to_bytes(4, "big") + subject.to_bytes(4, "big")
    return SystemEventView(seqno, kind, 0, subject, b"name", value)


BEGIN, END = SystemEventId.BEGIN_COLLECTION, SystemEventId.END_COLLECTION
CREATE, DROP = SystemEventId.CREATE_SCOPE, SystemEventId.DROP_SCOPE
PASSES = [
    (PASS_ALL, event(BEGIN, 9), True),
    (PASS_ALL, event(CREATE, 8), True),
    (StreamFilter(collections=frozenset({9})), event(BEGIN, 9), True),
    (StreamFilter(collections=frozenset({9})), event(BEGIN, 10), False),
    (StreamFilter(collections=frozenset({9})), event(CREATE, 9), False),
    (StreamFilter(scope=8), event(BEGIN, 10), True),
    (StreamFilter(scope=8), event(BEGIN, 10, scope=7), False),
    (StreamFilter(scope=8), event(CREATE, 8), True),
    (StreamFilter(scope=8), event(CREATE, 7), False),
]


@pytest.mark.parametrize(("filter_", "seen", "passes"), PASSES)
def test_an_event_passes_with_its_collection_or_scope(
    filter_: StreamFilter, seen: SystemEventView, passes: bool
) -> None:
    assert (EventGate(filter_)(seen) is not None) == passes


def test_a_changed_collection_is_news_for_flatbuffers_readers_only() -> None:
    assert EventGate(PASS_ALL)(event(SystemEventId.MODIFY_COLLECTION, 9)) is None


def test_a_filter_is_empty_when_its_last_collection_was_sent_away() -> None:
    gate = EventGate(StreamFilter(collections=frozenset({9, 10})))
    for seqno, subject in ((5, 9), (8, 10)):
        gate(event(END, subject, seqno=seqno))
        gate(event(END, subject, seqno=seqno))  # the store may ask twice
    gate.passed(7)
    assert not gate.is_empty
    gate.passed(8)
    assert gate.is_empty


def test_a_scope_filter_is_empty_when_its_scope_goes() -> None:
    gate = EventGate(StreamFilter(scope=8))
    gate(event(END, 9, seqno=5))
    gate.passed(5)
    assert not gate.is_empty
    gate(event(DROP, 8, seqno=6))
    gate.passed(6)
    assert gate.is_empty


def test_an_open_filter_never_runs_empty() -> None:
    gate = EventGate(PASS_ALL)
    gate(event(END, 9, seqno=5))
    gate.passed(9)
    assert not gate.is_empty
