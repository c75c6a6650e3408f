"""Documents for load: every format, every key, the same for the same seed."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.cli.documents import generated, read_documents
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_csv_and_parquet_become_json(tmp_path: Path) -> None:
    csv = tmp_path / "a.csv"
    csv.write_text("id,name\n1,Ada\n2,Alan\n", encoding="utf-8")
    documents, total = read_documents(csv, None, "id")
    found = list(documents)
    assert total is None
    assert [(one.key, json.loads(one.value or b"")) for one in found] == [
        (b"1", {"id": "1", "name": "Ada"}),
        (b"2", {"id": "2", "name": "Alan"}),
    ]
    parquet = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2], "raw": [b"x", b"y"]}), parquet)
    documents, total = read_documents(parquet, None, None)
    assert total == 2
    assert [one.key for one in documents] == [b"a-1", b"a-2"]


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.jsonl", "[]\n", "line 1 is no JSON object"),
        ("a.jsonl", "{\n", "line 1 is no JSON"),
        ("a.csv", "a,b\n1\n", "line 2 has not as many fields"),
        ("a.xml", "", "suffix '.xml'; allowed: .jsonl"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, part: str) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=part):
        list(read_documents(file, None, None)[0])


def test_the_same_seed_makes_the_same_documents() -> None:
    one = list(generated(200, keys=50, skew=1.0, deletes=0.2, seed=3))
    assert one == list(generated(200, keys=50, skew=1.0, deletes=0.2, seed=3))
    assert one != list(generated(200, keys=50, skew=1.0, deletes=0.2, seed=4))


def test_skew_prefers_the_first_keys() -> None:
    counts = Counter(one.key for one in generated(5000, keys=100, skew=1.0))
    assert counts[b"doc-0000000000"] > 10 * counts[b"doc-0000000099"]


def test_as_many_writes_as_keys_write_every_key_once() -> None:
    assert len({one.key for one in generated(100, keys=100)}) == 100


def test_nothing_is_deleted_that_was_not_written() -> None:
    living = set()
    for one in generated(1000, keys=20, deletes=0.5):
        if one.value is None:
            assert one.key in living
            living.discard(one.key)
        else:
            living.add(one.key)


def test_expiring_needs_a_time() -> None:
    with pytest.raises(ConfigError, match="--expiring needs --expiry"):
        next(generated(1, keys=1, expiring=0.5))
