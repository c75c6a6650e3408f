"""Frames back into memory: damage inside sound checksums, and more than one portion."""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Any

import pytest

from headrace.errors import CorruptRecord
from headrace.store import Bucket, loading
from headrace.store.disk import Table
from headrace.store.native import address_of, bytes_at
from tests.store.crash_disk import CrashDisk
from tests.store.kit import make_bucket, reopened
from tests.store.test_rewrite import mutations

CRC = Struct(">I")


def resealed(value: bytes) -> bytes:
    """A value with a checksum that fits what it holds."""
    return value[:4] + CRC.pack(zlib.crc32(value[8:])) + value[8:]


@pytest.mark.parametrize("table", [Table.JOURNAL, Table.BLOCKS])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda frames: frames[:-1],
        lambda frames: frames + b"\0",
        lambda frames: frames[: len(frames) // 2] * 2,
        lambda frames: bytes(len(frames)),
        lambda frames: frames[:8] + b"\xff\xff\xff\xff" + frames[12:],
    ],
    ids=["cut", "longer", "repeated", "zeros", "huge"],
)
def test_frames_that_make_no_sense_are_refused(table: Table, spoil: Any) -> None:  # noqa: ANN401
    """As if somebody had written them so: the checksums fit."""
    disk = CrashDisk()
    bucket = make_bucket(disk)
    bucket.vbucket(0).store(b"\0aa", b"value")
    bucket.vbucket(0).store(b"\0bb", b"value")
    if table is Table.BLOCKS:
        bucket.seal()
    bucket.close()
    tables = disk.tables()
    ((key, value),) = tables[table].items()
    header = 24 if table is Table.JOURNAL else 32
    frames = spoil(value[header:])
    if table is Table.JOURNAL:
        value = value[:20] + CRC.pack(len(frames)) + frames
    else:
        value = value[:header] + frames
    tables[table][key] = resealed(value)
    with pytest.raises(CorruptRecord):
        Bucket.open(None, disk=CrashDisk(tables))


def test_a_journal_frame_of_a_vbucket_that_cannot_be_is_refused() -> None:
    disk = CrashDisk()
    bucket = make_bucket(disk)
    bucket.vbucket(0).store(b"\0a", b"")
    bucket.close()
    tables = disk.tables()
    ((key, value),) = tables[Table.JOURNAL].items()
    tables[Table.JOURNAL][key] = resealed(value[:30] + b"\x01\x00" + value[32:])
    with pytest.raises(CorruptRecord, match="out of order"):
        Bucket.open(None, disk=CrashDisk(tables))


@pytest.mark.parametrize("sealed", [False, True])
def test_more_rare_frames_than_a_portion(sealed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "RARE_ROWS", 3)
    bucket = make_bucket()
    for number in range(10):
        bucket.vbucket(0).prepare(b"\0%d" % number, b"", level=1)
        bucket.vbucket(0).store(b"\0x%d" % number, b"")
    for number in range(5):
        bucket.vbucket(0).commit_prepare(b"\0%d" % number)
    if sealed:
        bucket.seal()
    bucket = reopened(bucket)
    assert [p.key for p in bucket.vbucket(0).all_pending()] == [b"\0%d" % n for n in range(5, 10)]
    assert bucket.vbucket(0).item_count == 15


def test_frames_are_counted_only_if_they_add_up() -> None:
    data = b"".join(mutations(3))
    source = bytes_at(data)
    assert loading.count_frames(address_of(source), len(data)) == 3
    assert loading.count_frames(address_of(source), 0) == 0
    for size in (1, 23, 24, len(data) - 1):
        assert loading.count_frames(address_of(source), size) == loading.DAMAGED


def test_keys_superseded_while_the_store_was_closed_stay_dead() -> None:
    bucket = make_bucket()
    for turn in range(3):
        for number in range(50):
            bucket.vbucket(0).store(b"\0%d" % number, b"%d" % turn)
        bucket.seal()
    bucket = reopened(bucket)
    dead = sum(int((block.rows[:, 2] > 0).sum()) for block in bucket.core.blocks[0].blocks)
    assert dead == 100
