"""Sub-document values: records with lengths inside, and what is refused in them."""

from __future__ import annotations

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.codec import decode, encode, to_frame
from headrace.wire.dialect import Dialect
from headrace.wire.frame import Frame
from headrace.wire.opcodes import Magic, Opcode, SubdocFlag
from headrace.wire.subdoc import (
    LookupResult,
    MutationResult,
    PathSpec,
    SubdocMultiLookup,
    SubdocMultiLookupReply,
    SubdocMultiMutation,
    SubdocMultiMutationReply,
    SubdocRequest,
)

DCP_7 = Dialect.DCP_7


def test_a_single_path_stands_before_its_value() -> None:
    message = SubdocRequest(
        operation=Opcode.SUBDOC_DICT_UPSERT, key=b"k", path=b"a.b", value=b"1", path_flags=1
    )
    frame = to_frame(message, DCP_7)
    assert (frame.opcode, frame.extras, frame.value) == (0xC8, b"\x00\x03\x01", b"a.b1")
    assert decode(frame, DCP_7) == message


def test_a_path_longer_than_the_value_is_refused() -> None:
    frame = Frame(
        magic=Magic.REQUEST, opcode=Opcode.SUBDOC_GET, extras=b"\0\x09\0", key=b"k", value=b"abc"
    )
    with pytest.raises(RemoteProtocolError, match="path claims 9 bytes and 3 follow"):
        decode(frame, DCP_7)


def test_a_lookup_of_two_paths_is_laid_out_as_the_reference_says() -> None:
    specs = (
        PathSpec(opcode=Opcode.SUBDOC_GET, flags=SubdocFlag.XATTR_PATH, path=b"$document"),
        PathSpec(opcode=Opcode.GET),
    )
    frame = to_frame(SubdocMultiLookup(key=b"k", specs=specs), DCP_7)
    assert frame.value.hex() == "c5040009" + b"$document".hex() + "00000000"
    reply = SubdocMultiLookupReply(results=(LookupResult(status=0, value=b"{}"),) * 2)
    assert to_frame(reply, DCP_7).value.hex() == ("0000" + "00000002" + "7b7d") * 2


def test_a_mutation_of_two_paths_is_laid_out_as_the_reference_says() -> None:
    specs = (PathSpec(opcode=Opcode.SUBDOC_COUNTER, path=b"n", value=b"5"),)
    frame = to_frame(SubdocMultiMutation(key=b"k", specs=specs), DCP_7)
    assert frame.value.hex() == "cf00" + "0001" + "00000001" + "6e" + "35"
    reply = SubdocMultiMutationReply(
        results=(
            MutationResult(index=0, status=0, value=b"6"),
            MutationResult(index=1, status=0xC0),
        )
    )
    assert to_frame(reply, DCP_7).value.hex() == "00" + "0000" + "00000001" + "36" + "01" + "00c0"


@pytest.mark.parametrize(
    ("opcode", "magic", "value", "sentence"),
    [
        (Opcode.SUBDOC_MULTI_LOOKUP, 0x80, "", "0 paths, allowed 1..16"),
        (Opcode.SUBDOC_MULTI_LOOKUP, 0x80, "c5000000" * 17, "17 paths, allowed 1..16"),
        (Opcode.SUBDOC_MULTI_LOOKUP, 0x80, "c500", "lookup path of 2 bytes, its head alone has 4"),
        (Opcode.SUBDOC_MULTI_LOOKUP, 0x80, "c5000005aa", "claims 5 bytes and 1 follow"),
        (Opcode.SUBDOC_MULTI_MUTATION, 0x80, "c800000100000009aa", "claims 10 bytes and 1 follow"),
        (Opcode.SUBDOC_MULTI_LOOKUP, 0x81, "000000000009", "result claims 9 bytes and 0 follow"),
        (Opcode.SUBDOC_MULTI_MUTATION, 0x81, "0000", "mutation result of 2 bytes"),
        (Opcode.SUBDOC_MULTI_MUTATION, 0x81, "000000" + "0000", "mutation result of 2 bytes"),
        (Opcode.SUBDOC_MULTI_MUTATION, 0x81, "000000" + "00000004aa", "claims 4 bytes and 1"),
    ],
)
def test_records_that_do_not_fit_are_refused(
    opcode: int, magic: int, value: str, sentence: str
) -> None:
    key = b"k" if magic == Magic.REQUEST else b""
    frame = Frame(magic=magic, opcode=opcode, key=key, value=bytes.fromhex(value))
    with pytest.raises(RemoteProtocolError, match=sentence):
        decode(frame, DCP_7)


def test_a_failed_path_cannot_carry_a_value() -> None:
    reply = SubdocMultiMutationReply(results=(MutationResult(index=0, status=0xC0, value=b"x"),))
    with pytest.raises(LocalProtocolError, match="failed path 0"):
        encode(reply, DCP_7)
    with pytest.raises(LocalProtocolError, match="17 paths"):
        encode(SubdocMultiMutation(key=b"k", specs=(PathSpec(opcode=1),) * 17), DCP_7)
