"""The kernel that rewrites frames against its plain twin, for every kind of reader."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from headrace.store import Compression, Transform
from headrace.store import layout as at
from headrace.store.native import address_of, bytes_at
from headrace.store.plain import (
    ABORT_FIELDS,
    DELETION_FIELDS,
    EVENT_FIELDS,
    EXPIRATION_FIELDS,
    MUTATION_FIELDS,
    PREPARE_FIELDS,
    build_frame,
    rewrite_frame,
)
from headrace.store.rewrite import (
    DROPPED,
    FRAME_GROWTH_MAX,
    R_BYTES,
    R_COLUMNS,
    R_COUNT,
    R_NEXT,
    R_READ,
    R_WHY,
    SLOW,
    WHY_DAMAGED,
    WHY_END,
    WHY_LIMIT,
    WHY_ROOM,
    is_wanted,
    rewrite_block,
    write_frame,
)
from headrace.wire.values import deflate, join_collection, join_xattrs

if TYPE_CHECKING:
    from headrace.store.native import Halves, Words


def some_frame(generator: random.Random, seqno: int) -> bytes:
    """A frame at rest of a random kind."""
    key = join_collection(generator.choice((0, 0, 8, 300)), b"k%d" % generator.randrange(99))
    value, datatype = generator.randbytes(generator.choice((0, 5, 60))), 0
    if value and generator.random() < 0.3:
        value, datatype = join_xattrs({"_sys": b"1", "user": b"2"}, value), at.DATATYPE_XATTR
    if value and generator.random() < 0.3:
        value, datatype = deflate(value), datatype | at.DATATYPE_SNAPPY
    kind = generator.choice(
        (
            at.MUTATION,
            at.MUTATION,
            at.DELETION,
            at.EXPIRATION,
            at.PREPARE,
            at.ABORT,
            at.SYSTEM_EVENT,
        )
    )
    rev, note = generator.randrange(2**63), 0
    if kind in (at.MUTATION, at.DELETION) and generator.random() < 0.3:
        note = at.COMMITTED | generator.randrange(1, 5)
    extras = {
        at.MUTATION: MUTATION_FIELDS.pack(seqno, rev, 1, 2, 3, 0, 7),
        at.DELETION: DELETION_FIELDS.pack(seqno, rev, 9, 0),
        at.EXPIRATION: EXPIRATION_FIELDS.pack(seqno, rev, 9),
        at.PREPARE: PREPARE_FIELDS.pack(seqno, rev, 1, 2, 3, 4, 0, 1),
        at.ABORT: ABORT_FIELDS.pack(1, seqno),
        at.SYSTEM_EVENT: EVENT_FIELDS.pack(seqno, 0, 0),
    }[kind]
    if kind == at.ABORT:
        value, datatype = b"", 0
    return build_frame(
        kind,
        vbucket=5,
        extras=extras,
        key=key,
        value=value,
        datatype=datatype,
        note=note,
        cas=generator.randrange(2**64),
    )


def some_transform(generator: random.Random) -> Transform:
    """A random kind of reader."""

    def flip() -> bool:
        return generator.random() < 0.5

    return Transform(
        opaque=generator.randrange(2**32),
        stream_id=generator.choice((None, 1, 0xFFFF)),
        collections=flip(),
        only_collections=generator.choice(
            (None, frozenset((8,)), frozenset((0, 300)), frozenset())
        ),
        mutation_extras=generator.choice((31, 30, 28)),
        deletion_extras=generator.choice((21, 18, 16)),
        expiry_opcode=flip(),
        values=flip(),
        xattrs=flip(),
        keep_datatype=flip(),
        deleted_user_xattrs=flip(),
        datatype_mask=generator.choice((0x07, 0x05, 0x00)),
        compression=generator.choice(list(Compression)),
        sync_writes=flip(),
        commits=flip(),
    )


@pytest.mark.parametrize("seed", range(30))
def test_kernel_and_plain_twin_agree(seed: int) -> None:
    generator = random.Random(seed)
    slow = 0
    for number in range(200):
        frame, transform = some_frame(generator, 10 + number), some_transform(generator)
        source, target = bytes_at(frame), np.zeros(len(frame) + FRAME_GROWTH_MAX, np.uint8)
        size = write_frame(
            address_of(source), address_of(target), transform.options, transform.wanted
        )
        expected = rewrite_frame(frame, transform)
        if size == SLOW:
            slow += 1
        elif size == DROPPED:
            assert expected is None
        else:
            assert expected == bytes(target[:size])
    assert 0 < slow < 150


def test_a_plain_reader_never_takes_the_slow_path() -> None:
    generator = random.Random(1)
    for number in range(100):
        frame = some_frame(generator, 1 + number)
        target = np.zeros(len(frame) + FRAME_GROWTH_MAX, np.uint8)
        transform = Transform(opaque=9)
        size = write_frame(
            address_of(bytes_at(frame)), address_of(target), transform.options, transform.wanted
        )
        assert (size == SLOW) == (frame[1] == at.SYSTEM_EVENT)


def block_of(frames: list[bytes]) -> tuple[bytes, Halves]:
    """Frames as a block's bytes and rows; seqnos 1, 2, 3..."""
    rows = np.zeros((len(frames), 3), np.uint32)
    offset = 0
    for place, frame in enumerate(frames):
        rows[place] = (place, offset, 0)
        offset += len(frame)
    return b"".join(frames), rows


def run_block(
    data: bytes,
    rows: Halves,
    *,
    end: int = 10,
    last: int = 10,
    capacity: int = 10_000,
    limit: int = 10_000,
    all_versions: bool = False,
    start: int = 0,
    transform: Transform = Transform(opaque=1),  # noqa: B008 - frozen
) -> tuple[bytes, Words]:
    """Run the block loop once."""
    result = np.zeros(R_COLUMNS, np.int64)
    result[R_NEXT] = start
    target = np.zeros(max(capacity, 1), np.uint8)
    rewrite_block(
        address_of(bytes_at(data)),
        len(data),
        rows,
        1,
        transform.options,
        transform.wanted,
        last,
        end,
        all_versions,
        address_of(target),
        capacity,
        limit,
        result,
    )
    return bytes(target[: result[R_BYTES]]), result


def mutations(count: int) -> list[bytes]:
    """Mutations with seqnos 1, 2, 3..."""
    return [
        build_frame(
            at.MUTATION,
            vbucket=0,
            extras=MUTATION_FIELDS.pack(n, 1, 0, 0, 0, 0, 0),
            key=b"\0k%d" % n,
        )
        for n in range(1, count + 1)
    ]


def test_superseded_frames_are_left_out_if_the_end_has_seen_it() -> None:
    frames = mutations(4)
    data, rows = block_of(frames)
    rows[0, 2] = 2  # superseded at seqno 3
    rows[1, 2] = 9  # superseded at seqno 11
    written, result = run_block(data, rows, end=4)
    assert written == b"".join(
        rewrite_frame(frame, Transform(opaque=1)) or b"" for frame in frames[1:]
    )
    assert result[R_COUNT] == 3
    assert run_block(data, rows, end=2)[1][R_COUNT] == 4
    assert run_block(data, rows, end=11)[1][R_COUNT] == 2
    assert run_block(data, rows, end=11, all_versions=True)[1][R_COUNT] == 4


@pytest.mark.parametrize("seed", range(20))
def test_a_block_of_all_kinds_is_written_as_its_frames_one_by_one_are(seed: int) -> None:
    """Runs of plain mutations take a road of their own; others lie between them."""
    generator = random.Random(seed)
    frames = [
        some_frame(generator, number) if generator.random() < 0.3 else mutations(number)[-1]
        for number in range(1, 40)
    ]
    data, rows = block_of(frames)
    rows[:, 2] = [generator.choice((0, 0, 1, 50)) for _ in frames]
    transform = replace(
        some_transform(generator),
        compression=Compression.AS_STORED,
        values=True,
        xattrs=True,
        deleted_user_xattrs=True,
        commits=False,
    )
    expected, read = [], 0
    for number, frame in enumerate(frames, 1):
        if frame[1] == at.SYSTEM_EVENT:
            break  # left to the caller: told by WHY_SLOW, tested elsewhere
        read = number
        if not (0 < rows[number - 1, 2] <= 40 - number):
            expected.append(rewrite_frame(frame, transform) or b"")
    written, result = run_block(
        data, rows, end=40, last=read, transform=transform, capacity=60_000, limit=60_000
    )
    assert (result[R_WHY], result[R_READ], written) == (WHY_END, read, b"".join(expected))
    assert result[R_COUNT] == sum(map(bool, expected))


def test_the_loop_says_why_it_stopped() -> None:
    frames = mutations(3)
    data, rows = block_of(frames)
    size = len(frames[0])
    assert run_block(data, rows)[1][R_WHY] == WHY_END
    _, result = run_block(data, rows, last=2)
    assert (result[R_WHY], result[R_READ], result[R_NEXT]) == (WHY_END, 2, 2)
    _, result = run_block(data, rows, limit=size + 1)
    assert (result[R_WHY], result[R_COUNT], result[R_NEXT]) == (WHY_LIMIT, 2, 2)
    _, result = run_block(data, rows, capacity=2 * size)
    assert (result[R_WHY], result[R_COUNT], result[R_NEXT]) == (WHY_ROOM, 1, 1)
    broken = bytearray(data)
    broken[size + at.BODY_SIZE_AT + 3] += 1
    _, result = run_block(bytes(broken), rows)
    assert (result[R_WHY], result[R_COUNT], result[R_NEXT]) == (WHY_DAMAGED, 1, 1)


def test_wanted_collections_are_found() -> None:
    wanted = np.array([0, 8, 300], np.int64)
    assert [number for number in range(400) if is_wanted(wanted, number)] == [0, 8, 300]
    assert not is_wanted(np.zeros(0, np.int64), 0)


def test_a_commit_names_its_prepare() -> None:
    frame = build_frame(
        at.MUTATION,
        vbucket=0,
        extras=MUTATION_FIELDS.pack(12, 1, 0, 0, 0, 0, 0),
        key=b"\0k",
        value=b"v",
        note=at.COMMITTED | 5,
        cas=77,
    )
    sent = rewrite_frame(frame, Transform(commits=True))
    assert sent is not None
    assert (sent[1], sent[24:40]) == (at.COMMIT, ABORT_FIELDS.pack(7, 12))
    assert rewrite_frame(frame, replace(Transform(), commits=False))[1] == at.MUTATION  # type: ignore[index]
