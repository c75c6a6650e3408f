"""The life of one key, with what was withdrawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.spark.jobs import LocalRunner
from headrace.spark.lives import life_in_source, life_in_table
from headrace.spark.sync import Sync, SyncOptions
from headrace.wire.values import vbucket_of
from tests.spark.producer import InMemory, Producer

if TYPE_CHECKING:
    from pathlib import Path

KEY = "some key"
VB = vbucket_of(KEY.encode(), 4)


def lived(path: Path) -> Producer:
    producer = Producer.with_vbuckets(4)
    sync = Sync(InMemory(producer), path, LocalRunner(), SyncOptions(parts=2))
    for value in ("one", "two", "three"):
        producer.put(VB, KEY, value)
        producer.put(VB, "other", value)
        list(sync.once())
    producer.fail_over(VB, 4)
    producer.put(VB, KEY, "after")
    list(sync.once())
    return producer


def test_a_table_knows_every_version_and_which_were_withdrawn(tmp_path: Path) -> None:
    lived(tmp_path)
    life = life_in_table(tmp_path, KEY)
    told = [(one.epoch, one.event, (one.value or b"").decode()[:5], one.dead) for one in life]
    assert told == [
        (0, "mutation", "one", False),
        (0, "mutation", "two", False),
        (0, "mutation", "three", True),
        (1, "rollback", '{"bra', False),
        (1, "mutation", "after", False),
    ]
    assert life[-1].branch != life[0].branch


def test_a_source_knows_what_it_has(tmp_path: Path) -> None:
    producer = lived(tmp_path)
    (one,) = life_in_source(InMemory(producer), KEY)
    assert (one.value, one.dead) == (b"after", False)
    assert life_in_source(InMemory(producer), "unknown") == []


def test_a_key_nobody_wrote_has_only_its_vbuckets_rollbacks(tmp_path: Path) -> None:
    lived(tmp_path)
    assert all(one.event == "rollback" for one in life_in_table(tmp_path, "unknown"))
    assert life_in_table(tmp_path, KEY, collection_id=9)[0].event == "rollback"
