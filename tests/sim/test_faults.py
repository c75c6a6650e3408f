"""Our own consumer through every fault a node offers, by seed: in the end it has what the node has.

A node in this process, a writer, a consumer on a thread, and a seeded sequence of levers:
failover, forced rollback, purge, cuts, pauses, slow links, dropped cursors, refusals, delays,
crash and restart. The consumer withdraws what it is told to withdraw, and nothing else.
"""

from __future__ import annotations

import threading
import time
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from headrace.client.bucket import connect
from headrace.client.changes import Change, Kind, Rollback
from headrace.errors import ConfigError
from headrace.testing import running_node
from headrace.wire import kv
from headrace.wire.opcodes import Opcode, Status
from tests.node.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.testing import RunningNode

VBUCKETS: Final = 4
KEYS: Final = 40
ROUNDS: Final = 12
CONVERGE_SECONDS: Final = 60.0
NAME: Final = "sync:sim"

State = dict[tuple[int, bytes], bytes]


class Follower:
    """A consumer that keeps every change it was given, by vbucket, and takes back what is void."""

    def __init__(self, node: RunningNode) -> None:
        self.changes: list[list[Change]] = [[] for _ in range(VBUCKETS)]
        self.rollbacks = 0
        self.failed: BaseException | None = None
        self._bucket = connect(node.connection_string, bucket="default")
        self._follow = self._bucket.follow(name=NAME, since="beginning")
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="follower")
        self._thread.start()

    def _run(self) -> None:
        try:
            for given in self._follow:
                with self._lock:
                    self._take(given)
        except BaseException as error:  # noqa: BLE001 - raised again on the test's thread
            self.failed = error

    def _take(self, given: Change | Rollback) -> None:
        kept = self.changes[given.vbucket]
        if isinstance(given, Rollback):
            self.rollbacks += 1
            self.changes[given.vbucket] = [one for one in kept if one.seqno <= given.to_seqno]
            return
        assert not kept or given.seqno > kept[-1].seqno, (given, kept[-1].seqno)
        kept.append(given)

    def state(self) -> State:
        """What its changes add up to."""
        assert self.failed is None, self.failed
        found: State = {}
        with self._lock:
            for changes in self.changes:
                for one in changes:
                    if one.kind is Kind.MUTATION:
                        found[one.vbucket, one.key] = one.value
                    elif one.kind in (Kind.DELETION, Kind.EXPIRATION):
                        found.pop((one.vbucket, one.key), None)
        return found

    def close(self) -> None:
        """Stop following."""
        self._follow.close()
        self._bucket.close()
        self._thread.join(CONVERGE_SECONDS)
        assert not self._thread.is_alive()


def write(node: RunningNode, random: Random, count: int) -> None:
    """Some writes and deletions."""
    with Client(node.port) as client:
        for _ in range(count):
            vbucket, key = random.randrange(VBUCKETS), b"k%d" % random.randrange(KEYS)
            if random.random() < 0.2:
                client.call(kv.Delete(key=key, vbucket=vbucket))
            else:
                client.set(key, random.randbytes(6).hex().encode(), vbucket=vbucket)


def truth(node: RunningNode) -> State:
    """What the node has."""
    found: State = {}
    with Client(node.port) as client:
        for vbucket in range(VBUCKETS):
            for number in range(KEYS):
                key = b"k%d" % number
                reply = client.call(kv.Get(key=key, vbucket=vbucket))
                if isinstance(reply, kv.GetReply):
                    found[vbucket, key] = reply.value
    return found


def _failover(node: RunningNode, random: Random) -> None:
    vbucket = random.randrange(VBUCKETS)
    node.faults.failover(vbucket=vbucket, lose=random.randint(0, 10))


def _crash(node: RunningNode, random: Random) -> None:
    del random
    node.crash()
    node.restart()


FAULTS: Final[tuple[Callable[[RunningNode, Random], object], ...]] = (
    _failover,
    _failover,
    _crash,
    lambda node, random: node.faults.rollback(
        vbucket=random.randrange(VBUCKETS), seqno=random.randint(0, 30)
    ),
    lambda node, random: node.faults.purge(vbucket=random.randrange(VBUCKETS)),
    lambda node, random: node.faults.drop_cursor(vbucket=random.randrange(VBUCKETS)),
    lambda node, _: node.faults.cut(connection=NAME),
    lambda node, random: node.faults.cut(connection=NAME, size=random.randint(1, 3_000)),
    lambda node, random: node.faults.cut(
        connection=NAME, size=random.randint(0, 3_000), middle=True
    ),
    lambda node, random: node.faults.pause(connection=NAME, seconds=random.uniform(0, 0.2)),
    lambda node, random: node.faults.slow(connection=NAME, rate=random.randint(20_000, 200_000)),
    lambda node, random: node.faults.refuse(
        opcode=Opcode.STREAM_REQ,
        status=random.choice((Status.ETMPFAIL, Status.ENOMEM)),
        count=random.randint(1, 3),
    ),
    lambda node, _: node.faults.delay_commits(seconds=0.02),
    lambda node, _: node.faults.clear(),
)


def break_something(node: RunningNode, random: Random) -> None:
    """Pull a lever; one that cannot be pulled just now is passed over."""
    try:
        random.choice(FAULTS)(node, random)
    except ConfigError:
        return


@pytest.mark.parametrize("seed", range(3))
def test_a_consumer_has_what_the_node_has_whatever_happened(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    with running_node(data=tmp_path, vbuckets=VBUCKETS) as node:
        write(node, random, 60)
        follower = Follower(node)
        try:
            for _ in range(ROUNDS):
                write(node, random, random.randint(1, 60))
                break_something(node, random)
                time.sleep(random.uniform(0, 0.05))
            node.faults.clear()
            write(node, random, 20)
            expected = truth(node)
            deadline = time.monotonic() + CONVERGE_SECONDS
            while follower.state() != expected and time.monotonic() < deadline:
                time.sleep(0.05)
            found = follower.state()
            different = {
                place: (found.get(place), expected.get(place))
                for place in found.keys() | expected.keys()
                if found.get(place) != expected.get(place)
            }
            assert not different, f"seed {seed}: {different}"
        finally:
            follower.close()
