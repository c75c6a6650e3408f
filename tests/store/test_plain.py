"""One frame at a time: what each kind of reader gets, spelled out."""

from __future__ import annotations

import pytest

from headrace.store import Compression, SystemEventView, Transform
from headrace.store import layout as at
from headrace.store.plain import (
    DELETION_FIELDS,
    EVENT_FIELDS,
    EXPIRATION_FIELDS,
    MUTATION_FIELDS,
    build_frame,
    rewrite_frame,
    split_frame,
)
from headrace.wire.messages import Deletion, Expiration, Mutation, SystemEvent
from headrace.wire.values import deflate, join_xattrs
from tests.store.frames import messages

XATTRS = {"_sys": b"1", "user": b"2"}


def mutation(value: bytes = b"doc", datatype: int = 0, key: bytes = b"\0key") -> bytes:
    """A mutation at rest."""
    return build_frame(
        at.MUTATION,
        vbucket=3,
        extras=MUTATION_FIELDS.pack(5, 6, 7, 8, 9, 0, 10),
        key=key,
        value=value,
        datatype=datatype,
        cas=11,
    )


def deletion(value: bytes = b"", datatype: int = 0) -> bytes:
    """A deletion at rest."""
    return build_frame(
        at.DELETION,
        vbucket=3,
        extras=DELETION_FIELDS.pack(5, 6, 1234, 0),
        key=b"\0key",
        value=value,
        datatype=datatype,
        cas=11,
    )


EXPIRATION = build_frame(
    at.EXPIRATION, vbucket=3, extras=EXPIRATION_FIELDS.pack(5, 6, 1234), key=b"\0key", cas=11
)


def one(frame: bytes, transform: Transform) -> object:
    """The message a reader gets."""
    sent = rewrite_frame(frame, transform)
    assert sent is not None
    (message,) = messages(sent)
    return message


def test_a_frame_is_taken_apart_as_it_was_built() -> None:
    parts = split_frame(mutation())
    assert (parts.opcode, parts.vbucket, parts.cas, parts.key, parts.value, parts.seqno) == (
        at.MUTATION,
        3,
        11,
        b"\0key",
        b"doc",
        5,
    )


def test_a_mutation_keeps_everything_and_gets_the_opaque() -> None:
    message = one(mutation(), Transform(opaque=99))
    assert isinstance(message, Mutation)
    assert (message.opaque, message.by_seqno, message.rev_seqno, message.flags) == (99, 5, 6, 7)
    assert (message.expiration, message.lock_time, message.nru, message.cas) == (8, 9, 10, 11)


def test_a_legacy_reader_gets_bare_keys_of_the_default_collection_only() -> None:
    legacy = Transform(collections=False)
    message = one(mutation(), legacy)
    assert isinstance(message, Mutation)
    assert message.key == b"key"
    assert rewrite_frame(mutation(key=b"\x08key"), legacy) is None


@pytest.mark.parametrize(("size", "opcode_size"), [(31, 31), (30, 30), (28, 28)])
def test_older_mutations_are_shorter(size: int, opcode_size: int) -> None:
    sent = rewrite_frame(mutation(), Transform(mutation_extras=size))
    assert sent is not None
    assert (sent[4], len(sent)) == (opcode_size, 24 + size + 4 + 3)


def test_a_deletion_has_its_time_or_its_nmeta() -> None:
    message = one(deletion(), Transform())
    assert isinstance(message, Deletion)
    assert message.delete_time == 1234
    older = rewrite_frame(deletion(), Transform(deletion_extras=18))
    assert older is not None
    assert (older[4], older[40:42]) == (18, b"\0\0")
    draft = rewrite_frame(deletion(), Transform(deletion_extras=16))
    assert draft is not None
    assert (draft[4], draft[40:]) == (16, b"\0key")


def test_an_expiration_is_one_only_for_those_who_asked() -> None:
    message = one(EXPIRATION, Transform())
    assert isinstance(message, Expiration)
    assert message.delete_time == 1234
    plain = one(EXPIRATION, Transform(expiry_opcode=False))
    assert isinstance(plain, Deletion)
    assert plain.delete_time == 1234
    old = rewrite_frame(EXPIRATION, Transform(deletion_extras=18))
    assert old is not None
    assert (old[1], old[4]) == (at.EXPIRATION, 18)


def test_a_stream_id_is_framed() -> None:
    message = one(mutation(), Transform(stream_id=258))
    assert isinstance(message, Mutation)
    assert message.stream_id == 258


@pytest.mark.parametrize(
    ("options", "value", "datatype"),
    [
        ({}, join_xattrs(XATTRS, b"doc"), 5),
        ({"xattrs": False}, b"doc", 1),
        ({"values": False, "xattrs": False}, b"", 0),
        ({"values": False, "xattrs": False, "keep_datatype": True}, b"", 5),
        ({"values": False}, join_xattrs(XATTRS, b""), 4),
        ({"values": False, "keep_datatype": True}, join_xattrs(XATTRS, b""), 5),
        ({"datatype_mask": 4}, join_xattrs(XATTRS, b"doc"), 4),
    ],
)
@pytest.mark.parametrize("snappy", [False, True])
def test_values_and_xattrs_by_entitlement(
    options: dict[str, bool], value: bytes, datatype: int, snappy: bool
) -> None:
    stored = join_xattrs(XATTRS, b"doc")
    frame = mutation(deflate(stored) if snappy else stored, 7 if snappy else 5)
    message = one(frame, Transform(compression=Compression.INFLATE, **options))  # type: ignore[arg-type]
    assert isinstance(message, Mutation)
    expected = 7 if snappy and datatype == 5 and not value else datatype
    assert (message.value, message.datatype) == (value, expected)


def test_a_deletion_keeps_system_xattrs_and_user_ones_on_demand() -> None:
    frame = deletion(join_xattrs(XATTRS, b""), 4)
    everything = one(frame, Transform())
    assert isinstance(everything, Deletion)
    assert everything.value == join_xattrs(XATTRS, b"")
    system = one(frame, Transform(deleted_user_xattrs=False))
    assert isinstance(system, Deletion)
    assert (system.value, system.datatype) == (join_xattrs({"_sys": b"1"}, b""), 4)
    user_only = deletion(join_xattrs({"user": b"2"}, b""), 4)
    nothing = one(user_only, Transform(deleted_user_xattrs=False))
    assert isinstance(nothing, Deletion)
    assert (nothing.value, nothing.datatype) == (b"", 0)


def test_values_are_deflated_where_that_is_shorter() -> None:
    force = Transform(compression=Compression.DEFLATE)
    long = one(mutation(b"a" * 500), force)
    assert isinstance(long, Mutation)
    assert (long.value, long.datatype) == (deflate(b"a" * 500), 2)
    short = one(mutation(b"a"), force)
    assert isinstance(short, Mutation)
    assert (short.value, short.datatype) == (b"a", 0)


def test_a_system_event_is_shown_to_the_owner() -> None:
    frame = build_frame(
        at.SYSTEM_EVENT,
        vbucket=3,
        extras=EVENT_FIELDS.pack(5, 0, 1),
        key=b"name",
        value=b"v" * 20,
        note=9,
    )
    seen: list[SystemEventView] = []

    def choose(event: SystemEventView) -> tuple[int, bytes, bytes] | None:
        seen.append(event)
        return (0, b"other", b"v" * 16)

    message = one(frame, Transform(opaque=4, system_event=choose))
    assert isinstance(message, SystemEvent)
    assert (message.by_seqno, message.version, message.key) == (5, 0, b"other")
    assert seen == [SystemEventView(5, 0, 1, 9, b"name", b"v" * 20)]
    assert rewrite_frame(frame, Transform(system_event=lambda _event: None)) is None
    assert rewrite_frame(frame, Transform(collections=False)) is None
