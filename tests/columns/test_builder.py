"""Messages -> rows, the slow and obvious way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.columns.builder import Builder
from headrace.columns.schema import SCHEMA, Event
from headrace.errors import RemoteProtocolError
from headrace.wire import messages as m
from headrace.wire.message import Request, stream_id_info


def rows_of(builder: Builder) -> list[dict[str, object]]:
    batch = builder.batch()
    assert batch.schema.equals(SCHEMA)
    batch.validate(full=True)
    rows: list[dict[str, object]] = batch.to_pylist()
    return rows


def set_columns(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if value is not None}


MARKER = m.SnapshotMarker(vbucket=3, start_seqno=1, end_seqno=9, flags=5)
HEADER = {"vbucket": 3, "cas": 4, "datatype": 1, "opaque": 5}
"""What the header of every example says."""
EXPECTED: dict[str, tuple[Request, dict[str, object]]] = {
    "mutation": (
        m.Mutation(
            by_seqno=2,
            rev_seqno=6,
            flags=7,
            expiration=8,
            lock_time=9,
            nru=10,
            key=b"k",
            value=b"v",
        ),
        {"event": 1, "seqno": 2, "rev": 6, "flags": 7, "expiry": 8, "lock_time": 9, "nru": 10},
    ),
    "mutation without nru": (
        m.Mutation(by_seqno=2, nru=None, key=b"k", value=b"v"),
        {"event": 1, "seqno": 2, "rev": 0, "flags": 0, "expiry": 0, "lock_time": 0},
    ),
    "deletion with a delete time": (
        m.Deletion(by_seqno=2, rev_seqno=6, delete_time=0, key=b"k", value=b"v"),
        {"event": 2, "seqno": 2, "rev": 6, "delete_time": 0},
    ),
    "deletion without": (
        m.Deletion(by_seqno=2, rev_seqno=6, nmeta=0, key=b"k", value=b"v"),
        {"event": 2, "seqno": 2, "rev": 6},
    ),
    "expiration": (
        m.Expiration(by_seqno=2, rev_seqno=6, delete_time=7, key=b"k", value=b"v"),
        {"event": 3, "seqno": 2, "rev": 6, "delete_time": 7},
    ),
    "prepare": (
        m.Prepare(by_seqno=2, durability=3, deleted=1, key=b"k", value=b"v"),
        {
            "event": 4,
            "seqno": 2,
            "rev": 0,
            "flags": 0,
            "expiry": 0,
            "lock_time": 0,
            "nru": 0,
            "durability": 3,
            "deleted": 1,
        },
    ),
    "commit": (
        m.Commit(prepared_seqno=2, commit_seqno=3, key=b"k"),
        {"event": 5, "seqno": 3, "prepared_seqno": 2, "value": b""},
    ),
    "abort": (
        m.Abort(prepared_seqno=2, abort_seqno=4, key=b"k"),
        {"event": 6, "seqno": 4, "prepared_seqno": 2, "value": b""},
    ),
    "system event": (
        m.SystemEvent(by_seqno=2, event=1, version=2, key=b"k", value=b"v"),
        {"event": 7, "seqno": 2, "system_event": 1, "system_version": 2},
    ),
    "seqno advanced": (
        m.SeqnoAdvanced(by_seqno=2),
        {"event": 8, "seqno": 2, "key": b"", "value": b""},
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_message_fills_its_columns_and_no_other(name: str) -> None:
    message, expected = EXPECTED[name]
    builder = Builder()
    assert builder.add(MARKER)
    assert builder.add(replace(message, vbucket=3, cas=4, datatype=1, opaque=5))
    (row,) = rows_of(builder)
    snapshot = {"snapshot_start": 1, "snapshot_end": 9, "snapshot_flags": 5}
    assert set_columns(row) == {"key": b"k", "value": b"v", **HEADER, **snapshot, **expected}


def test_every_event_has_an_example() -> None:
    assert {expected["event"] for _, expected in EXPECTED.values()} == set(Event)


def test_a_batch_begins_where_the_last_one_ended() -> None:
    builder = Builder()
    for seqno in (1, 2):
        builder.add(m.SeqnoAdvanced(by_seqno=seqno))
    assert builder.rows == 2
    assert [row["seqno"] for row in rows_of(builder)] == [1, 2]
    assert rows_of(builder) == []


def test_with_collections_the_key_is_split_but_a_systems_events_name_is_not() -> None:
    builder = Builder(collections=True)
    builder.add(m.Mutation(by_seqno=1, key=b"\x88\x01key"))
    builder.add(m.SystemEvent(by_seqno=2, event=0, version=0, key=b"\x88\x01name"))
    mutation, event = rows_of(builder)
    assert (mutation["collection_id"], mutation["key"]) == (0x88, b"key")
    assert (event["collection_id"], event["key"]) == (None, b"\x88\x01name")


def test_a_bad_prefix_is_refused_and_makes_no_row() -> None:
    builder = Builder(collections=True)
    with pytest.raises(RemoteProtocolError, match="shortest form"):
        builder.add(m.Mutation(by_seqno=1, key=b"\x80\x00key"))
    assert builder.rows == 0


def test_extended_metadata_is_cut_off_the_value() -> None:
    builder = Builder()
    builder.add(m.Mutation(by_seqno=1, nmeta=3, key=b"k", value=b"valueext"))
    assert rows_of(builder)[0]["value"] == b"value"
    with pytest.raises(RemoteProtocolError, match="9 bytes of extended metadata in a value of 8"):
        builder.add(m.Mutation(by_seqno=1, nmeta=9, key=b"k", value=b"valueext"))


def test_snapshots_belong_to_a_stream() -> None:
    builder = Builder()
    sid = (stream_id_info(7),)
    builder.add(m.SnapshotMarker(vbucket=1, start_seqno=1, end_seqno=2, flags=1))
    builder.add(m.SnapshotMarker(vbucket=1, start_seqno=3, end_seqno=4, flags=2, frame_infos=sid))
    builder.add(m.SeqnoAdvanced(vbucket=1, by_seqno=1))
    builder.add(m.SeqnoAdvanced(vbucket=1, by_seqno=2, frame_infos=sid))
    builder.add(m.SeqnoAdvanced(vbucket=2, by_seqno=3))
    rows = rows_of(builder)
    assert [row["snapshot_start"] for row in rows] == [1, 3, None]
    assert [row["stream_id"] for row in rows] == [None, 7, None]


@pytest.mark.parametrize("end", [m.StreamEnd(reason=0), m.OsoSnapshot(oso_flags=1)])
def test_after_the_end_of_a_stream_no_snapshot_is_in_force(end: Request) -> None:
    builder = Builder()
    builder.add(m.SnapshotMarker(start_seqno=1, end_seqno=2, flags=1))
    assert not builder.add(end)
    builder.add(m.SeqnoAdvanced(by_seqno=1))
    assert rows_of(builder)[0]["snapshot_flags"] is None


def test_the_empty_marker_has_no_range_and_no_flags() -> None:
    builder = Builder()
    builder.add(m.SnapshotMarker())
    builder.add(m.SeqnoAdvanced(by_seqno=1))
    (row,) = rows_of(builder)
    assert (row["snapshot_start"], row["snapshot_end"], row["snapshot_flags"]) == (None, None, 0)


def test_what_is_no_row_is_left_to_others() -> None:
    builder = Builder()
    for message in (m.Noop(), m.NoopReply(), m.SetVBucketState(state=1), m.CacheTransferEnd()):
        assert not builder.add(message)
    assert builder.rows == 0
