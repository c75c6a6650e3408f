"""Checksums, macros and flags of sub-document work, without a socket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.node.refusal import Refusal
from headrace.node.subdocument import (
    Identity,
    OpenDocument,
    PathWork,
    change,
    crc32c,
    expand,
    first_body,
    look_up,
)
from headrace.store import Bucket, BucketSettings
from headrace.wire.opcodes import Opcode, Status, SubdocFlag, VBucketState

if TYPE_CHECKING:
    from collections.abc import Iterator

IDENTITY = Identity(cas=0x0102_0304_0506_0708, seqno=0x1F)
XATTR = int(SubdocFlag.XATTR_PATH)


@pytest.fixture
def document() -> Iterator[OpenDocument]:
    """An open document with one xattr."""
    with Bucket.open(None, BucketSettings(vbuckets=1)) as bucket:
        vbucket = bucket.create_vbucket(0, VBucketState.ACTIVE)
        vbucket.store(b"\0k", b'{"a":1}')
        yield OpenDocument(vbucket, vbucket.get(b"\0k"), {"x": b'{"y": 2}'}, b'{"a":1}')


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE306_9283
    assert crc32c(b"") == 0


def test_the_cas_macro_writes_the_bytes_in_little_endian_order() -> None:
    assert IDENTITY.cas_text == "0x0807060504030201"


@pytest.mark.parametrize("text", ["1", '"plain"', '"${unfinished"', '{"a":"${Mutation.CAS}"}'])
def test_what_is_no_macro_stays_as_it_is(document: OpenDocument, text: str) -> None:
    assert expand(document, text.encode(), IDENTITY) == text.encode()


def test_macros_of_the_document_tell_what_it_was(document: OpenDocument) -> None:
    assert json.loads(expand(document, b'"${$document.seqno}"', IDENTITY)) == "0x0000000000000001"
    for text, status in (
        (b'"${$document.nope}"', Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO),
        (b'"${Mutation.nope}"', Status.SUBDOC_XATTR_UNKNOWN_MACRO),
    ):
        with pytest.raises(Refusal) as caught:
            expand(document, text, IDENTITY)
        assert caught.value.status == status


def test_an_xattr_is_changed_in_place_and_goes_with_its_last_name(document: OpenDocument) -> None:
    def work(opcode: Opcode, path: bytes, value: bytes = b"") -> None:
        made = PathWork(opcode, XATTR, path, value)
        change(document, made, lambda: IDENTITY, creating=False)

    work(Opcode.SUBDOC_DICT_UPSERT, b"x.z", b"3")
    assert document.xattrs == {"x": b'{"y": 2,"z":3}'}
    work(Opcode.SUBDOC_DELETE, b"x")
    assert document.xattrs == {}
    assert not document.changed_body


@pytest.mark.parametrize(
    ("work", "status"),
    [
        (PathWork(Opcode.SUBDOC_GET, 0x40, b"a", b""), Status.EINVAL),
        (PathWork(Opcode.SUBDOC_GET, XATTR, b"", b""), Status.XATTR_EINVAL),
        (PathWork(Opcode.SUBDOC_GET, XATTR, b"n" * 17, b""), Status.XATTR_EINVAL),
        (PathWork(Opcode.SUBDOC_DICT_ADD, 0, b"a", b"1"), Status.SUBDOC_INVALID_COMBO),
        (PathWork(Opcode.GET, 0, b"a", b""), Status.EINVAL),
        (PathWork(Opcode.SUBDOC_GET, 0x10, b"a", b""), Status.SUBDOC_XATTR_INVALID_FLAG_COMBO),
    ],
)
def test_a_lookup_that_cannot_be_says_why(
    document: OpenDocument, work: PathWork, status: Status
) -> None:
    with pytest.raises(Refusal) as caught:
        look_up(document, work)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("works", "body"),
    [
        ([PathWork(Opcode.SUBDOC_DICT_ADD, 0, b"a", b"1")], "{}"),
        ([PathWork(Opcode.SUBDOC_DICT_ADD, XATTR, b"x", b"1")], "{}"),
        ([PathWork(Opcode.SUBDOC_ARRAY_PUSH_LAST, 0, b"", b"1")], "[]"),
        ([PathWork(Opcode.SUBDOC_ARRAY_INSERT, 0, b"[0]", b"1")], "[]"),
    ],
)
def test_a_new_document_begins_as_its_first_path_says(works: list[PathWork], body: str) -> None:
    assert first_body(works) == body
