"""A whole bucket from end to end: documents, updates, deletions, expiries and a collection.

    python -m tests.spark.whole --documents 1000000 --vbuckets 1024

A node in a process of its own is filled and synced; then a tenth of the documents is written anew,
a tenth deleted, a thousandth expires, and it is synced again. `changes` must have every version
that was streamed, `headrace verify` must find nothing, DuckDB and Polars must count the same
documents; then differences are planted and every one must be found, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.client.bucket import connect
from headrace.client.writer import Document
from headrace.spark.tables.state import is_tail
from headrace.spark.tables.views import (
    duckdb_views,
    open_changes,
    open_state,
    polars_state,
)
from headrace.wire import admin
from tests.soak.served import ServedNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT: Final = Path(__file__).resolve().parents[2]
QUOTA_MB: Final = 2048
BEER: Final = 8
BEER_SHARE: Final = 4
"""Every so many documents are in the collection."""
EXPIRY_SECONDS: Final = 1
SETTLE_SECONDS_MAX: Final = 120.0
MANIFEST: Final = {
    "uid": "1",
    "scopes": [
        {
            "name": "_default",
            "uid": "0",
            "collections": [{"name": "_default", "uid": "0"}, {"name": "beer", "uid": str(BEER)}],
        }
    ],
}


def document(number: int, version: int, *, expiry: int = 0) -> Document:
    """A version of a document."""
    value = b'{"number": %d, "version": %d, "filler": "%s"}' % (number, version, b"x" * 60)
    return Document(key(number), value, expiry=expiry, collection_id=home(number), is_json=True)


def key(number: int) -> bytes:
    return b"document::%09d" % number


def home(number: int) -> int:
    """The collection of a document."""
    return BEER if number % BEER_SHARE == 0 else 0


class Whole:
    """One run."""

    def __init__(self, directory: Path, documents: int, vbuckets: int, master: str) -> None:
        """Nothing runs yet."""
        self.tables = directory / "tables"
        self.directory, self.documents, self.vbuckets = directory, documents, vbuckets
        self.master = master
        everyone = range(documents)
        # Disjoint, so that no change hides another inside one snapshot.
        self.updated = everyone[1::10]
        self.deleted = everyone[2::10]
        self.expired = everyone[3::1000]

    def run(self, say: Callable[[str], None]) -> None:
        """Do it; an AssertionError says what is wrong."""
        node = ServedNode(self.directory / "node", vbuckets=self.vbuckets, quota_mb=QUOTA_MB)
        with node:
            self._timed(say, "fill", lambda: self._fill(node.url))
            self._timed(say, "sync", lambda: self.headrace("sync", node.url))
            streamed = self._count(say)
            assert streamed == self.documents + self.vbuckets, "documents and the collection's row"
            self._timed(say, "change", lambda: self._change(node.url))
            self._timed(say, "sync", lambda: self.headrace("sync", node.url))
            changed = len(self.updated) + len(self.deleted) + len(self.expired)
            streamed = self._count(say) - streamed
            # A document that expired before it was read shows once, else twice.
            assert changed <= streamed <= changed + len(self.expired), (streamed, changed)
            self._verify(node.url, say, expected={})
            self._engines_agree(say)
            planted = self._plant()
            self._verify(node.url, say, expected=planted)

    def _timed(self, say: Callable[[str], None], what: str, do: Callable[[], object]) -> None:
        began = time.monotonic()
        do()
        say(f"{what}: {time.monotonic() - began:.0f} s")

    def headrace(self, command: str, url: str, *more: str, code: int = 0) -> str:
        """Run a command as a user does; its standard output."""
        words = [sys.executable, "-m", "headrace", command, url, str(self.tables)]
        done = subprocess.run(
            [*words, "--master", self.master, *more],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def _fill(self, url: str) -> None:
        with connect(url) as bucket:
            with bucket.kv(bucket.cluster_map.nodes[0]) as link:
                value = json.dumps(MANIFEST).encode()
                link.ask(
                    admin.SetCollectionsManifest(value=value), admin.SetCollectionsManifestReply
                )
            write(url, (document(number, 0) for number in range(self.documents)))

    def _change(self, url: str) -> None:
        write(url, (document(number, 1) for number in self.updated))
        write(url, (Document(key(n), None, collection_id=home(n)) for n in self.deleted))
        write(url, (document(number, 1, expiry=EXPIRY_SECONDS) for number in self.expired))
        with connect(url) as bucket:
            tokens, gone = None, 0
            deadline = time.monotonic() + SETTLE_SECONDS_MAX
            while gone < len(self.expired):
                assert time.monotonic() < deadline, f"{gone} of {len(self.expired)} expired"
                time.sleep(1.0)
                reader = bucket.changes(
                    since=tokens or "beginning", until="now", kinds=["expiration"], no_value=True
                )
                gone += sum(int(batch.num_rows) for batch in reader)
                tokens = reader.tokens

    def _count(self, say: Callable[[str], None]) -> int:
        rows = sum(file.rows for file in open_changes(self.tables).row_files())
        say(f"changes: {rows:,} rows, turn {open_changes(self.tables).published().turn}")
        return rows

    def _verify(self, url: str, say: Callable[[str], None], expected: dict[str, int]) -> None:
        count = sum(expected.values())
        text = self.headrace("verify", url, "--json", "--show", "1000", code=1 if count else 0)
        report = json.loads(text.splitlines()[-1])
        kinds: dict[str, int] = {}
        for one in report["differences"]:
            kinds[one["kind"]] = kinds.get(one["kind"], 0) + 1
        say(f"verify: {report['documents']:,} documents, {report['count']} differences {kinds}")
        assert (report["count"], kinds) == (count, expected)

    def _engines_agree(self, say: Callable[[str], None]) -> None:
        connection = duckdb.connect()
        duckdb_views(connection, self.tables)
        ((found,),) = connection.execute("select count(*) from state").fetchall()
        polars = polars_state(self.tables).select("key").collect().height
        living = self.documents - len(self.deleted) - len(self.expired)
        say(f"state: {found:,} documents by DuckDB, {polars:,} by Polars")
        assert found == polars == living, living

    def _plant(self) -> dict[str, int]:
        """Spoil files behind the tables' back; what `verify` has to find."""
        state = open_state(self.tables)
        bases = [file for file in state.table.files() if not is_tail(file) and file.rows > 10]
        lost, changed = bases[0], bases[1]
        edit(state.path / lost.path, lambda rows: without(rows, untouched(rows)[:3]))
        edit(state.path / changed.path, lambda rows: spoiled(rows, untouched(rows)[:2]))
        changes = open_changes(self.tables)
        doubled = next(file for file in changes.row_files() if file.rows > 10)
        edit(changes.path / doubled.path, lambda rows: pa.concat_tables([rows, rows.slice(0, 4)]))
        return {"missing": 3, "different": 2, "twice": 4}


def untouched(rows: pa.Table) -> list[int]:
    """Places of documents that were written once: no tail has a newer version of them."""
    digits = [int(text[-3:]) for text in rows["key"].to_pylist()]
    return [at for at, end in enumerate(digits) if end % 10 not in (1, 2) and end != 3]


def without(rows: pa.Table, places: list[int]) -> pa.Table:
    """The rows but for some."""
    kept = [at not in places for at in range(rows.num_rows)]
    return rows.filter(pa.array(kept))


def spoiled(rows: pa.Table, places: list[int]) -> pa.Table:
    """Some documents with another value."""
    values = rows["value"].to_pylist()
    for at in places:
        values[at] = b"planted"
    place = rows.schema.get_field_index("value")
    return rows.set_column(place, rows.schema.field(place), pa.array(values, pa.binary()))


def edit(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write a file anew."""
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)


def write(url: str, documents: Iterable[Document]) -> None:
    """Put documents into the bucket."""
    with connect(url) as bucket, bucket.writer() as writer:
        for one in documents:
            writer.put(one)


def main() -> int:
    """Run it; a failure is a traceback."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.whole")
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="headrace-whole-") as directory:
        place = Path(directory)
        Whole(place, options.documents, options.vbuckets, options.master).run(say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
