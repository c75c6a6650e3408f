"""How close does decoding frames into Arrow columns come to copying the bytes, and what is saved?

Input: a stream as a producer sends it, made once per size: 16 vbuckets taking turns, a snapshot
marker (V1) every 200 mutations of a vbucket, keys of 18 bytes behind a one-byte collection id, JSON
documents of 64, 256 or 1024 bytes, flags and CAS set. Half a gigabyte of it (16 MB repeated), so
that no cache of any machine we know holds the input of a round.

`kernel_vs_memcpy`: `Scanner.scan` over the whole input in windows of 4 MB, each batch made and
dropped, allocation and the making of the RecordBatch included; against numpy copying the same
windows into one warm 4 MB buffer, the fastest copy there is. 1.0 would mean that decoding is free.

`kernel_vs_objects`: the same scan of the first 4 MB; against `FrameBuffer` and `decode` making one
message object per frame of the same bytes.

`kernel_start_seconds`: CPU seconds of a fresh interpreter's `import`, first Scanner and first scan,
measured inside it, with numba's cache filled by an earlier process; import of numpy and pyarrow is
part of it, the start of Python is not. `kernel_start_wall_seconds`: the same by the clock on the
wall, which is what a person waits; on a busy machine it is a multiple, hence no goal.

All comparisons are interleaved and in CPU time (see harness).
"""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Final

import numpy as np

from benchmarks.harness import Clock, Run, Value, figure
from headrace.columns.scan import Scanner
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import FrameBuffer
from headrace.wire.messages import Mutation, SnapshotMarker

WINDOW: Final = 4 << 20
SAMPLE_SIZE: Final = 16 << 20
REPEATS: Final = 32
VBUCKETS: Final = 16
SNAPSHOT: Final = 200

START: Final = """
import time
began = time.{clock}()
from headrace.columns.scan import Scanner
result = Scanner().scan(bytes.fromhex({frame!r}))
seconds = time.{clock}() - began
assert result.batch.num_rows == 1
print(seconds)
"""


@functools.lru_cache(maxsize=1)
def stream_of(value_size: int, size: int, repeats: int = 1) -> memoryview:
    """Return ``size`` bytes or a little less of whole frames, repeated."""
    parts = []
    total = 0
    number = 0
    document = (b'{"name": "' + b"x" * value_size)[: value_size - 2] + b'"}'
    while True:
        vbucket, seqno = number % VBUCKETS, number // VBUCKETS + 1
        if seqno % SNAPSHOT == 1:
            end = seqno + SNAPSHOT - 1
            marker = SnapshotMarker(
                vbucket=vbucket, opaque=7, start_seqno=seqno, end_seqno=end, flags=6
            )
            parts.append(encode(marker, Dialect.DCP_7))
            total += len(parts[-1])
        mutation = Mutation(
            vbucket=vbucket,
            opaque=7,
            cas=1_700_000_000_000_000_000 + number,
            datatype=1,
            by_seqno=seqno,
            rev_seqno=1,
            flags=0x02000006,
            key=b"\x08user::%012d" % number,
            value=document,
        )
        parts.append(encode(mutation, Dialect.DCP_7))
        total += len(parts[-1])
        number += 1
        if total >= size:
            return memoryview(b"".join(parts[:-1]) * repeats)


@functools.cache
def scanner_of_a_connection() -> Scanner:
    """Return the one scanner that a connection keeps for its whole life."""
    return Scanner(Dialect.DCP_7, collections=True)


def scan(frames: memoryview) -> int:
    """Scan everything as a consumer does: window by window, each batch dropped for the next."""
    scanner = scanner_of_a_connection()
    at = rows = 0
    while (result := scanner.scan(frames[at : at + WINDOW])).consumed:
        at += result.consumed
        rows += result.batch.num_rows
    assert at == len(frames)
    return rows


def copy(frames: memoryview) -> None:
    """Copy the same windows into one buffer."""
    source = np.frombuffer(frames, dtype=np.uint8)
    for at in range(0, source.size, WINDOW):
        part = source[at : at + WINDOW]
        np.copyto(_TARGET[: part.size], part)


_TARGET: Final = np.zeros(WINDOW, dtype=np.uint8)


def decode_objects(frames: memoryview) -> int:
    """Make one message per frame."""
    buffer = FrameBuffer()
    buffer.feed(frames)
    messages = 0
    for frame in buffer:
        decode(frame, Dialect.DCP_7)
        messages += 1
    return messages


def against_memcpy(run: Run, value_size: int) -> Value:
    """Return the scan's speed as a part of memcpy's."""
    frames = stream_of(value_size, *run.pick(full=(SAMPLE_SIZE, REPEATS), quick=(1 << 20, 1)))
    return run.compare(lambda: scan(frames), lambda: copy(frames)).speed


def against_objects(run: Run, value_size: int) -> Value:
    """Return the scan's speed as a multiple of the message objects'."""
    frames = stream_of(value_size, run.pick(full=4 << 20, quick=1 << 18))
    return run.compare(lambda: scan(frames), lambda: decode_objects(frames)).speed


@figure("decode.kernel_vs_memcpy.64", unit="ratio", goal=0.6, better="higher")
def memcpy_64(run: Run) -> Value:
    """Columns against memcpy, values of 64 bytes."""
    return against_memcpy(run, 64)


@figure("decode.kernel_vs_memcpy.256", unit="ratio", goal=0.6, better="higher")
def memcpy_256(run: Run) -> Value:
    """Columns against memcpy, values of 256 bytes."""
    return against_memcpy(run, 256)


@figure("decode.kernel_vs_memcpy.1024", unit="ratio", goal=0.6, better="higher")
def memcpy_1024(run: Run) -> Value:
    """Columns against memcpy, values of 1024 bytes."""
    return against_memcpy(run, 1024)


@figure("decode.kernel_vs_objects.64", unit="ratio", goal=30, better="higher")
def objects_64(run: Run) -> Value:
    """Columns against message objects, values of 64 bytes."""
    return against_objects(run, 64)


@figure("decode.kernel_vs_objects.256", unit="ratio", goal=30, better="higher")
def objects_256(run: Run) -> Value:
    """Columns against message objects, values of 256 bytes."""
    return against_objects(run, 256)


@figure("decode.kernel_vs_objects.1024", unit="ratio", goal=30, better="higher")
def objects_1024(run: Run) -> Value:
    """Columns against message objects, values of 1024 bytes."""
    return against_objects(run, 1024)


@figure("decode.kernel_rows_per_second.256", unit="rows/s", goal=None, better="higher")
def rows_256(run: Run) -> Value:
    """Rows per second and core, values of 256 bytes; depends on the machine, hence no goal."""
    frames = stream_of(256, *run.pick(full=(SAMPLE_SIZE, REPEATS), quick=(1 << 20, 1)))
    return run.time(lambda: scan(frames)).per_second(scan(frames))


def start_of(run: Run, clock: Clock) -> Value:
    """Return the seconds of import and first scan in a fresh interpreter."""
    frame = encode(Mutation(by_seqno=1, key=b"key", value=b"value"), Dialect.DCP_7)
    command = [sys.executable, "-c", START.format(frame=frame.hex(), clock=clock.value)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)  # noqa: S603 - our own words
    seconds = []
    for _ in range(run.runs):
        done = subprocess.run(  # noqa: S603 - our own words
            command, check=True, capture_output=True, text=True, timeout=120
        )
        seconds.append(float(done.stdout))
    return Value(float(np.median(seconds)), run.runs)


@figure("decode.kernel_start_seconds", unit="s", goal=0.7, better="lower")
def start(run: Run) -> Value:
    """CPU time of import and first scan in a fresh interpreter."""
    return start_of(run, Clock.CPU)


@figure("decode.kernel_start_wall_seconds", unit="s", goal=None, better="lower")
def start_by_the_wall(run: Run) -> Value:
    """Time on the wall of the same."""
    return start_of(run, Clock.WALL)
