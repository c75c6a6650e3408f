"""Numbers with names: each is the reference's."""

from __future__ import annotations

from headrace.wire.codec import LAYOUTS
from headrace.wire.layout import REQUEST
from headrace.wire.opcodes import Feature, Magic, Opcode, Status


def test_the_change_stream_opcodes_are_the_references() -> None:
    names = (
        *("OPEN", "ADD_STREAM", "CLOSE_STREAM", "STREAM_REQ", "GET_FAILOVER_LOG", "STREAM_END"),
        *("SNAPSHOT_MARKER", "MUTATION", "DELETION", "EXPIRATION", "FLUSH", "SET_VBUCKET_STATE"),
        *("NOOP", "BUFFER_ACK", "CONTROL", "SYSTEM_EVENT", "PREPARE", "SEQNO_ACKNOWLEDGED"),
        *("COMMIT", "ABORT", "SEQNO_ADVANCED", "OSO_SNAPSHOT", "CACHE_TRANSFER"),
        "CACHE_TRANSFER_END",
    )
    assert tuple(Opcode(number).name for number in range(0x50, 0x68)) == names


def test_every_opcode_has_a_layout() -> None:
    """A number with a name but no row could be neither sent nor read."""
    assert {row.opcode for row in LAYOUTS if row.kind == REQUEST} == set(Opcode)


def test_magics_know_their_kind() -> None:
    assert {magic for magic in Magic if magic.is_reply} == {0x81, 0x18, 0x83}
    assert {magic for magic in Magic if magic.is_flexible} == {0x08, 0x18}


def test_some_numbers_stand_where_clients_expect_them() -> None:
    assert Status(0x23) is Status.ROLLBACK
    assert Status(0x8D) is Status.STREAM_ID_INVALID
    assert Feature(0x12) is Feature.COLLECTIONS
