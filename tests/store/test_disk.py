"""The door to files: atomic batches, consistent reads, one sentence for whatever fails."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from headrace.errors import CorruptRecord, StoreError, StoreFull, StoreLocked
from headrace.store.disk import LOCK_NAME, Batch, LmdbDisk, MemoryDisk, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.store.disk import Disk

MIB = 1024 * 1024


@pytest.fixture(params=["lmdb", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """Both kinds."""
    opened: Disk = MemoryDisk()
    if request.param == "lmdb":
        opened = LmdbDisk(tmp_path / "env", map_bytes_max=64 * MIB)
    yield opened
    opened.close()


def put(disk: Disk, *pairs: tuple[bytes, bytes], table: Table = Table.META) -> None:
    """Commit some puts."""
    batch = Batch()
    for key, value in pairs:
        batch.put(table, key, value)
    disk.commit(batch)


def test_what_was_put_is_found_in_order(disk: Disk) -> None:
    put(disk, (b"b", b"2"), (b"a", b"1"), (b"c", b"3"))
    with disk.read() as reader:
        assert bytes(reader.get(Table.META, b"b") or b"") == b"2"
        assert reader.get(Table.META, b"x") is None
        assert reader.get(Table.BLOCKS, b"a") is None
        assert [(key, bytes(value)) for key, value in reader.scan(Table.META)] == [
            (b"a", b"1"),
            (b"b", b"2"),
            (b"c", b"3"),
        ]
        assert [key for key, _ in reader.scan(Table.META, b"b")] == [b"b", b"c"]
        assert [key for key, _ in reader.scan(Table.META, b"aa", b"c")] == [b"b"]
        assert list(reader.scan(Table.META, b"d")) == []


def test_a_batch_replaces_and_deletes_in_its_order(disk: Disk) -> None:
    put(disk, (b"a", b"1"), (b"b", b"1"))
    batch = Batch()
    batch.delete(Table.META, b"a")
    batch.put(Table.META, b"a", b"2")
    batch.put(Table.META, b"b", b"2")
    batch.delete(Table.META, b"b")
    batch.delete(Table.META, b"never was")
    assert len(batch) == 5
    disk.commit(batch)
    with disk.read() as reader:
        assert [(key, bytes(value)) for key, value in reader.scan(Table.META)] == [(b"a", b"2")]


def test_bytes_are_counted(disk: Disk) -> None:
    before = disk.bytes_used()
    put(disk, (b"a", b"x" * 100_000))
    assert disk.bytes_used() >= before + 50_000


def test_files_come_back(tmp_path: Path) -> None:
    first = LmdbDisk(tmp_path / "env", map_bytes_max=64 * MIB)
    put(first, (b"a", b"1"))
    first.close()
    first.close()
    with pytest.raises(StoreError, match="is closed"), first.read():
        pass
    second = LmdbDisk(tmp_path / "env", map_bytes_max=64 * MIB)
    with second.read() as reader:
        assert bytes(reader.get(Table.META, b"a") or b"") == b"1"
    second.close()


def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    first = LmdbDisk(tmp_path, map_bytes_max=64 * MIB)
    with pytest.raises(StoreLocked, match="in use by another process"):
        LmdbDisk(tmp_path, map_bytes_max=64 * MIB)
    first.close()
    LmdbDisk(tmp_path, map_bytes_max=64 * MIB).close()


def test_a_place_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot be opened"):
        LmdbDisk(tmp_path / "file", map_bytes_max=64 * MIB)


def test_the_map_grows_until_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.store.disk.MAP_BYTES_FIRST", MIB)
    disk = LmdbDisk(tmp_path, map_bytes_max=8 * MIB)
    done: list[int] = []

    def fill() -> None:
        for number in range(100):
            put(disk, (b"%d" % number, b"x" * 200_000))
            done.append(number)

    with pytest.raises(StoreFull, match="map limit of 8388608 bytes"):
        fill()
    written = len(done)
    assert written > 20
    with disk.read() as reader:
        assert len(list(reader.scan(Table.META))) == written, "a refused batch leaves no trace"
    put(disk, (b"0", b"a small change still fits"))
    disk.close()
    with pytest.raises(StoreFull, match="more than its map limit"):
        LmdbDisk(tmp_path, map_bytes_max=MIB)


def test_the_map_does_not_grow_under_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.store.disk.MAP_BYTES_FIRST", MIB)
    disk = LmdbDisk(tmp_path, map_bytes_max=64 * MIB)
    put(disk, (b"a", b"old"))
    done = threading.Event()

    def write() -> None:
        put(disk, (b"b", b"x" * 4 * MIB))
        done.set()

    thread = threading.Thread(target=write)
    with disk.read() as reader:
        thread.start()
        assert not done.wait(0.1)
        assert bytes(reader.get(Table.META, b"a") or b"") == b"old"
    thread.join()
    assert done.is_set()
    disk.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"not a database at all" * 1000),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
    ],
    ids=["empty", "foreign", "cut short"],
)
def test_a_file_that_is_no_store_is_left_alone(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    disk = LmdbDisk(tmp_path, map_bytes_max=64 * MIB)
    put(disk, (b"a", b"x" * 20_000))
    disk.close()
    data = tmp_path / "data.mdb"
    spoil(data)
    before = data.read_bytes()
    with pytest.raises(CorruptRecord):
        LmdbDisk(tmp_path, map_bytes_max=64 * MIB)
    assert data.read_bytes() == before
    assert (tmp_path / LOCK_NAME).exists()


def test_after_a_failed_sync_nothing_is_written_any_more(tmp_path: Path) -> None:
    disk = LmdbDisk(tmp_path, map_bytes_max=64 * MIB)
    batch = Batch()
    batch.put(Table.META, b"", b"LMDB refuses an empty key")
    with pytest.raises(StoreError):
        disk.commit(batch)
    with pytest.raises(StoreError, match="must be opened again"):
        put(disk, (b"a", b"1"))
    disk.close()


def test_memory_forgets_when_it_is_closed() -> None:
    disk = MemoryDisk()
    put(disk, (b"a", b"1"))
    disk.close()
    with disk.read() as reader:
        assert reader.get(Table.META, b"a") is None
