from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from headrace.capture.source import open_source
from headrace.capture.walk import Item, walk
from headrace.cli import parquet
from headrace.cli.follow import Follower
from headrace.cli.parquet import write_parquet
from headrace.columns.schema import SCHEMA, Event
from headrace.errors import CaptureError
from headrace.wire.admin import HelloReply
from headrace.wire.dialect import Dialect
from headrace.wire.messages import (
    Commit,
    Deletion,
    Expiration,
    Mutation,
    Prepare,
    SeqnoAdvanced,
    SnapshotMarker,
    SystemEvent,
)
from headrace.wire.opcodes import Feature
from headrace.wire.values import split_collection
from tests.cli.building import THERE, item_of

if TYPE_CHECKING:
    from collections.abc import Iterator

CAPTURES = Path(__file__).parents[1] / "captures"
ROWS = Mutation | Deletion | Expiration | Prepare | Commit | SystemEvent | SeqnoAdvanced


def run(items: list[Item], out: Path, wanted: list[bool] | None = None) -> list[dict[str, object]]:
    follower = Follower()

    def seen() -> Iterator[tuple[Item, bool]]:
        for number, item in enumerate(items):
            follower.see(item)
            yield item, wanted[number] if wanted else True

    write_parquet(seen(), Dialect.DCP_7, str(out), follower=follower, strict=False)
    table = pq.read_table(out)
    assert table.schema.equals(SCHEMA)
    rows: list[dict[str, object]] = table.to_pylist()
    return rows


MARKER = item_of(SnapshotMarker(start_seqno=1, end_seqno=9, flags=2, vbucket=3))
ONE = item_of(Mutation(by_seqno=1, key=b"\x08one", value=b"1", vbucket=3))
TWO = item_of(Deletion(by_seqno=2, key=b"\x08two", delete_time=5, vbucket=3))


def test_rows_carry_their_snapshot_and_the_collection_when_it_was_negotiated(
    tmp_path: Path,
) -> None:
    hello = item_of(HelloReply(features=(Feature.COLLECTIONS,)))
    one, two = run([hello, MARKER, ONE, TWO], tmp_path / "x.parquet")
    assert (one["event"], one["key"], one["collection_id"]) == (Event.MUTATION, b"one", 8)
    assert (one["snapshot_start"], one["snapshot_end"], one["value"]) == (1, 9, b"1")
    assert (two["event"], two["seqno"], two["delete_time"]) == (Event.DELETION, 2, 5)
    (plain, _) = run([MARKER, ONE, TWO], tmp_path / "x.parquet")
    assert (plain["key"], plain["collection_id"]) == (b"\x08one", None)


def test_a_filter_leaves_out_rows_and_never_markers(tmp_path: Path) -> None:
    (two,) = run([MARKER, ONE, TWO], tmp_path / "x.parquet", [False, False, True])
    assert (two["seqno"], two["snapshot_end"]) == (2, 9)


def test_streams_of_two_directions_do_not_share_snapshots(tmp_path: Path) -> None:
    other = item_of(Mutation(by_seqno=5, key=b"x", vbucket=3), direction=THERE)
    rows = run([MARKER, other, ONE], tmp_path / "x.parquet")
    assert {row["seqno"]: row["snapshot_end"] for row in rows} == {5: None, 1: 9}


def test_bytes_are_scanned_in_bounded_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FLUSH_SIZE", 100)
    items = [item_of(Mutation(by_seqno=n, key=b"k%d" % n, vbucket=3)) for n in range(1, 50)]
    rows = run([MARKER, *items], tmp_path / "x.parquet")
    assert [row["seqno"] for row in rows] == list(range(1, 50))
    assert {row["snapshot_end"] for row in rows} == {9}


@pytest.mark.parametrize(
    "file", ["01_backfill_665.pcap", "12a_collections_live_665.pcap", "14_stream_id_665.pcap"]
)
def test_a_real_capture_gives_the_rows_that_decoding_gives(file: str, tmp_path: Path) -> None:
    with open_source(str(CAPTURES / file)) as source:
        items = list(walk(source, Dialect.DCP_7, strict=False))
    follower = Follower()
    expected = []
    for item in items:
        follower.see(item)
        if isinstance(item.message, ROWS):
            key = getattr(item.message, "key", b"")
            if follower.collections(item.connection) and not isinstance(item.message, SystemEvent):
                key = split_collection(key)[1]
            seqno = getattr(item.message, "by_seqno", None) or item.message.commit_seqno  # type: ignore[union-attr]
            value = getattr(item.message, "value", b"")
            expected.append((item.message.vbucket, seqno, key, value, item.message.stream_id))
    rows = run(items, tmp_path / "x.parquet")
    found = [
        (row["vbucket"], row["seqno"], row["key"], row["value"], row["stream_id"]) for row in rows
    ]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert len(found) > 10


def test_a_key_without_the_collection_it_must_have_is_a_fault(tmp_path: Path) -> None:
    hello = item_of(HelloReply(features=(Feature.COLLECTIONS,)))
    broken = item_of(Mutation(by_seqno=3, key=b"\xff\xff\xff\xff\xff\xff"))
    with pytest.raises(CaptureError, match=r"1 frames made no row in .* the other 1"):
        run([hello, MARKER, broken, ONE], tmp_path / "x.parquet")


def test_a_file_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be written"):
        run([ONE], tmp_path / "nowhere" / "x.parquet")
    assert list(tmp_path.iterdir()) == []


def test_rows_before_the_damage_are_written_and_the_damage_is_told(tmp_path: Path) -> None:
    out = tmp_path / "x.parquet"
    out.write_bytes(b"old")

    def failing() -> Iterator[tuple[Item, bool]]:
        yield ONE, True
        raise CaptureError("the capture ends here")

    with pytest.raises(CaptureError, match="ends here"):
        write_parquet(failing(), Dialect.DCP_7, str(out), follower=Follower())
    assert pq.read_table(out).num_rows == 1
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_that_was_there_stays_when_writing_breaks_off(tmp_path: Path) -> None:
    out = tmp_path / "x.parquet"
    out.write_bytes(b"old")

    def broken() -> Iterator[tuple[Item, bool]]:
        yield ONE, True
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_parquet(broken(), Dialect.DCP_7, str(out), follower=Follower())
    assert out.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [out]


def test_nothing_to_write_is_an_empty_table(tmp_path: Path) -> None:
    assert run([MARKER], tmp_path / "x.parquet") == []
