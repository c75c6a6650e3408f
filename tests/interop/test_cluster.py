"""Vbuckets move, and nodes fail over, under the official SDK and under our consumer.

Writers use PyPI's couchbase, unmodified: documents that are overwritten, and counters that are
incremented by one, so that a write lost and a write applied twice both show in the end.
"""

from __future__ import annotations

import datetime
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.client.bucket import connect
from headrace.client.changes import Change, Kind, Rollback
from tests.cluster.processes import PASSWORD, USER, ProcessNodes, process_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.interop

VBUCKETS: Final = 64
WRITERS: Final = 2
COUNTERS: Final = 128
CATCH_UP_SECONDS_MAX: Final = 60.0
PAUSES_MS: Final = (10, 25, 50, 100, 250, 1000)


@dataclass
class Written:
    """What one writer was told is done, and how long each write took."""

    documents: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Writers:
    """Threads that write without pause, each with documents and counters of its own."""

    def __init__(self, collection: Any) -> None:  # noqa: ANN401 - the SDK has its own types
        self._collection = collection
        self._stop = threading.Event()
        self.written = [Written() for _ in range(WRITERS)]
        self._threads = [
            threading.Thread(target=self._write, args=(number, self.written[number]))
            for number in range(WRITERS)
        ]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def count(self) -> int:
        return sum(len(one.seconds) for one in self.written)

    def _write(self, writer: int, written: Written) -> None:
        from couchbase.exceptions import CouchbaseException
        from couchbase.options import IncrementOptions, SignedInt64

        options = IncrementOptions(initial=SignedInt64(1))
        number = 0
        while not self._stop.is_set():
            number += 1
            began = time.perf_counter()
            try:
                if number % 2:
                    key = f"doc-{writer}-{number % 997}"
                    self._collection.upsert(key, {"n": number})
                    written.documents[key] = number
                else:
                    key = f"counter-{writer}-{number // 2 % COUNTERS}"
                    self._collection.binary().increment(key, options)
                    written.counters[key] = written.counters.get(key, 0) + 1
            except CouchbaseException as error:
                written.errors.append(repr(error))
            written.seconds.append(time.perf_counter() - began)


class Follower:
    """Our consumer on a thread: what it holds, and whether it was ever sent back."""

    def __init__(self, url: str) -> None:
        self.values: dict[bytes, bytes] = {}
        self.seqnos: dict[int, int] = {}
        self.rollbacks: list[Rollback] = []
        self.repeated: list[tuple[int, int]] = []
        self.failure: BaseException | None = None
        self._bucket = connect(f"{url}/default", user=USER, password=PASSWORD)
        self._changes = self._bucket.follow(since="beginning", on_rollback="yield")
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bucket.close()
        self._thread.join(10)

    def _follow(self) -> None:
        try:
            for one in self._changes:
                self._take(one)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.failure = error

    def _take(self, one: object) -> None:
        if isinstance(one, Rollback):
            self.rollbacks.append(one)
            self.seqnos[one.vbucket] = one.to_seqno
        elif isinstance(one, Change):
            if one.seqno <= self.seqnos.get(one.vbucket, 0):
                self.repeated.append((one.vbucket, one.seqno))
            self.seqnos[one.vbucket] = one.seqno
            if one.kind is Kind.MUTATION:
                self.values[one.key] = one.value

    def wait_for(self, highs: dict[int, int]) -> None:
        """Wait until everything up to these seqnos is here."""
        limit = time.monotonic() + CATCH_UP_SECONDS_MAX
        while any(self.seqnos.get(vbucket, 0) < high for vbucket, high in highs.items()):
            assert self.failure is None, self.failure
            if time.monotonic() > limit:
                late = {v: (self.seqnos.get(v, 0), h) for v, h in highs.items()}
                raise AssertionError(f"the consumer is behind (has, wanted): {late}")
            time.sleep(0.05)

    def wait_for_rollbacks(self, vbuckets: set[int]) -> None:
        """Wait until these were sent back."""
        limit = time.monotonic() + CATCH_UP_SECONDS_MAX
        while not vbuckets <= {one.vbucket for one in self.rollbacks}:
            assert self.failure is None, self.failure
            assert time.monotonic() < limit, self.rollbacks
            time.sleep(0.05)


@contextmanager
def sdk_collection(nodes: ProcessNodes) -> Iterator[Any]:
    """The default collection, as the official SDK opens it."""
    pytest.importorskip("couchbase", reason="PyPI's couchbase is not installed")
    from couchbase.auth import PasswordAuthenticator
    from couchbase.cluster import Cluster
    from couchbase.options import ClusterOptions

    cluster = Cluster(nodes.url, ClusterOptions(PasswordAuthenticator(USER, PASSWORD)))
    try:
        cluster.wait_until_ready(datetime.timedelta(seconds=20))
        yield cluster.bucket("default").default_collection()
    finally:
        cluster.close()


def seqnos(nodes: ProcessNodes) -> dict[int, int]:
    with connect(f"{nodes.url}/default", user=USER, password=PASSWORD) as bucket:
        return bucket.seqnos()


def check_documents(collection: Any, writers: Writers) -> None:  # noqa: ANN401 - the SDK's types
    """Every write that was acknowledged is there, once."""
    for written in writers.written:
        for key, number in written.documents.items():
            assert collection.get(key).content_as[dict] == {"n": number}, key
        for key, count in written.counters.items():
            assert int(collection.get(key).content_as[int]) == count, key


def check_follower(follower: Follower, writers: Writers) -> None:
    for written in writers.written:
        for key, number in written.documents.items():
            assert json.loads(follower.values[key.encode()]) == {"n": number}
        for key, count in written.counters.items():
            assert int(follower.values[key.encode()]) == count


def distribution(name: str, seconds: list[float]) -> str:
    """What people want to know of pauses."""
    ranked = sorted(seconds)
    points = {p: ranked[min(len(ranked) - 1, int(len(ranked) * p / 100))] for p in (50, 90, 99)}
    text = ", ".join(f"p{p} {value * 1e3:.1f} ms" for p, value in points.items())
    over = [f"{sum(one * 1e3 > limit for one in ranked)} over {limit} ms" for limit in PAUSES_MS]
    longest = f"longest {ranked[-1] * 1e3:.1f} ms"
    return f"{name}: {len(ranked)} writes, {text}, {longest}; {', '.join(over)}"


def test_64_vbuckets_move_under_constant_writes_and_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with process_nodes(tmp_path, vbuckets=VBUCKETS) as nodes:
        formed = nodes.manage("move", "--vbuckets", "0", "--to", "a")
        assert formed.returncode == 0, formed.stderr
        with (
            sdk_collection(nodes) as collection,
            Follower(nodes.url) as follower,
            Writers(collection) as writers,
        ):
            time.sleep(1)
            before = writers.count
            done = nodes.manage("move", "--vbuckets", "all", "--to", "b", "--json")
            assert done.returncode == 0, done.stdout + done.stderr
            back = nodes.manage("move", "--vbuckets", "0-31", "--to", "a", "--json")
            assert back.returncode == 0, back.stdout + back.stderr
            writers.__exit__()
            assert writers.count > before
            for written in writers.written:
                assert written.errors == []
            check_documents(collection, writers)
            follower.wait_for(seqnos(nodes))
            check_follower(follower, writers)
            assert follower.rollbacks == []
            assert follower.repeated == []
        moved = json.loads(done.stdout)
        pauses = [second for written in writers.written for second in written.seconds]
        with capsys.disabled():
            print(f"\n64 moves in {moved['seconds']} s; {distribution('SDK', pauses)}")  # noqa: T201


def written_by_sdk(collection: Any, keys: range) -> None:  # noqa: ANN401 - the SDK's types
    for number in keys:
        collection.upsert(f"key-{number}", {"n": number})


def write_again(collection: Any, number: int) -> None:  # noqa: ANN401 - the SDK's types
    """Write until the SDK has found the new owner."""
    from couchbase.exceptions import CouchbaseException

    limit = time.monotonic() + CATCH_UP_SECONDS_MAX
    while True:
        try:
            collection.upsert(f"key-{number}", {"n": number, "again": True})
            return
        except CouchbaseException:
            assert time.monotonic() < limit
            time.sleep(0.1)


def test_after_a_failover_with_a_lagging_replica_consumers_go_back_and_the_sdk_goes_on(
    tmp_path: Path,
) -> None:
    with process_nodes(tmp_path, vbuckets=16, replicas=1) as nodes:
        assert nodes.manage("replicate", "--once").returncode == 0
        with sdk_collection(nodes) as collection, Follower(nodes.url) as follower:
            written_by_sdk(collection, range(100))
            caught_up = nodes.manage("replicate", "--once")
            assert caught_up.returncode == 0, caught_up.stderr
            kept = seqnos(nodes)
            follower.wait_for(kept)
            written_by_sdk(collection, range(100, 160))
            ahead = seqnos(nodes)
            follower.wait_for(ahead)
            nodes.nodes["a"].kill()
            done = nodes.manage("failover", "a", "--json")
            assert done.returncode == 0, done.stderr
            for number in range(200, 260):
                write_again(collection, number)
            behind = {vbucket for vbucket in ahead if ahead[vbucket] > kept[vbucket]}
            follower.wait_for_rollbacks(behind)
            follower.wait_for(seqnos(nodes))
            expected = {b"key-%d" % number for number in (*range(100), *range(200, 260))}
            for number in (*range(100), *range(200, 260)):
                found = collection.get(f"key-{number}").content_as[dict]
                assert found["n"] == number
        behind = {vbucket for vbucket in ahead if ahead[vbucket] > kept[vbucket]}
        assert {one.vbucket for one in follower.rollbacks} == behind
        for one in follower.rollbacks:
            assert (one.from_seqno, one.to_seqno) == (ahead[one.vbucket], kept[one.vbucket])
        assert follower.repeated == []
        assert expected <= set(follower.values)
        rows = json.loads(done.stdout)["vbuckets"]
        assert {row["promoted"] for row in rows} == {"b"}
        assert all(row["kept_seqno"] == kept[row["vbucket"]] for row in rows)
