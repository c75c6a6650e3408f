"""What the node's store costs: durable writes, bytes written, start, memory per key.

Documents have keys of 12 bytes and values of 256 random bytes; 64 vbuckets. The bucket lies in a
temporary directory, synced for real, so these figures speak of this machine's disk as well.

`node.durable_writes_per_s.GROUP`: requests as a client sends them (quiet SETs) are served in bulk,
GROUP at a time, each group followed by a commit; wall time, sealing included as it comes.

`node.write_amplification`: bytes that reached the disk, after a sync, while 600,000 documents were
committed in groups of 1,000 and everything was sealed into blocks, over the bytes of the frames.
The kernel gives two upper bounds, and the lower one is taken: write_bytes of /proc/self/io, which
counts a whole folio of the page cache (up to 2 MB) when one page of it becomes dirty, and the
sectors the device below was written, which counts other processes, too. (Half of that run, alone
on a device of its own, had 2.12 by sectors and 2.39 by write_bytes.)
`node.write_amplification.handed_over` is the lower bound: bytes handed to the kernel (wchar); what
lies between is the file system's.

`node.start_seconds.KEYS`: a fresh process opens an empty bucket first, so that loading the compiled
kernels is not counted, then one with that many keys, all checksums verified; wall time.
`node.memory_per_key.KEYS`: the same process opens as many more empty buckets as full ones (several
if they are small) and the difference of what both cost in resident memory of its own (RssAnon:
mapped file pages are the kernel's) is divided by the keys: what a bucket costs without a key is not
counted, nor is what is allocated and never touched. Growth from 10^4 to 10^6 shows in the rows.
"""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness import Run, Skip, Value, figure

if TYPE_CHECKING:
    from headrace.store import Bucket

ROOT: Final = Path(__file__).resolve().parent.parent
VBUCKETS: Final = 64
VALUE_BYTES: Final = 256
FRAME_BYTES: Final = 24 + 31 + 1 + 12 + VALUE_BYTES
SETQ: Final = 0x11
HEADER: Final = struct.Struct(">BBHBBHIIQ")
NOW: Final = 1_700_000_000
SECTOR_BYTES: Final = 512
"""What the kernel's disk statistics count in, whatever the device has."""
COPIES_KEYS: Final = 100_000
"""Keys that are opened at least, in several buckets, to see their memory beside the noise."""
COPIES_MAX: Final = 10


def requests(first: int, count: int, value: bytes) -> bytes:
    """Quiet SETs of so many keys."""
    parts = []
    for number in range(first, first + count):
        key = b"key-%08d" % number
        body = 8 + len(key) + len(value)
        header = HEADER.pack(0x80, SETQ, len(key), 8, 0, number % VBUCKETS, body, 0, 0)
        parts.append(header + bytes(8) + key + value)
    return b"".join(parts)


def new_bucket(path: Path) -> Bucket:
    """An empty bucket with all vbuckets active, its kernels warm."""
    from headrace.store import Bucket, BucketSettings
    from headrace.wire.opcodes import VBucketState

    bucket = Bucket.open(path, BucketSettings(vbuckets=VBUCKETS, memory_quota=1 << 30))
    bucket.create_vbuckets(VBucketState.ACTIVE)
    return bucket


def serve(bucket: Bucket, data: bytes) -> None:
    """Serve requests to the last byte."""
    view, done = memoryview(data), 0
    while done < len(data):
        _, used = bucket.serve_requests(view[done:], now=NOW)
        if not used:
            raise RuntimeError("a plain request was not served in bulk")
        done += used


def durable_writes(run: Run, group: int) -> Value:
    """Writes per second, committed ``group`` at a time."""
    commits = run.pick(full=max(20, min(300, 200_000 // group)), quick=3)
    value = os.urandom(VALUE_BYTES // 2).hex().encode()
    rates = []
    for _ in range(run.pick(full=3, quick=1)):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
            bucket = new_bucket(Path(directory) / "bucket")
            serve(bucket, requests(0, 10, value))
            bucket.seal()
            groups = [requests(100 + turn * group, group, value) for turn in range(commits)]
            start = time.perf_counter()
            for data in groups:
                serve(bucket, data)
                bucket.commit()
            rates.append(commits * group / (time.perf_counter() - start))
            bucket.close()
    return Value(statistics.median(rates), len(rates))


@figure("node.durable_writes_per_s.1", unit="writes/s", goal=None, better="higher")
def durable_1(run: Run) -> Value:
    """Every write waits for its own sync."""
    return durable_writes(run, 1)


@figure("node.durable_writes_per_s.100", unit="writes/s", goal=None, better="higher")
def durable_100(run: Run) -> Value:
    """A hundred writes share a sync."""
    return durable_writes(run, 100)


@figure("node.durable_writes_per_s.1000", unit="writes/s", goal=50_000, better="higher")
def durable_1000(run: Run) -> Value:
    """A thousand writes share a sync."""
    return durable_writes(run, 1000)


@figure("node.durable_writes_per_s.10000", unit="writes/s", goal=None, better="higher")
def durable_10000(run: Run) -> Value:
    """Ten thousand writes share a sync."""
    return durable_writes(run, 10_000)


def bytes_written(directory: str) -> dict[str, int]:
    """Bytes written so far: handed over, dirtied, and by everyone to the device, where known."""
    os.sync()
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError as error:
        raise Skip(f"no /proc/self/io: {error}") from error
    counted = dict(line.split(": ") for line in lines)
    found = {"wchar": int(counted["wchar"]), "write_bytes": int(counted["write_bytes"])}
    device = os.stat(directory).st_dev
    sectors = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    if sectors.exists():
        found["device"] = int(sectors.read_text().split()[6]) * SECTOR_BYTES
    return found


@functools.cache
def amplification(count: int) -> dict[str, float]:
    """Bytes written over bytes of frames, by each way to count them."""
    value = os.urandom(VALUE_BYTES // 2).hex().encode()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        bucket = new_bucket(Path(directory) / "bucket")
        before = bytes_written(directory)
        for first in range(0, count, 1000):
            serve(bucket, requests(first, 1000, value))
            bucket.commit()
        bucket.seal()
        after = bytes_written(directory)
        bucket.close()
    return {name: (after[name] - before[name]) / (count * FRAME_BYTES) for name in after}


@figure("node.write_amplification", unit="ratio", goal=2.5, better="lower")
def write_amplification(run: Run) -> Value:
    """Bytes that reached the disk over bytes of frames, journal and blocks together."""
    found = amplification(run.pick(full=600_000, quick=3_000))
    return Value(min(found[name] for name in ("write_bytes", "device") if name in found), 1)


@figure("node.write_amplification.handed_over", unit="ratio", goal=None, better="lower")
def handed_over(run: Run) -> Value:
    """Bytes handed to the kernel over bytes of frames."""
    return Value(amplification(run.pick(full=600_000, quick=3_000))["wchar"], 1)


MEASURE_START: Final = """
import sys, time
from pathlib import Path
from headrace.store import Bucket

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) * 1024

copies = int(sys.argv[2])
places = [Path(sys.argv[1]) / name for name in ("empty", "full")]
Bucket.open(places[0] / str(copies)).abandon()
held, costs, start = [], [], 0.0
for place in places:
    before = resident()
    for copy in range(copies):
        start = time.perf_counter()
        held.append(Bucket.open(place / str(copy)))
        seconds = time.perf_counter() - start
    costs.append(resident() - before)
keys = held[-1].statistics()["items"]
for bucket in held:
    bucket.abandon()
print(seconds, (costs[1] - costs[0]) / copies, keys)
"""


@functools.cache
def prepared(keys: int) -> Path:
    """Closed buckets with that many keys beside empty ones; removed when the process ends."""
    import atexit

    directory = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    new_bucket(directory / "empty" / "0").close()
    bucket = new_bucket(directory / "full" / "0")
    value = os.urandom(VALUE_BYTES // 2).hex().encode()
    for first in range(0, keys, 10_000):
        serve(bucket, requests(first, min(10_000, keys - first), value))
        bucket.commit()
    bucket.seal()
    bucket.close()
    for copy in range(1, copies_of(keys) + 1):  # one more empty one, to warm the process
        shutil.copytree(directory / "empty" / "0", directory / "empty" / str(copy))
    for copy in range(1, copies_of(keys)):
        shutil.copytree(directory / "full" / "0", directory / "full" / str(copy))
    return directory


def copies_of(keys: int) -> int:
    """Buckets of that many keys to open, so that their memory can be told from noise."""
    return min(COPIES_MAX, max(1, COPIES_KEYS // keys))


@functools.cache
def started(keys: int, runs: int) -> tuple[tuple[float, float], ...]:
    """(seconds, bytes per key) of opening a bucket with that many keys, in processes of their
    own."""
    directory = prepared(keys)
    found = []
    for _ in range(runs):
        done = subprocess.run(  # noqa: S603 - our own interpreter and script
            [sys.executable, "-c", MEASURE_START, str(directory), str(copies_of(keys))],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        seconds, memory, count = done.stdout.split()
        if int(count) != keys:
            raise RuntimeError(f"{count} keys were found, {keys} were written")
        found.append((float(seconds), float(memory) / keys))
    return tuple(found)


def start_seconds(run: Run, keys: int) -> Value:
    """Seconds to open a bucket."""
    rows = started(run.pick(full=keys, quick=keys // 100), run.pick(full=3, quick=1))
    return Value(statistics.median(seconds for seconds, _ in rows), len(rows))


def memory_per_key(run: Run, keys: int) -> Value:
    """Bytes of resident memory per key."""
    rows = started(run.pick(full=keys, quick=keys // 100), run.pick(full=3, quick=1))
    memory = statistics.median(memory for _, memory in rows)
    if memory <= 0:
        raise Skip(f"{keys} keys cost less than what can be measured")
    return Value(memory, len(rows))


@figure("node.start_seconds.10000", unit="s", goal=None, better="lower")
def start_10_4(run: Run) -> Value:
    """Opening 10^4 keys."""
    return start_seconds(run, 10_000)


@figure("node.start_seconds.100000", unit="s", goal=None, better="lower")
def start_10_5(run: Run) -> Value:
    """Opening 10^5 keys."""
    return start_seconds(run, 100_000)


@figure("node.start_seconds.1000000", unit="s", goal=None, better="lower")
def start_10_6(run: Run) -> Value:
    """Opening 10^6 keys."""
    return start_seconds(run, 1_000_000)


@figure("node.memory_per_key.10000", unit="bytes", goal=None, better="lower")
def memory_10_4(run: Run) -> Value:
    """Memory per key at 10^4 keys; small tables weigh most here."""
    return memory_per_key(run, 10_000)


@figure("node.memory_per_key.100000", unit="bytes", goal=None, better="lower")
def memory_10_5(run: Run) -> Value:
    """Memory per key at 10^5 keys."""
    return memory_per_key(run, 100_000)


@figure("node.memory_per_key.1000000", unit="bytes", goal=None, better="lower")
def memory_10_6(run: Run) -> Value:
    """Memory per key at 10^6 keys."""
    return memory_per_key(run, 1_000_000)
