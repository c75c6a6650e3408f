"""The 76 byte-exact vectors of the seeds, their corrected twins and derived ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import one_frame, split_frames
from headrace.wire.messages import SystemEvent
from headrace.wire.opcodes import MarkerFlag, StreamEndReason
from headrace.wire.system_events import detail_of
from headrace.wire.values import split_collection

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "vectors.json").read_text()
)
CORRECTED = {
    "marker_20_enum": "marker_20_enum_ok",
    "marker_v1_flags": "marker_v1_memory_ok",
    "marker_v1": "marker_v1_memory_ok",
    "marker_v2_0": "marker_v2_0_ok",
    "stream_resp_ok": "stream_resp_ok_ok",
    "stream_resp_rollback": "stream_resp_rollback_value",
}
"""Seed drawings that are wrong, and the bytes a correct writer sends instead."""
MALFORMED = set(CORRECTED) - {"stream_resp_rollback"}
BY_NAME = {vector["name"]: vector for vector in VECTORS}
NAMES = [vector["name"] for vector in VECTORS]

HEADER = {"magic", "opcode", "keylen", "extlen", "bodylen", "framing_extlen"}
RENAMED = {"vb_seqnos": "seqnos"}


def load(name: str) -> tuple[bytes, Dialect, dict[str, Any]]:
    """Return a vector's bytes, dialect and fields."""
    vector = BY_NAME[name]
    return bytes.fromhex(vector["hex"]), Dialect.named(vector["dialect"]), vector["fields"]


def said(message: Any, name: str, dialect: Dialect) -> Any:  # noqa: ANN401 - any message
    """Return what the message says under the vector's field name."""
    if name == "type":  # upr-2014's enumerated type, translated to flags
        flags = message.flags
        return {MarkerFlag.MEMORY: 0, MarkerFlag.DISK: 1}[MarkerFlag(flags)]
    if name == "status_code":
        reason = message.reason
        if dialect is Dialect.UPR_DRAFT:
            return {StreamEndReason.FINISHED: 0, StreamEndReason.STATE_CHANGED: 1}[reason]
        return reason
    if name in ("failover_log", "vb_seqnos"):
        lines = getattr(message, RENAMED.get(name, name))
        return [
            [line.uuid, line.seqno] if name == "failover_log" else [line.vbucket, line.seqno]
            for line in lines
        ]
    if name in ("key_hex", "value_hex"):
        return getattr(message, name.removesuffix("_hex")).hex()
    if name in ("key", "value"):
        return getattr(message, name).decode()
    if name == "features":
        return list(message.features)
    if name == "items":
        return [
            {
                key: (
                    getattr(item, key.removesuffix("_hex")).hex()
                    if key == "key_hex"
                    else item.value.decode()
                    if key == "value"
                    else getattr(item, key)
                )
                for key in (
                    "cas",
                    "by_seqno",
                    "rev_seqno",
                    "flags",
                    "expiration",
                    "datatype",
                    "cache_hint",
                    "key_hex",
                    "value",
                )
            }
            for item in message.items
        ]
    if isinstance(message, SystemEvent) and not hasattr(message, name):
        return getattr(detail_of(message), name)
    if name == "collection_id" and not hasattr(message, name):
        return split_collection(message.key)[0]
    return getattr(message, name)


def check_fields(message: object, fields: dict[str, Any], dialect: Dialect) -> None:
    """Every field of the vector that is the message's is as the vector says."""
    for name, expected in fields.items():
        if name in HEADER or name in ("marker_version", "ack_size"):
            continue
        assert said(message, name, dialect) == expected, name


def test_there_are_76_vectors() -> None:
    """Losing some would make the tests below pass for the wrong reason."""
    assert len(NAMES) == 76
    named = {v["name"] for v in VECTORS if (v["note"] or "").startswith("MALFORMED")}
    assert named == MALFORMED


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MALFORMED])
def test_a_sound_vector_decodes_to_its_fields_and_back_to_its_bytes(name: str) -> None:
    """Strict decoding, then encoding, is the identity."""
    data, dialect, fields = load(name)
    [frame] = split_frames(data)
    message = decode(frame, dialect)
    check_fields(message, fields, dialect)
    again = encode(
        message, dialect, historic=name in ("mutation_28", "marker_28_hcs", "marker_v2_1_44")
    )
    assert again.hex() == bytes.fromhex(BY_NAME[CORRECTED.get(name, name)]["hex"]).hex()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MALFORMED])
def test_header_fields_of_a_sound_vector_are_the_frames(name: str) -> None:
    """The vectors also give the lengths and numbers of the header."""
    data, _, fields = load(name)
    [frame] = split_frames(data)
    sizes = {
        "keylen": len(frame.key),
        "extlen": len(frame.extras),
        "bodylen": frame.body_size,
        "framing_extlen": len(frame.framing),
        "magic": frame.magic,
        "opcode": frame.opcode,
    }
    for field in HEADER & set(fields):
        assert sizes[field] == fields[field], field


@pytest.mark.parametrize("name", sorted(MALFORMED))
def test_a_malformed_drawing_is_rejected_strict(name: str) -> None:
    """On a socket the header's lengths are the truth."""
    data, dialect, _ = load(name)
    with pytest.raises(RemoteProtocolError) as caught:
        decode(one_frame(data), dialect)
    assert caught.value.offset == 8


@pytest.mark.parametrize("name", sorted(MALFORMED))
def test_a_malformed_drawing_is_read_tolerant_and_written_corrected(name: str) -> None:
    """Where the boundary is known from outside, the size tells the layout."""
    data, dialect, fields = load(name)
    message = decode(one_frame(data, tolerant=True), dialect, strict=False)
    check_fields(message, fields, dialect)
    assert encode(message, dialect).hex() == expected_bytes(name)


def expected_bytes(name: str) -> str:
    """Return the corrected bytes, with the header fields the drawing had."""
    return bytes.fromhex(BY_NAME[CORRECTED[name]]["hex"]).hex()


def test_layouts_that_are_only_read_are_not_written_by_accident() -> None:
    """History is repeated on request only."""
    for name in ("marker_28_hcs", "marker_v2_1_44"):
        data, dialect, _ = load(name)
        message = decode(one_frame(data), dialect)
        with pytest.raises(LocalProtocolError, match="cannot be said in dcp-7"):
            encode(message, dialect)
