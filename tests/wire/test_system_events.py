"""Values of system events."""

from __future__ import annotations

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.messages import SystemEvent
from headrace.wire.opcodes import SystemEventId
from headrace.wire.system_events import EventDetail, detail_of, value_of

CASES = [
    (SystemEventId.BEGIN_COLLECTION, 0, "0102030405060708090a0b0c0d0e0f10"),
    (SystemEventId.BEGIN_COLLECTION, 1, "0102030405060708090a0b0c0d0e0f1011121314"),
    (SystemEventId.END_COLLECTION, 0, "0102030405060708090a0b0c0d0e0f10"),
    (SystemEventId.CREATE_SCOPE, 0, "0102030405060708090a0b0c"),
    (SystemEventId.DROP_SCOPE, 0, "0102030405060708090a0b0c"),
]


@pytest.mark.parametrize(("event", "version", "value"), CASES)
def test_counting_bytes_land_in_their_fields(event: int, version: int, value: str) -> None:
    """Scope stands before collection."""
    data = bytes.fromhex(value)
    detail = detail_of(SystemEvent(by_seqno=1, event=event, version=version, value=data))
    assert detail == EventDetail(
        manifest_uid=0x0102030405060708,
        scope_id=0x090A0B0C,
        collection_id=0x0D0E0F10 if len(data) > 12 else None,
        max_ttl=0x11121314 if len(data) > 16 else None,
    )
    assert value_of(event, version, detail) == data


def test_flatbuffers_and_events_to_come_stay_bytes() -> None:
    for event, version in ((0, 2), (5, 2), (9, 0)):
        assert detail_of(SystemEvent(by_seqno=1, event=event, version=version, value=b"x")) is None


def test_a_wrong_length_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="with a value of 3 bytes; allowed: 16"):
        detail_of(SystemEvent(by_seqno=1, event=0, version=0, value=b"abc"))
    with pytest.raises(LocalProtocolError, match="system event 5 has no version 0"):
        value_of(5, 0, EventDetail(manifest_uid=1, scope_id=2))
