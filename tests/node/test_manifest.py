"""Manifests: what they may say, and the system events between two of them."""

from __future__ import annotations

import pytest

from headrace.node.manifest import (
    FIRST,
    Event,
    Manifest,
    catching_up,
    changes,
    followed,
    from_json,
    parse_manifest,
)
from headrace.node.refusal import Refusal
from headrace.wire.messages import SystemEvent
from headrace.wire.opcodes import Status, SystemEventId
from headrace.wire.system_events import EventDetail, detail_of


def made(uid: str, *scopes: tuple[str, str, list[dict[str, object]]]) -> Manifest:
    return from_json(
        {
            "uid": uid,
            "scopes": [
                {"name": name, "uid": number, "collections": collections}
                for name, number, collections in scopes
            ],
        }
    )


DEFAULT: dict[str, object] = {"name": "_default", "uid": "0"}
OLD = made(
    "a",
    ("_default", "0", [DEFAULT, {"name": "old", "uid": "8"}]),
    ("gone", "9", [{"name": "inner", "uid": "a"}]),
)
NEW = made(
    "b",
    ("_default", "0", [DEFAULT, {"name": "new", "uid": "b", "maxTTL": 9}]),
    ("come", "c", [{"name": "inner", "uid": "d"}]),
)


def told(event: Event) -> EventDetail:
    message = SystemEvent(
        by_seqno=1, event=event.event, version=event.version, key=event.key, value=event.value
    )
    detail = detail_of(message)
    assert detail is not None
    return detail


def test_a_change_becomes_events_in_one_order() -> None:
    events = changes(OLD, NEW)
    assert [(event.event, event.subject, event.key) for event in events] == [
        (SystemEventId.END_COLLECTION, 0x8, b""),
        (SystemEventId.END_COLLECTION, 0xA, b""),
        (SystemEventId.CREATE_SCOPE, 0xC, b"come"),
        (SystemEventId.BEGIN_COLLECTION, 0xB, b"new"),
        (SystemEventId.BEGIN_COLLECTION, 0xD, b"inner"),
        (SystemEventId.DROP_SCOPE, 0x9, b""),
    ]


def test_only_the_last_event_carries_the_new_uid() -> None:
    assert [told(event).manifest_uid for event in changes(OLD, NEW)] == [0xA] * 5 + [0xB]


def test_a_longest_ttl_makes_the_longer_event() -> None:
    events = {event.subject: event for event in changes(OLD, NEW)}
    assert (events[0xB].version, told(events[0xB]).max_ttl) == (1, 9)
    assert (events[0xD].version, told(events[0xD]).max_ttl) == (0, None)


def test_the_same_manifest_again_is_no_change() -> None:
    assert changes(OLD, OLD) == []
    assert from_json(OLD.to_json()) == OLD


def test_names_are_found_and_their_absence_is_told_apart() -> None:
    assert OLD.collection_named("gone.inner") == 0xA
    assert OLD.collection_named(".") == 0
    for name, status in (("no.x", Status.UNKNOWN_SCOPE), ("gone.x", Status.UNKNOWN_COLLECTION)):
        with pytest.raises(Refusal) as caught:
            OLD.collection_named(name)
        assert (caught.value.status, caught.value.manifest_uid) == (status, 0xA)


def test_a_manifest_that_is_too_big_or_too_deep_is_refused() -> None:
    with pytest.raises(Refusal) as caught:
        parse_manifest(b" " * (1024 * 1024 + 1))
    assert caught.value.status == Status.E2BIG
    with pytest.raises(Refusal):
        parse_manifest(b"[" * 100_000)


def test_the_first_manifest_is_the_default_collection() -> None:
    assert list(FIRST.collections) == [0]
    assert FIRST.collections[0].name == "_default"


def test_following_the_events_of_a_change_leads_to_the_new_manifest() -> None:
    """A replica knows its producer's collections by their events alone."""
    reached = OLD
    for event in changes(OLD, NEW):
        reached = followed(reached, event.event, event.key.decode(), told(event))
    assert reached == NEW


def test_a_vbucket_from_elsewhere_catches_up_with_its_bucket() -> None:
    """It knows the collections of its source by events, and those leave some facts out."""
    source = made("b", ("_default", "0", [DEFAULT, {"name": "new", "uid": "b", "history": True}]))
    known = made("b", ("_default", "0", [DEFAULT, {"name": "new", "uid": "b"}]))
    assert catching_up(known, source) == [], "nothing is begun twice: that would empty it"
    more = made(
        "c",
        (
            "_default",
            "0",
            [DEFAULT, {"name": "new", "uid": "b", "history": True}, {"name": "x", "uid": "c"}],
        ),
    )
    assert [(one.event, one.subject) for one in catching_up(known, more)] == [
        (SystemEventId.BEGIN_COLLECTION, 12)
    ]
    assert catching_up(more, known) == [], "a newer one is not taken back"
    same_uid = made("b", ("_default", "0", [DEFAULT]))
    assert [one.event for one in catching_up(known, same_uid)] == [SystemEventId.END_COLLECTION]
