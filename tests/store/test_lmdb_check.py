"""The check before LMDB opens a file: sound files pass, junk is named, nothing crashes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from headrace.errors import CorruptRecord, StoreVersion
from headrace.store import Bucket
from headrace.store.lmdb_check import check_file
from headrace.wire.opcodes import VBucketState
from tests.store.kit import SMALL

ROOT = Path(__file__).resolve().parents[2]


def make_store(path: Path) -> None:
    """A small bucket with a used journal, blocks, records and a free list."""
    with Bucket.open(path, SMALL) as bucket:
        bucket.create_vbuckets(VBucketState.ACTIVE)
        for turn in range(4):
            for number in range(12):
                bucket.vbucket(number % 4).store(b"\0%d" % number, b"%d" % turn * 300)
            bucket.commit()
        bucket.seal()
        bucket.vbucket(0).store(b"\0last", b"x" * 100)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_lmdb_writes_is_sound(seed: int, tmp_path: Path) -> None:
    generator = random.Random(seed)
    with lmdb.open(str(tmp_path), map_size=64 << 20, max_dbs=3) as environment:
        tables = [environment.open_db(b"t%d" % number) for number in range(3)]
        for _ in range(60):
            with environment.begin(write=True) as transaction:
                for _ in range(generator.randrange(1, 40)):
                    table = generator.choice(tables)
                    key = b"%d" % generator.randrange(200)
                    if generator.random() < 0.6:
                        size = generator.choice((1, 100, 1500, 5000, 40_000))
                        transaction.put(key, generator.randbytes(size), db=table)
                    else:
                        transaction.delete(key, db=table)
            check_file(tmp_path / "data.mdb")


def test_a_new_store_is_sound(tmp_path: Path) -> None:
    make_store(tmp_path)
    check_file(tmp_path / "data.mdb")


def test_an_empty_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"")
    with pytest.raises(CorruptRecord, match="empty"):
        check_file(tmp_path / "data.mdb")


def test_another_format_is_a_matter_of_version(tmp_path: Path) -> None:
    make_store(tmp_path)
    data = tmp_path / "data.mdb"
    junk = bytearray(data.read_bytes())
    junk[20] = junk[4096 + 20] = 2
    data.write_bytes(junk)
    with pytest.raises(StoreVersion, match="LMDB format 2"):
        check_file(data)


def test_a_file_cut_short_is_noticed(tmp_path: Path) -> None:
    make_store(tmp_path)
    data = tmp_path / "data.mdb"
    whole = data.read_bytes()
    for size in (1, 100, 4096, 4200, len(whole) - 4096):
        data.write_bytes(whole[:size])
        with pytest.raises(CorruptRecord):
            check_file(data)


SWEEP = """
import random, sys
from pathlib import Path
from headrace.errors import CorruptRecord, StoreVersion
from headrace.store import AT_REST, Bucket

source, target = Path(sys.argv[1]), Path(sys.argv[2])
seed, count = int(sys.argv[3]), int(sys.argv[4])
whole = (source / "data.mdb").read_bytes()

def content(path):
    bucket = Bucket.open(path)
    try:
        found = []
        for vbucket in bucket.vbuckets:
            view = vbucket.backfill(after=0, transform=AT_REST)
            while (chunk := view.read(1 << 20)) is not None:
                found.append(bytes(chunk.data))
        return found
    finally:
        bucket.abandon()

def copy(data):
    target.mkdir(exist_ok=True)
    (target / "data.mdb").write_bytes(data)

copy(whole)
expected = content(target)
generator = random.Random(seed)
refused = same = 0
for _ in range(count):
    junk = bytearray(whole)
    page = generator.randrange(len(whole) // 4096) * 4096
    place = page + generator.choice((generator.randrange(64), generator.randrange(4096)))
    junk[place] ^= generator.randrange(1, 256)
    copy(junk)
    try:
        found = content(target)
    except (CorruptRecord, StoreVersion):
        refused += 1
        continue
    if found != expected:
        sys.exit(f"byte {place} changed what is read")
    same += 1
print(refused, same)
"""


@pytest.mark.parametrize("seed", range(2))
def test_a_changed_byte_anywhere_in_the_file_crashes_nothing_and_changes_nothing(
    seed: int, tmp_path: Path
) -> None:
    """In a process of its own: LMDB on a damaged file could take this one with it."""
    make_store(tmp_path / "source")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            SWEEP,
            str(tmp_path / "source"),
            str(tmp_path / "target"),
            str(seed),
            "400",
        ],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    refused, same = map(int, done.stdout.split())
    assert refused > 50
    assert refused + same == 400


def test_a_copy_of_a_sound_file_is_sound(tmp_path: Path) -> None:
    make_store(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with Bucket.open(tmp_path / "b") as bucket:
        assert bucket.vbucket(0).get(b"\0last") is not None
