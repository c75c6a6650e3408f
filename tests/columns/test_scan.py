"""The front door: the contract of scan, the state of streams, and the model it must agree with."""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.capture.source import open_source
from headrace.capture.walk import walk
from headrace.columns.block import ROWS_MAX, BlockPool
from headrace.columns.scan import Scanner, warm
from headrace.columns.schema import SCHEMA
from headrace.columns.table import MARKS_MAX, Reason, Step
from headrace.errors import ConfigError
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import split_frames
from headrace.wire.messages import Mutation, Prepare, SnapshotMarker
from headrace.wire.opcodes import Opcode
from tests.columns.makers import D7, frame, marker, mutation
from tests.columns.roads import kernel_road, plain_road
from tests.fuzz.conversations import drawn_frame, recorded_frames
from tests.fuzz.fuzz_wire import main as fuzz
from tests.fuzz.target_columns import check

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.capture.conversation import Direction

CAPTURES: Final = Path(__file__).parent.parent / "captures"
VECTORS: Final = Path(__file__).parent.parent / "vectors" / "vectors.json"
SID: Final = b"\x22\x00\x07"


# -- the contract ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, "u1")]
)
def test_any_buffer_of_bytes_is_taken(kind: Callable[[bytes], bytes]) -> None:
    data = marker(1, 9) + mutation(1)
    result = Scanner().scan(kind(data))
    assert result.consumed == len(data)
    assert result.batch.num_rows == 1


def test_nothing_in_gives_nothing_out() -> None:
    result = Scanner().scan(b"")
    assert (result.consumed, result.counted, result.error) == (0, 0, None)
    assert result.batch.schema.equals(SCHEMA, check_metadata=True)
    assert len(result.others) == 0


def test_a_scan_looks_at_its_window_and_the_next_goes_on() -> None:
    one = mutation(1)
    scanner = Scanner(window=3 * len(one) + 5)
    assert scanner.scan(one * 10).batch.num_rows == 3
    assert scanner.offset == 3 * len(one)


def test_a_frame_longer_than_the_window_is_taken_alone() -> None:
    small, large = mutation(1), mutation(2, value=bytes(10_000))
    scanner = Scanner(window=1000)
    data = small + large + small
    counts = []
    while (result := scanner.scan(data)).consumed:
        data = data[result.consumed :]
        counts.append(result.batch.num_rows)
    assert counts == [1, 1, 1]
    assert data == b""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"window": 1}, "window is 1, allowed: 24 to 67108864"),
        ({"rows_max": 0}, "rows_max is 0, allowed: 1 to 49152"),
        ({"rows_max": ROWS_MAX + 1}, f"rows_max is {ROWS_MAX + 1}"),
        ({"body_size_max": 1 << 30}, "body_size_max is 1073741824"),
        ({"others_max": 0}, "others_max is 0"),
        ({"named_streams_max": -1}, "named_streams_max is -1"),
    ],
)
def test_a_limit_outside_its_limits_is_refused(options: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Scanner(**options)  # type: ignore[arg-type]


def test_rows_and_other_frames_can_be_put_back_in_order() -> None:
    data = mutation(1) + frame(0x5C) + mutation(2) + mutation(3) + frame(0x55, bytes(4))
    others = Scanner().scan(data).others
    assert others["row"].tolist() == [1, 3]
    assert [data[offset + 1] for offset in others["offset"].tolist()] == [0x5C, 0x55]
    assert others["reason"].tolist() == [Reason.OTHER, Reason.OTHER]


def test_bytes_are_counted_as_a_producer_counts_them() -> None:
    prepare = encode(Prepare(by_seqno=3, durability=1, key=b"k"), D7)
    counted = (
        marker(1, 9) + mutation(1) + frame(0x55, bytes(4)) + frame(0x57, b"bad", b"k") + prepare
    )
    free = frame(0x5C) + frame(0x53, magic=0x81) + frame(0x57, bytes(31), b"k", magic=0x82)
    scanner = Scanner()
    result = scanner.scan(counted + free)
    assert result.counted == len(counted) + 2
    assert scanner.stream(5).counted == len(marker(1, 9)) + len(mutation(1)) + 28
    assert scanner.stream(0).counted == len(prepare) + 2


# -- snapshots and streams -------------------------------------------------------------------------


def column(scanner: Scanner, data: bytes, name: str) -> list[object]:
    values: list[object] = scanner.scan(data).batch.column(name).to_pylist()
    return values


def test_a_row_carries_the_snapshot_in_force_across_scans() -> None:
    scanner = Scanner()
    assert column(scanner, mutation(1), "snapshot_end") == [None]
    scanner.scan(marker(2, 5))
    assert column(scanner, mutation(2) + mutation(3), "snapshot_end") == [5, 5]
    data = mutation(4) + marker(6, 7) + mutation(6)
    assert column(scanner, data, "snapshot_end") == [5, 7]


def test_snapshots_of_vbuckets_do_not_mix() -> None:
    data = marker(1, 10, vbucket=0) + marker(1, 20, vbucket=65535)
    data += mutation(1, vbucket=0) + mutation(1, vbucket=65535) + mutation(1, vbucket=1)
    assert column(Scanner(), data, "snapshot_end") == [10, 20, None]


@pytest.mark.parametrize("end", [frame(0x55, bytes(4)), frame(0x65, b"\0\0\0\1")])
def test_after_the_end_of_a_stream_no_snapshot_is_in_force(end: bytes) -> None:
    scanner = Scanner()
    data = marker(1, 9) + mutation(1) + end + mutation(2)
    assert column(scanner, data, "snapshot_flags") == [1, None]
    assert not scanner.stream(5).marked


def test_streams_with_ids_have_snapshots_of_their_own() -> None:
    def named(opcode: int, extras: bytes, key: bytes = b"") -> bytes:
        return frame(opcode, extras, key, magic=0x08, framing=SID)

    scanner = Scanner()
    data = marker(1, 9) + named(0x56, bytes(15) + b"\x04" + bytes(4)) + mutation(1)
    data += named(0x57, bytes(7) + b"\x03" + bytes(23), b"k")
    assert column(scanner, data, "snapshot_end") == [9, 4]
    assert scanner.stream(5, 7).seqno == 3
    assert scanner.stream(5, 8).seqno is None
    assert scanner.stream(5).seqno == 1


def test_many_named_streams_are_kept_apart_and_the_table_grows_in_the_middle_of_a_scan() -> None:
    parts = []
    for number in range(1000):
        framing = b"\x22" + number.to_bytes(2, "big")
        extras = bytes(8) + number.to_bytes(8, "big") + bytes(4)
        parts.append(frame(0x56, extras, magic=0x08, framing=framing, vbucket=number % 7))
    for number in range(1000):
        framing = b"\x22" + number.to_bytes(2, "big")
        parts.append(frame(0x57, bytes(31), b"k", magic=0x08, framing=framing, vbucket=number % 7))
    scanner = Scanner()
    assert column(scanner, b"".join(parts), "snapshot_end") == list(range(1000))
    assert scanner.stream(999 % 7, 999).snapshot_end == 999


def test_streams_beyond_the_limit_are_handed_back_and_known_ones_go_on() -> None:
    def row(stream_id: int) -> bytes:
        framing = b"\x22" + stream_id.to_bytes(2, "big")
        return frame(0x57, bytes(31), b"k", magic=0x08, framing=framing)

    scanner = Scanner(named_streams_max=2)
    result = scanner.scan(row(1) + row(2) + row(3) + row(1) + mutation(1))
    assert [line[2] for line in result.others.tolist()] == [Reason.STREAMS]
    assert result.batch.column("stream_id").to_pylist() == [1, 2, 1, None]


def test_forgetting_a_stream_leaves_the_others() -> None:
    scanner = Scanner()
    scanner.scan(marker(1, 9) + marker(1, 8, vbucket=6) + mutation(4))
    scanner.forget(5)
    scanner.forget(5, 7)
    assert scanner.stream(5) == Scanner().stream(5)
    assert scanner.stream(6).snapshot_end == 8


def test_seqnos_use_all_64_bits() -> None:
    top = 0xFFFF_FFFF_FFFF_FFFF
    scanner = Scanner()
    data = marker(top - 1, top) + mutation(top)
    assert column(scanner, data, "seqno") == [top]
    assert (scanner.stream(5).seqno, scanner.stream(5).snapshot_end) == (top, top)


def test_every_marker_is_a_step_for_an_owner_who_asks() -> None:
    data = marker(1, 9) + mutation(1) + marker(10, 12)
    result = Scanner(steps=True).scan(data)
    assert result.others.tolist() == []
    assert [(s[Step.START], s[Step.STOP], s[Step.FIRST], s[Step.LAST]) for s in result.steps] == [
        (0, 0, 1, 9),
        (0, 1, 1, 1),
        (1, 1, 10, 12),
    ]
    assert result.marked == len(data) - len(mutation(1))
    assert result.batch.column("snapshot_end").to_pylist() == [9]


def steps_by_hand(data: bytes) -> list[tuple[int, ...]]:
    """Steps as a person finds them: frame by frame, a run cut at every frame that is no row of it.

    (Frames handed back before it, first row, row behind the last, opaque, vbucket, least seqno or
    start, greatest or end, CAS or flags, purge seqno, whether it was told.)
    """
    steps: list[tuple[int, ...]] = []
    rows = others = 0
    run: list[Mutation] = []

    def end_run() -> None:
        if run:
            seqnos = [one.by_seqno for one in run]
            numbers = (rows - len(run), rows, run[0].opaque, run[0].vbucket)
            told = (min(seqnos), max(seqnos), run[-1].cas, 0, 0)
            steps.append((others, *numbers, *told))
            run.clear()

    for one in split_frames(data):
        message = decode(one, D7)
        if isinstance(message, Mutation):
            if run and (run[-1].opaque, run[-1].vbucket) != (message.opaque, message.vbucket):
                end_run()
            run.append(message)
            rows += 1
            continue
        end_run()
        if isinstance(message, SnapshotMarker) and message.start_seqno is not None:
            assert message.end_seqno is not None
            numbers = (rows, rows, message.opaque, message.vbucket)
            span = (message.start_seqno, message.end_seqno, message.flags or 0)
            purge = message.purge_seqno
            steps.append((others, *numbers, *span, purge or 0, purge is not None))
        else:
            others += 1
    end_run()
    return steps


@pytest.mark.parametrize("seed", range(30))
def test_steps_are_runs_and_markers_in_the_order_of_the_wire(seed: int) -> None:
    draw = Random(seed)
    seqnos = [draw.choice([0, 1 << 62, (1 << 64) - 2000]) for _ in range(3)]
    top = (1 << 64) - 1
    data = b"".join(marker(1, top, vbucket=vbucket) for vbucket in range(3))
    for _ in range(200):
        vbucket = draw.randrange(3)
        for _ in range(draw.randrange(4)):
            seqnos[vbucket] += draw.randrange(1, 3)
            data += mutation(seqnos[vbucket], vbucket=vbucket, opaque=9 if vbucket else 8)
        while draw.random() < 0.3:
            long = SnapshotMarker(
                vbucket=vbucket,
                opaque=draw.randrange(1 << 32),
                start_seqno=draw.randrange(top),
                end_seqno=top,
                flags=draw.choice([1, 2, 10, 16]),
                max_visible_seqno=draw.randrange(top),
                high_completed_seqno=1,
                purge_seqno=draw.choice([0, 7, top]),
            )
            data += draw.choice([marker(1, top, vbucket=vbucket), encode(long, D7), frame(0x5C)])
    result = Scanner(steps=True).scan(data)
    assert result.broken_at is None
    assert [tuple(step) for step in result.steps] == steps_by_hand(data), seed
    markers = [one for one in split_frames(data) if one.opcode == Opcode.SNAPSHOT_MARKER]
    assert result.marked == sum(one.size for one in markers)


def test_a_marker_that_is_no_step_is_handed_back() -> None:
    """The draft's has no range; and there is room for so many of the others."""
    draft = Scanner(Dialect.UPR_DRAFT, steps=True).scan(frame(0x56))
    assert (draft.steps, draft.others["reason"].tolist()) == ([], [Reason.MARKER])
    result = Scanner(steps=True).scan(marker(1, 9) * (MARKS_MAX + 2) + mutation(1) + marker(2, 9))
    assert len(result.steps) == MARKS_MAX + 1
    assert result.others["row"].tolist() == [0, 0, 1]
    assert result.steps[-1][Step.OTHERS : Step.STOP + 1] == [2, 0, 1]
    assert result.marked == MARKS_MAX * len(marker(1, 9))


def test_steps_end_before_the_row_that_does_not_rise() -> None:
    rising = mutation(5) + mutation(7)
    scanner = Scanner(steps=True)
    result = scanner.scan(marker(1, 9) + rising + mutation(7) + mutation(8) + marker(10, 12))
    places = [step[Step.START : Step.STOP + 1] for step in result.steps]
    assert (result.broken_at, places) == (2, [[0, 0], [0, 2]])
    assert Scanner(steps=True).scan(rising + mutation(6)).broken_at is None, (
        "without a marker any order may be"
    )
    assert scanner.scan(mutation(1)).broken_at is None, "a scan knows its own rows alone"


def test_nobody_pays_for_steps_who_does_not_ask() -> None:
    assert Scanner().scan(marker(1, 9) + mutation(1)).steps == []


# -- memory ----------------------------------------------------------------------------------------


def test_a_batch_that_is_kept_is_not_changed_by_later_scans() -> None:
    pool = BlockPool()
    scanner = Scanner(pool=pool)
    data = [
        b"".join(mutation(s, key=bytes([k]) * 9, value=bytes([k]) * 99) for s in range(1, 2000))
        for k in range(6)
    ]
    kept = [scanner.scan(part).batch for part in data]
    copies = [pa.ipc.read_record_batch(batch.serialize(), SCHEMA) for batch in kept]
    del kept[::2]
    gc.collect()
    for part in data:
        scanner.scan(part)
    for batch, copy in zip(kept, copies[1::2], strict=True):
        assert batch.equals(copy)


def held_as_a_slice(batch: pa.RecordBatch) -> object:
    return batch.slice(100, 300)


def held_as_one_column(batch: pa.RecordBatch) -> object:
    return batch.column("value")


def held_as_numpy(batch: pa.RecordBatch) -> object:
    return batch.column("seqno").to_numpy(zero_copy_only=True)[5:500]


def held_as_a_table(batch: pa.RecordBatch) -> object:
    return pa.Table.from_batches([batch, batch.slice(7)]).select(["key", "value"])


def held_as_computed(batch: pa.RecordBatch) -> object:
    return pc.struct_field(pa.StructArray.from_arrays(batch.columns[:5], names="abcde"), "e")


def held_as_a_scalar(batch: pa.RecordBatch) -> object:
    return batch.column("value")[1234]


def held_as_a_buffer(batch: pa.RecordBatch) -> object:
    return memoryview(batch.column("value").buffers()[2])[1000:2000]


def held_through_the_c_interface(batch: pa.RecordBatch) -> object:
    return pa.RecordBatch._import_from_c_capsule(*batch.__arrow_c_array__())


def held_by_a_reader(batch: pa.RecordBatch) -> object:
    return pa.RecordBatchReader.from_batches(SCHEMA, [batch]).read_all()


def shown(held: object) -> object:
    """What is in it now, copied."""
    if isinstance(held, np.ndarray):
        return held.tolist()
    if isinstance(held, memoryview):
        return bytes(held)
    if isinstance(held, pa.Scalar):
        return held.as_py()
    assert isinstance(held, pa.RecordBatch | pa.Table | pa.Array)
    return held.to_pylist()


@pytest.mark.parametrize(
    "hold",
    [
        held_as_a_slice,
        held_as_one_column,
        held_as_numpy,
        held_as_a_table,
        held_as_computed,
        held_as_a_scalar,
        held_as_a_buffer,
        held_through_the_c_interface,
        held_by_a_reader,
    ],
)
def test_whatever_is_held_of_a_batch_does_not_change_while_more_arrives(
    hold: Callable[[pa.RecordBatch], object],
) -> None:
    """The batch itself is let go: only what was made of it keeps the memory."""
    scanner = Scanner(pool=BlockPool())
    data = [
        b"".join(mutation(s, key=bytes([k]) * 9, value=bytes([k]) * 99) for s in range(1, 1500))
        for k in range(4)
    ]
    held = []
    for turn in range(8):
        batch = scanner.scan(data[turn % 4]).batch
        held.append((hold(batch), shown(hold(batch))))
        del batch
        gc.collect()
        if turn % 3 == 2:
            del held[0]
    for _ in range(3):
        for part in data:
            scanner.scan(part)
    assert all(shown(one) == then for one, then in held)


def test_a_pickled_batch_is_a_copy() -> None:
    scanner = Scanner(pool=BlockPool())
    first = b"".join(mutation(seqno, value=b"a" * 99) for seqno in range(1, 1500))
    batch = scanner.scan(first).batch
    then = batch.to_pylist()
    copy = pickle.loads(pickle.dumps(batch))  # noqa: S301 - our own bytes
    del batch
    gc.collect()
    scanner.scan(first.replace(b"a" * 99, b"b" * 99))
    assert copy.to_pylist() == then


def test_a_block_of_a_batch_that_is_gone_is_used_again() -> None:
    pool = BlockPool()
    scanner = Scanner(pool=pool)
    data = b"".join(mutation(seqno, value=bytes(300)) for seqno in range(1, 3000))
    addresses = {scanner.scan(data).batch.column("value").buffers()[2].address for _ in range(9)}
    assert len(addresses) == 1


def test_a_batch_outlives_scanner_and_pool() -> None:
    batch = Scanner().scan(mutation(1, value=bytes(5000)) * 100).batch
    gc.collect()
    batch.validate(full=True)
    assert batch.column("value").to_pylist() == [bytes(5000)] * 100


def test_a_small_batch_does_not_hold_a_block() -> None:
    pool = BlockPool()
    scanner = Scanner(pool=pool)
    kept = [scanner.scan(mutation(seqno)).batch for seqno in range(1, 50)]
    (free,) = pool._free.values()
    assert len(free) == 1, "the one block went back after every scan"
    assert [batch.column("seqno")[0].as_py() for batch in kept] == list(range(1, 50))
    assert sum(batch.get_total_buffer_size() for batch in kept) < 200_000


def test_columns_of_a_batch_are_aligned_as_arrow_recommends() -> None:
    batch = Scanner().scan((mutation(1) + frame(0x58, bytes(21), b"k")) * 2000).batch
    for array in batch.columns:
        assert all(buffer is None or buffer.address % 64 == 0 for buffer in array.buffers()[:2])


# -- starting --------------------------------------------------------------------------------------


def test_llvm_is_loaded_by_the_first_scanner_and_numba_only_to_compile() -> None:
    warm()  # so that there is kept code
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(Path(headrace.__file__).parent.parent)!r})\n"
        "import headrace.columns, headrace.columns.scan, headrace.columns.builder\n"
        "assert 'llvmlite' not in sys.modules\n"
        "headrace.columns.scan.warm()\n"
        "assert 'llvmlite' in sys.modules\n"
        "assert 'numba' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_warming_twice_does_nothing_more() -> None:
    warm()
    warm()


# -- against the model -----------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("collections", [False, True])
def test_every_vector_gives_what_the_plain_decoder_gives(
    dialect: Dialect, collections: bool
) -> None:
    for vector in json.loads(VECTORS.read_text(encoding="utf-8")):
        data = bytes.fromhex(vector["hex"])
        plain = plain_road(data, dialect, collections=collections)
        scanner = Scanner(dialect, collections=collections)
        assert not plain.differences(kernel_road(scanner, [data])), vector["name"]


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.pcap")), ids=lambda path: path.stem)
def test_every_captured_conversation_gives_what_the_plain_decoder_gives(path: Path) -> None:
    dialect = Dialect.DCP_5 if "_605" in path.name else Dialect.DCP_7
    collections = path.name.startswith(("12", "14"))
    lanes: dict[tuple[int, Direction], bytearray] = {}
    with open_source(str(path)) as source:
        for item in walk(source, dialect, strict=False):
            if item.frame is not None:
                lanes.setdefault((item.connection.number, item.direction), bytearray()).extend(
                    item.data
                )
    rows = 0
    for lane in lanes.values():
        data = bytes(lane)
        plain = plain_road(data, dialect, collections=collections, stream_ids=True)
        scanner = Scanner(dialect, collections=collections, stream_ids=True)
        found = kernel_road(scanner, [data])
        assert not plain.differences(found)
        assert plain.consumed == len(data)
        rows += plain.rows.num_rows
    assert rows or not path.name.startswith(("01", "02", "03", "09", "10", "11", "12", "13", "14"))


@given(st.randoms(use_true_random=False), st.integers(1, 30), st.data())
def test_bent_streams_give_what_the_plain_decoder_gives(
    random: Random, frames: int, data: st.DataObject
) -> None:
    recorded = recorded_frames()
    parts = [
        drawn_frame(random) if random.random() < 0.7 else random.choice(recorded)
        for _ in range(frames)
    ]
    stream = bytearray(b"".join(parts))
    for place in data.draw(st.lists(st.integers(0, len(stream) - 1), max_size=3)):
        stream[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(stream)))
    check(random, bytes(stream[:cut]))


def test_every_split_of_a_stream_gives_the_same() -> None:
    random = Random(4)
    stream = marker(1, 9) + b"".join(drawn_frame(random) for _ in range(12)) + mutation(1)
    whole = kernel_road(Scanner(), [stream])
    assert whole.rows.num_rows > 3
    for place in range(len(stream)):
        found = kernel_road(Scanner(), [stream[:place], stream[place:]])
        assert not whole.differences(found), place
    single = kernel_road(Scanner(), [stream[place : place + 1] for place in range(len(stream))])
    assert not whole.differences(single)


def test_twenty_thousand_frames_go_both_roads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--frames", "20000", "--seconds", "100", "--directory", str(tmp_path)]
    assert fuzz(options) == 0, capsys.readouterr().out
    assert "no fault in 20," in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
