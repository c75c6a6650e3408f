"""The living documents: latest versions, rollbacks, dropped collections, base and tail."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headrace.columns.schema import Event
from headrace.errors import ConfigError
from headrace.spark.jobs import LocalRunner
from headrace.spark.rows import ROW_SCHEMA
from headrace.spark.sync import Sync, SyncOptions
from headrace.spark.tables.state import StateOptions, latest, living_rows
from headrace.spark.tables.views import arrow_state
from headrace.wire.opcodes import SystemEventId
from tests.spark.producer import InMemory, Producer

if TYPE_CHECKING:
    from pathlib import Path


def rows(*described: tuple[int, int, int, str, str]) -> pa.Table:
    """Rows from (vbucket, epoch, seqno, event, key)."""
    found = [
        {"vbucket": v, "epoch": e, "seqno": s, "branch": 1, "event": event, "key": key}
        for v, e, s, event, key in described
    ]
    return pa.Table.from_pylist(found, schema=ROW_SCHEMA)


def test_the_latest_version_is_by_epoch_and_then_by_seqno() -> None:
    table = rows((0, 0, 9, "mutation", "a"), (0, 1, 3, "mutation", "a"), (1, 0, 2, "mutation", "a"))
    found = latest(table).select(["vbucket", "epoch", "seqno"]).to_pylist()
    assert [tuple(row.values()) for row in found] == [(0, 1, 3), (1, 0, 2)]


def test_a_rollback_ends_what_lies_above_it_in_older_epochs() -> None:
    table = rows(
        (0, 0, 4, "mutation", "a"),
        (0, 0, 5, "mutation", "b"),
        (0, 1, 4, "rollback", ""),
        (0, 1, 5, "mutation", "c"),
        (1, 0, 5, "mutation", "d"),
    )
    assert living_rows(table)["key"].to_pylist() == ["a", "", "c", "d"]


def test_a_dropped_collection_ends_its_documents_and_a_withdrawn_drop_does_not() -> None:
    table = rows(
        (0, 0, 1, "mutation", "a"), (0, 0, 2, "system", "drop"), (0, 0, 3, "mutation", "b")
    )
    index = table.schema.get_field_index
    table = table.set_column(
        index("collection_id"), "collection_id", pa.array([8, 8, 8], pa.int64())
    )
    drop = int(SystemEventId.END_COLLECTION)
    table = table.set_column(
        index("system_event"), "system_event", pa.array([None, drop, None], pa.int32())
    )
    assert living_rows(table)["key"].to_pylist() == ["drop", "b"]
    undone = pa.concat_tables([table, rows((0, 1, 1, "rollback", "")).cast(table.schema)])
    assert living_rows(undone)["key"].to_pylist() == ["a", ""]


def synced(producer: Producer, path: Path, **options: object) -> Sync:
    state = StateOptions(**options)  # type: ignore[arg-type]
    return Sync(InMemory(producer), path, LocalRunner(), SyncOptions(parts=2, state=state))


def documents(path: Path, **options: bool) -> dict[tuple[int, str], str]:
    return {
        (row["vbucket"], row["key"]): (row["value"] or b"").decode()
        for row in arrow_state(path, **options).to_pylist()
    }


@pytest.mark.parametrize("rebuild_turns", [1, 3, 100])
@pytest.mark.parametrize("seed", range(3))
def test_the_table_is_the_producers_state_after_every_turn(
    tmp_path: Path, rebuild_turns: int, seed: int
) -> None:
    draw = random.Random(seed)
    producer = Producer.with_vbuckets(4)
    sync = synced(producer, tmp_path, rebuild_turns=rebuild_turns)
    for _ in range(8):
        for _ in range(12):
            vb, key = draw.randrange(4), draw.choice("abcdef")
            if draw.random() < 0.3:
                producer.delete(vb, key)
            else:
                producer.put(vb, key, f"{draw.random()}")
            if draw.random() < 0.2:
                producer.cut(vb)
        if draw.random() < 0.4:
            vb = draw.randrange(4)
            producer.fail_over(vb, draw.randrange(producer.histories[vb].high + 1))
        list(sync.once())
        assert documents(tmp_path) == producer.state(), f"seed {seed}"
    assert sync.state.turn == sync.changes.table.turn


def test_small_turns_append_a_tail_and_leave_the_base_alone(tmp_path: Path) -> None:
    producer = Producer.with_vbuckets(2)
    for number in range(200):
        producer.put(number % 2, f"k{number}", "first")
    sync = synced(producer, tmp_path, rebuild_turns=4)
    list(sync.once())
    base = {file.path for file in sync.state.table.files()}
    names: list[int] = []
    for turn in range(4):
        producer.put(0, "k0", f"turn {turn}")
        list(sync.once())
        files = {file.path for file in sync.state.table.files()}
        names.append(len(files))
        assert documents(tmp_path)[0, "k0"] == f"turn {turn}"
    assert names[:3] == [3, 4, 5]
    assert names[3] == 2, "the fourth turn merges"
    assert not any(path.startswith("part=0") for path in base & files)


def test_a_state_that_was_not_committed_is_made_up_for(tmp_path: Path) -> None:
    producer = Producer.with_vbuckets(2)
    without = Sync(InMemory(producer), tmp_path, LocalRunner(), SyncOptions(parts=2, state=None))
    for number in range(3):
        producer.put(0, "a", f"{number}")
        producer.put(1, f"b{number}", "x")
        list(without.once())
    assert without.changes.table.turn == 3
    sync = synced(producer, tmp_path)
    assert sync.turn() is None, "changes has everything"
    assert sync.state.turn == 3
    assert documents(tmp_path) == producer.state()


def test_soft_deletes_keep_the_key_marked(tmp_path: Path) -> None:
    producer = Producer.with_vbuckets(1)
    producer.put(0, "a", "1")
    producer.put(0, "b", "1")
    producer.delete(0, "a")
    list(synced(producer, tmp_path, soft_deletes=True, rebuild_turns=1).once())
    assert set(documents(tmp_path)) == {(0, "b")}
    assert set(documents(tmp_path, deleted=True)) == {(0, "a"), (0, "b")}


def test_a_collection_dropped_between_turns_takes_its_documents_along(tmp_path: Path) -> None:
    producer = Producer.with_vbuckets(1)
    producer.put(0, "a", "1", collection=8)
    producer.put(0, "b", "1", collection=9)
    sync = synced(producer, tmp_path)
    list(sync.once())
    manifest = (3).to_bytes(8, "big") + (0).to_bytes(4, "big") + (8).to_bytes(4, "big")
    producer.put(
        0,
        "dropped",
        manifest.decode("latin-1"),
        event=Event.SYSTEM_EVENT,
        system_event=int(SystemEventId.END_COLLECTION),
    )
    list(sync.once())
    assert set(documents(tmp_path)) == {(0, "b")}


def test_json_becomes_columns_and_what_does_not_fit_is_told(tmp_path: Path) -> None:
    producer = Producer.with_vbuckets(1)
    producer.put(0, "good", '{"name": "x", "address": {"zip": 7}}')
    producer.put(0, "wrong", '{"name": "y", "address": {"zip": "seven"}}')
    producer.put(0, "broken", "not json")
    columns = {"name": "string", "address.zip": "bigint"}
    sync = synced(producer, tmp_path, flatten=columns)
    list(sync.once())
    producer.put(0, "later", '{"name": "z"}')
    list(sync.once())
    found = {row["key"]: row for row in arrow_state(tmp_path).to_pylist()}
    assert (found["good"]["name"], found["good"]["address_zip"]) == ("x", 7)
    assert found["good"]["bad_record"] is None
    assert found["wrong"]["address_zip"] is None
    assert "address.zip is no bigint" in found["wrong"]["bad_record"]
    assert "not JSON" in found["broken"]["bad_record"]
    assert found["later"]["name"] == "z"


def test_a_number_of_turns_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="rebuild_turns is 0"):
        StateOptions(rebuild_turns=0)
