"""The consumer against the real node: cut anywhere, resumed from tokens, nothing lost or twice.

Links are cut after random numbers of bytes, readers are thrown away at random moments and made
again from the text of their tokens, while documents are written. At the end the rows, folded to the
latest version of every key, must be what was written.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, TypeAlias, cast

import pytest

from headrace.client.bucket import Bucket, connect
from headrace.client.changes import Change, Rollback
from headrace.client.tokens import TokenSet
from headrace.client.writer import Document
from headrace.columns.schema import Event
from headrace.node.config import BucketConfig, NodeConfig
from headrace.store import BucketSettings
from headrace.wire import admin
from headrace.wire.opcodes import VBucketState
from tests.node.running import running

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from headrace.client.reader import Follow

    Read: TypeAlias = Callable[[Bucket, TokenSet | None, "Ledger", int], TokenSet]
    from pathlib import Path

DOCUMENTS = int(os.environ.get("HEADRACE_SIM_DOCUMENTS", "6000"))
CUTS = int(os.environ.get("HEADRACE_SIM_CUTS", "60"))


class CuttingSocket:
    """A socket whose peer seems to close after ``budget`` received bytes."""

    def __init__(self, link: socket.socket, budget: int) -> None:
        self._link = link
        self._budget = budget

    def recv_into(self, buffer: memoryview) -> int:
        if self._budget <= 0:
            return 0
        size = self._link.recv_into(memoryview(buffer)[: self._budget])
        self._budget -= size
        return size

    def __getattr__(self, name: str) -> object:
        return getattr(self._link, name)


class Ledger:
    """Everything handed out, folded; a seqno that comes twice without a rollback is an error."""

    def __init__(self) -> None:
        self.latest: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
        self.seqnos: dict[int, set[int]] = {}
        self.rows: dict[int, list[tuple[int, bytes, bytes | None]]] = {}
        self.rollbacks = 0

    def take(self, vbucket: int, seqno: int, key: bytes, value: bytes | None) -> None:
        assert seqno not in self.seqnos.setdefault(vbucket, set()), f"{vbucket}:{seqno} twice"
        self.seqnos[vbucket].add(seqno)
        self.rows.setdefault(vbucket, []).append((seqno, key, value))

    def roll_back(self, rollback: Rollback) -> None:
        self.rollbacks += 1
        kept = [row for row in self.rows.get(rollback.vbucket, ()) if row[0] <= rollback.to_seqno]
        self.rows[rollback.vbucket] = kept
        self.seqnos[rollback.vbucket] = {row[0] for row in kept}

    def state(self) -> dict[bytes, bytes]:
        latest: dict[bytes, bytes | None] = {}
        for rows in self.rows.values():
            latest |= {key: value for _, key, value in sorted(rows, key=lambda row: row[0])}
        return {key: value for key, value in latest.items() if value is not None}


def writes(seed: int, count: int) -> Iterator[Document]:
    chance = random.Random(seed)
    for number in range(count):
        key = b"key-%d" % chance.randrange(max(1, count // 3))
        deleted = chance.random() < 0.1
        yield Document(key, None if deleted else b'{"n":%d,"f":"%s"}' % (number, b"x" * 100))


def write_all(bucket: Bucket, documents: Iterator[Document]) -> dict[bytes, bytes]:
    expected: dict[bytes, bytes] = {}
    with bucket.writer() as writer:
        for number, document in enumerate(documents):
            writer.put(document)
            if document.value is None:
                expected.pop(document.key, None)
            else:
                expected[document.key] = document.value
            if number % 500 == 0:
                writer.flush()
    return expected


def read_bulk(bucket: Bucket, tokens: TokenSet | None, ledger: Ledger, things: int) -> TokenSet:
    """Read some batches and give back the tokens as an application would have kept them."""
    with bucket.changes(
        since=tokens or "beginning", until="now", on_rollback="yield", on_trouble=lambda _: None
    ) as reader:
        while things > 0 or not reader.is_covered:
            things -= 1
            given = next(reader, None)
            if given is None:
                break
            if isinstance(given, Rollback):
                ledger.roll_back(given)
                continue
            for vbucket, seqno, event, key, value in zip(
                *(
                    given.column(n).to_pylist()
                    for n in ("vbucket", "seqno", "event", "key", "value")
                ),
                strict=True,
            ):
                if event <= Event.EXPIRATION:
                    document = value if event == Event.MUTATION else None
                    ledger.take(vbucket, seqno, key, document)
        return TokenSet.from_text(reader.tokens.to_text())


def read_objects(bucket: Bucket, tokens: TokenSet | None, ledger: Ledger, things: int) -> TokenSet:
    """Read some changes one by one."""
    with bucket.follow(
        since=tokens or "beginning", until="now", on_trouble=lambda _: None
    ) as reader:
        for _ in range(things * 50):
            given = next(reader, None)
            if given is None:
                break
            if isinstance(given, Rollback):
                ledger.roll_back(given)
                continue
            assert isinstance(given, Change)
            value = given.value if given.kind.value == "mutation" else None
            ledger.take(given.vbucket, given.seqno, given.key, value)
        return TokenSet.from_text(reader.tokens.to_text())


def cutting(bucket: Bucket, chance: random.Random, longest: int) -> Bucket:
    """The bucket, with links of readers that break after random numbers of bytes."""

    def tap(link: socket.socket) -> socket.socket:
        return cast("socket.socket", CuttingSocket(link, chance.randrange(2_000, longest)))

    bucket.access = dataclasses.replace(bucket.access, tap=tap)
    return bucket


@pytest.mark.parametrize("read", [read_bulk, read_objects])
@pytest.mark.parametrize(("seed", "vbuckets"), [(1, 16), (2, 64)])
def test_cut_at_random_points_and_resumed_nothing_is_lost_or_twice(
    seed: int, vbuckets: int, read: Read
) -> None:
    chance = random.Random(seed)
    settings = BucketSettings(vbuckets=vbuckets)
    ledger = Ledger()
    with running(NodeConfig(buckets=(BucketConfig(settings=settings),))) as node:
        url = f"couchbase://127.0.0.1:{node.port}/default"
        expected: dict[bytes, bytes] = {}
        with connect(url) as writer_bucket, connect(url) as reader_bucket:
            thread = threading.Thread(
                target=lambda: expected.update(write_all(writer_bucket, writes(seed, DOCUMENTS)))
            )
            thread.start()
            cutting(reader_bucket, chance, longest=60_000)
            tokens: TokenSet | None = None
            for _ in range(CUTS):
                tokens = read(reader_bucket, tokens, ledger, chance.randrange(1, 20))
            thread.join()
            read(reader_bucket, tokens, ledger, 1 << 30)
        assert ledger.rollbacks == 0
        assert ledger.state() == expected, f"seed {seed}"


def test_vbuckets_that_lose_and_regain_their_state_are_followed() -> None:
    """Each turn ends the streams, empties the map for a moment and starts a new branch."""
    ledger = Ledger()
    settings = BucketSettings(vbuckets=8)
    with running(NodeConfig(buckets=(BucketConfig(settings=settings),))) as node:
        url = f"couchbase://127.0.0.1:{node.port}/default"
        with connect(url) as bucket, connect(url) as reader_bucket:
            expected = write_all(bucket, writes(3, 500))
            with reader_bucket.follow(since="beginning", on_trouble=lambda _: None) as follow:
                reading = threading.Thread(target=lambda: fold(follow, ledger), daemon=True)
                reading.start()
                with bucket.kv(bucket.cluster_map.nodes[0]) as link:
                    for turn in range(6):
                        vbucket = turn % 8
                        for state in (VBucketState.REPLICA, VBucketState.ACTIVE):
                            request = admin.SetVBucket(vbucket=vbucket, state=int(state))
                            link.ask(request, admin.SetVBucketReply)
                            time.sleep(0.05)
                        more = write_all(bucket, writes(10 + turn, 200))
                        for document in writes(10 + turn, 200):
                            if document.value is None:
                                expected.pop(document.key, None)
                        expected.update(more)
                wait_until(lambda: ledger.state() == expected)
                logs = bucket.failover_logs()
                assert len(logs[0]) == 2, "a new branch began"
                assert follow.tokens.token(0).branch == logs[0].newest.uuid


def fold(follow: Follow, ledger: Ledger) -> None:
    """Take everything a reader hands out until it is closed."""
    for given in follow:
        if isinstance(given, Rollback):
            ledger.roll_back(given)
        else:
            value = given.value if given.kind.value == "mutation" else None
            ledger.take(given.vbucket, given.seqno, given.key, value)


def wait_until(test: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def serve(directory: Path, port: int) -> tuple[subprocess.Popen[bytes], int]:
    """A node in a process of its own, listening."""
    port_file = directory / "port"
    port_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "headrace", "serve", "--data", str(directory / "data")]
    command += ["--vbuckets", "8", "--port", str(port), "--port-file", str(port_file)]
    log = (directory / "log").open("ab")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    log.close()
    wait_until(lambda: port_file.is_file() and port_file.read_text().strip() != "")
    return process, int(port_file.read_text())


def test_a_node_killed_and_started_again_is_followed_through_its_rollbacks(tmp_path: Path) -> None:
    """What the node had announced and not yet written is withdrawn, and only that."""
    ledger = Ledger()
    process, port = serve(tmp_path, 0)
    url = f"couchbase://127.0.0.1:{port}/default"
    try:
        with (
            connect(url) as reader_bucket,
            reader_bucket.follow(since="beginning", on_trouble=lambda _: None) as follow,
        ):
            reading = threading.Thread(target=lambda: fold(follow, ledger), daemon=True)
            reading.start()
            for turn in range(3):
                with connect(url) as bucket, bucket.writer() as writer:
                    for document in writes(turn, 1000):
                        writer.put(document)
                process.send_signal(signal.SIGKILL)
                process.wait()
                process, port = serve(tmp_path, port)
            with connect(url) as bucket:
                wait_until(lambda: follow.health.lag_items == 0 and caught_up(follow, bucket))
                survived = Ledger()
                read_bulk(bucket, None, survived, 1 << 30)
                assert ledger.state() == survived.state()
    finally:
        process.kill()
        process.wait()


def caught_up(follow: Follow, bucket: Bucket) -> bool:
    highs = bucket.seqnos()
    return all(follow.tokens.seqno(vbucket) == high for vbucket, high in highs.items())
