"""Tables as the page tells them."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from headrace.web.tables import INSTALL, Tables

if TYPE_CHECKING:
    from pathlib import Path


def told(*directories: Path) -> Any:  # noqa: ANN401 - JSON
    return asyncio.run(Tables(directories).read())


def test_no_directory_is_no_table() -> None:
    assert told() == {"tables": [], "given": False}


def test_without_the_package_the_page_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    assert told(tmp_path) == {"tables": [], "given": True, "error": INSTALL}


def test_a_directory_without_a_table_says_so(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    (one,) = told(tmp_path)["tables"]
    assert one["error"] == "no table is here yet"


def test_a_table_of_somebody_else_is_refused_in_words(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    arrow = pytest.importorskip("pyarrow")
    deltalake.write_deltalake(str(tmp_path / "changes"), arrow.table({"a": [1]}))
    (one,) = told(tmp_path)["tables"]
    assert "not a changes table of headrace" in one["error"]


def test_a_published_vector_is_told(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    from headrace.history import BranchId, ResumeToken, Seqno, VBucketId
    from headrace.spark.landing import Landed
    from headrace.spark.positions import Position
    from headrace.spark.tables.changes import ChangesTable

    table = ChangesTable(tmp_path / "changes")
    table.create(vbuckets=4, parts=1)
    held = Position(ResumeToken.at_boundary(BranchId(7), Seqno(17)))
    nothing = Landed(files=(), positions={}, withdrawals=(), unfinished={}, rows=0, bytes=0)
    assert table.commit(1, nothing, {VBucketId(2): held})
    (one,) = told(tmp_path)["tables"]
    assert (one["turn"], one["vbuckets"], one["vector"]) == (1, 4, [0, 0, 17, 0])


def test_a_table_is_not_read_more_often_than_every_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    tables = Tables((tmp_path,))

    def read() -> dict[str, object]:
        reads.append(1)
        return {"tables": []}

    monkeypatch.setattr(tables, "_read", read)

    async def main() -> None:
        await asyncio.gather(*(tables.read() for _ in range(10)))

    asyncio.run(main())
    assert len(reads) == 1
