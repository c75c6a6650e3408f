"""Tables of any size without a node: rows made up and landed, turns of changes on top."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.history import FailoverLog, Seqno, VBucketId
from headrace.spark.jobs import LocalRunner
from headrace.spark.landing import Landed, RowFile
from headrace.spark.positions import START
from headrace.spark.rows import ROW_SCHEMA
from headrace.spark.tables.changes import ChangesTable
from headrace.spark.tables.state import StateOptions, StateTable

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

VBUCKETS, PARTS = 1024, 8
CHUNK = 250_000
VALUE = b'{"name": "' + b"x" * 200 + b'"}'
LOG = FailoverLog.of((0xABCDEF, 0))


def rows_of(numbers: np.ndarray, part: int, seqno: int) -> pa.RecordBatch:
    """Rows of a part for documents with these numbers."""
    count = len(numbers)
    width = VBUCKETS // PARTS
    columns: dict[str, pa.Array] = {
        "vbucket": pa.array((part * width + numbers % width).astype(np.int32)),
        "epoch": pa.array(np.zeros(count, np.int64)),
        "seqno": pa.array(np.arange(seqno, seqno + count)),
        "branch": pa.array(np.full(count, 0xABCDEF)),
        "event": pa.array(["mutation"] * count),
        "key": pa.array([f"document::{part}::{number:09d}" for number in numbers.tolist()]),
        "value": pa.array([VALUE] * count, pa.binary()),
    }
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in ROW_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def grown(
    path: Path, keys: int, changes: int
) -> tuple[Callable[[], object], Callable[[random.Random], None]]:
    """Tables with that many keys: how `state` follows, and how a turn of changes is made."""
    table, state = ChangesTable(path / "changes"), StateTable(path / "state")
    table.create(vbuckets=VBUCKETS, parts=PARTS)
    options = StateOptions(rebuild_turns=1_000)
    follow = functools.partial(state.follow, table, LocalRunner(), options)
    seqno = 1

    def publish(chosen: Callable[[int], list[np.ndarray]]) -> None:
        nonlocal seqno
        turn = table.table.turn + 1
        files = []
        for part in range(PARTS):
            file = RowFile(table.path, part, turn)
            for numbers in chosen(part):
                file.write(rows_of(numbers, part, seqno))
                seqno += len(numbers)
            if (landed := file.finish()) is not None:
                files.append(landed)
        vector = {VBucketId(0): START.advanced(Seqno(seqno), LOG)}
        table.commit(turn, Landed(tuple(files), {}, (), {}, 0, 0), vector)

    each = keys // PARTS
    publish(lambda _: [np.arange(at, min(at + CHUNK, each)) for at in range(0, each, CHUNK)])
    follow()

    def turn(draw: random.Random) -> None:
        publish(lambda _: [np.array([draw.randrange(each) for _ in range(changes // PARTS)])])

    return follow, turn
