"""The places of a frame at rest are those of the wire."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.store import layout as at
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.messages import (
    Abort,
    Deletion,
    Expiration,
    Mutation,
    Prepare,
    SeqnoAdvanced,
    SnapshotMarker,
    SystemEvent,
)

COMMON: dict[str, Any] = {"vbucket": 0x0102, "opaque": 0x03040506, "cas": 0x0708090A0B0C0D0E}
SEQNO, REV = 0x1112131415161718, 0x2122232425262728


def field(frame: bytes, place: int, size: int) -> int:
    """A number in a frame."""
    return int.from_bytes(frame[place : place + size], "big")


def test_the_header() -> None:
    frame = encode(
        Mutation(by_seqno=SEQNO, key=b"key", value=b"value", datatype=5, **COMMON), Dialect.DCP_7
    )
    assert (frame[0], frame[at.OPCODE_AT]) == (at.MAGIC, at.MUTATION)
    assert (field(frame, at.KEY_SIZE_AT, 2), frame[at.EXTRAS_SIZE_AT]) == (3, at.MUTATION_EXTRAS)
    assert (frame[at.DATATYPE_AT], field(frame, at.VBUCKET_AT, 2)) == (5, COMMON["vbucket"])
    assert field(frame, at.BODY_SIZE_AT, 4) == len(frame) - at.HEADER
    assert field(frame, at.OPAQUE_AT, 4) == COMMON["opaque"]
    assert field(frame, at.CAS_AT, 8) == COMMON["cas"]


def test_a_mutation() -> None:
    message = Mutation(
        by_seqno=SEQNO,
        rev_seqno=REV,
        flags=0x31,
        expiration=0x32,
        nru=0x33,
        key=b"k",
        value=b"",
        **COMMON,
    )
    frame = encode(message, Dialect.DCP_7)
    assert (field(frame, at.SEQNO_AT, 8), field(frame, at.REV_AT, 8)) == (SEQNO, REV)
    assert (field(frame, at.FLAGS_AT, 4), field(frame, at.EXPIRY_AT, 4)) == (0x31, 0x32)
    assert (field(frame, at.NMETA_AT, 2), frame[at.NRU_AT]) == (0, 0x33)


@pytest.mark.parametrize(
    ("kind", "opcode", "extras"),
    [
        (Deletion, at.DELETION, at.DELETION_EXTRAS),
        (Expiration, at.EXPIRATION, at.EXPIRATION_EXTRAS),
    ],
)
def test_a_tombstone(kind: type[Deletion | Expiration], opcode: int, extras: int) -> None:
    frame = encode(
        kind(by_seqno=SEQNO, rev_seqno=REV, delete_time=0x41, key=b"k", value=b"", **COMMON),
        Dialect.DCP_7,
    )
    assert (frame[at.OPCODE_AT], frame[at.EXTRAS_SIZE_AT]) == (opcode, extras)
    assert field(frame, at.DELETE_TIME_AT, 4) == 0x41


def test_sync_writes() -> None:
    prepare = encode(
        Prepare(
            by_seqno=SEQNO, rev_seqno=REV, deleted=1, durability=2, key=b"k", value=b"", **COMMON
        ),
        Dialect.DCP_7,
    )
    assert (prepare[at.OPCODE_AT], prepare[at.EXTRAS_SIZE_AT]) == (at.PREPARE, at.PREPARE_EXTRAS)
    assert (prepare[at.PREPARE_DELETED_AT], prepare[at.PREPARE_LEVEL_AT]) == (1, 2)
    abort = encode(Abort(prepared_seqno=1, abort_seqno=SEQNO, key=b"k"), Dialect.DCP_7)
    assert (abort[at.OPCODE_AT], abort[at.EXTRAS_SIZE_AT]) == (at.ABORT, at.ABORT_EXTRAS)
    assert field(abort, at.ABORT_SEQNO_AT, 8) == SEQNO


def test_events_and_what_is_told() -> None:
    event = encode(
        SystemEvent(by_seqno=SEQNO, event=0, version=1, key=b"k", value=bytes(20)), Dialect.DCP_7
    )
    assert (event[at.OPCODE_AT], event[at.EXTRAS_SIZE_AT]) == (at.SYSTEM_EVENT, at.EVENT_EXTRAS)
    assert (field(event, at.EVENT_AT, 4), event[at.EVENT_VERSION_AT]) == (0, 1)
    marker = encode(SnapshotMarker(start_seqno=1, end_seqno=2, flags=1), Dialect.DCP_7)
    assert (marker[at.OPCODE_AT], marker[at.EXTRAS_SIZE_AT]) == (at.MARKER, at.MARKER_EXTRAS)
    advanced = encode(SeqnoAdvanced(by_seqno=SEQNO), Dialect.DCP_7)
    assert (advanced[1], advanced[4]) == (at.ADVANCED, at.ADVANCED_EXTRAS)
    assert field(advanced, at.SEQNO_AT, 8) == SEQNO


@pytest.mark.parametrize("letter", ["V_", "I_", "E_", "M_", "S_"])
def test_no_two_columns_share_a_place(letter: str) -> None:
    columns = {
        name: value
        for name, value in vars(at).items()
        if name.startswith(letter) and not name.endswith("COLUMNS")
    }
    assert len(set(columns.values())) == len(columns)
    assert max(columns.values()) < getattr(at, f"{letter}COLUMNS")
