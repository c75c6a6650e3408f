"""Two nodes as processes, a manager that stands still at a place, and what must hold after a kill.

A case moves one vbucket of its own from a to b, while a client writes to it and a consumer follows
it from the beginning. Every party is a process that can be killed with SIGKILL, except those two.

What must hold
- At no moment have two nodes the vbucket active.
- What was acknowledged is there, once: sets have keys of their own, and a counter is incremented.
  Lost may be only what was acknowledged, not yet on disk, by the node that was killed.
- Seqnos rise in what the consumer is told; it is rolled back only past what may be lost, and in the
  end holds what the bucket holds: keys, values, seqnos, CAS.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.client.access import Access
from headrace.client.address import NodeAddress
from headrace.client.bucket import connect
from headrace.client.changes import Change, Kind, Rollback
from headrace.client.kv import KvConnection
from headrace.cluster.chains import from_json
from headrace.cluster.cluster_file import read_cluster_file
from headrace.cluster.journal import read_entries
from headrace.errors import StatusError
from headrace.wire import admin, kv
from headrace.wire.opcodes import VBucketState
from tests.cluster.processes import PASSWORD, USER, ProcessNodes

if TYPE_CHECKING:
    from headrace.cluster.chains import Chains

S = VBucketState
ACCESS: Final = Access(user=USER, password=PASSWORD, connect_seconds=10.0, answer_seconds=20.0)
BUCKET: Final = "default"
COUNTER: Final = b"counter"
SECONDS_MAX: Final = 40.0
POLL_SECONDS: Final = 0.02
Held = dict[bytes, tuple[int, bytes, int]]
"""Key -> seqno, value, CAS."""


@dataclass
class Stage:
    """A pair of nodes, and which of their vbuckets was not used yet."""

    nodes: ProcessNodes
    unused: list[int]
    is_spoilt: bool = False
    """Whether a case has begun on it and not come to its end."""

    def link(self, name: str) -> KvConnection:
        address = NodeAddress("127.0.0.1", self.nodes.nodes[name].port)
        return KvConnection.open(address, ACCESS, bucket=BUCKET, collections=False)

    @property
    def living(self) -> list[str]:
        return [name for name, node in self.nodes.nodes.items() if node.is_running]

    def states(self, vbucket: int) -> dict[str, VBucketState | None]:
        """The state of every living node's copy."""
        return {name: self._state(name, vbucket) for name in self.living}

    def _state(self, name: str, vbucket: int) -> VBucketState | None:
        with self.link(name) as link:
            try:
                reply = link.ask(admin.GetVBucket(vbucket=vbucket), admin.GetVBucketReply)
            except StatusError:
                return None
        return VBucketState(reply.state)

    def owners(self, vbucket: int) -> list[str]:
        """Who serves the vbucket: nobody or one, at any moment."""
        found = [name for name, state in self.states(vbucket).items() if state is S.ACTIVE]
        assert len(found) <= 1, f"vbucket {vbucket} is active on {found}"
        return found

    def set_state(self, name: str, vbucket: int, state: VBucketState) -> None:
        with self.link(name) as link:
            link.ask(admin.SetVBucket(vbucket=vbucket, state=int(state)), admin.SetVBucketReply)

    def history(self, name: str, vbucket: int) -> tuple[dict[str, str], str]:
        """A copy's failover log, and how far it is."""
        with self.link(name) as link:
            seqnos = link.stats(f"vbucket-seqno {vbucket}")
            return link.stats(f"failovers {vbucket}"), seqnos[f"vb_{vbucket}:abs_high_seqno"]

    @property
    def replicas(self) -> int:
        """How many the cluster file wants."""
        return read_cluster_file(self.nodes.path).replicas

    def map_of(self, name: str) -> Chains:
        with self.link(name) as link:
            found = from_json(link.cluster_map() or b"")
        assert found is not None
        return found

    def restart(self, name: str) -> None:
        self.nodes.nodes[name].begin()
        self.nodes.nodes[name].wait()

    @property
    def under_way(self) -> list[int]:
        """The vbuckets in the journal of moves."""
        path = read_cluster_file(self.nodes.path).beside("moves.json")
        return [entry.move.vbucket for entry in read_entries(path)]


@dataclass
class Batch:
    """Writes that were acknowledged by one node."""

    node: str
    keys: list[bytes]
    is_persisted: bool


@dataclass
class Ledger:
    """What a client was told about one vbucket."""

    stage: Stage
    vbucket: int
    batches: list[Batch] = field(default_factory=list)

    def write(self, count: int, *, persist: bool) -> str | None:
        """Write to whoever serves: sets, each with an increment; who acknowledged it."""
        owners = self.stage.owners(self.vbucket)
        if not owners:
            return None
        number = sum(len(batch.keys) for batch in self.batches)
        keys = [b"key-%05d" % (number + one) for one in range(count)]
        with self.stage.link(owners[0]) as link:
            first = link.seqnos()[self.vbucket]
            requests: list[kv.Set | kv.Increment] = []
            for key in keys:
                requests.append(kv.Set(vbucket=self.vbucket, key=key, value=b"of " + key))
                requests.append(kv.Increment(vbucket=self.vbucket, key=COUNTER, delta=1, initial=1))
            replies = link.ask_all(requests)
            assert {reply.status for reply in replies} == {0}
            if persist:
                seqno = first + len(requests)
                request = admin.SeqnoPersistence(vbucket=self.vbucket, seqno=seqno)
                link.ask(request, admin.SeqnoPersistenceReply)
        self.batches.append(Batch(owners[0], keys, persist))
        return owners[0]

    def check(self, held: Held, killed: str) -> None:
        """What was acknowledged is there, once, but for what died with the node killed."""
        lost = self.may_be_lost(killed)
        known = {key for batch in self.batches for key in batch.keys}
        found = held.keys() - {COUNTER}
        count = int(held[COUNTER][1])
        assert known - lost - found == set(), "lost"
        assert found - known == set(), "never written"
        assert all(held[key][1] == b"of " + key for key in found)
        assert count in (len(found), len(found) - 1), "a set comes before its increment"

    def may_be_lost(self, killed: str) -> set[bytes]:
        """What was not on disk when its node was killed."""
        batches = [one for one in self.batches if not one.is_persisted and one.node == killed]
        return {key for batch in batches for key in batch.keys}


class Witness:
    """A consumer of one vbucket on a thread: what it was told, and what it holds."""

    def __init__(self, url: str, vbucket: int) -> None:
        self.rollbacks: list[Rollback] = []
        self.failure: BaseException | None = None
        self._changes: list[Change] = []
        self._bucket = connect(f"{url}/{BUCKET}", user=USER, password=PASSWORD)
        self._follow = self._bucket.follow(
            since="beginning", on_rollback="yield", vbuckets=(vbucket,)
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Witness:
        return self

    def __exit__(self, *_: object) -> None:
        self._bucket.close()
        self._thread.join(SECONDS_MAX)

    def _read(self) -> None:
        try:
            for one in self._follow:
                self._take(one)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.failure = error

    def _take(self, one: object) -> None:
        if isinstance(one, Rollback):
            self.rollbacks.append(one)
            while self._changes and self._changes[-1].seqno > one.to_seqno:
                self._changes.pop()
        elif isinstance(one, Change):
            last = self._changes[-1].seqno if self._changes else 0
            assert one.seqno > last, f"seqno {one.seqno} after {last}"
            assert one.kind is Kind.MUTATION
            self._changes.append(one)

    @property
    def seqno(self) -> int:
        return self._changes[-1].seqno if self._changes else 0

    @property
    def held(self) -> Held:
        return held_by(self._changes)

    def wait(self, wanted: Held) -> None:
        """Wait until it holds that; the assertion says what is different."""
        limit = time.monotonic() + SECONDS_MAX
        while self.held != wanted and time.monotonic() < limit and self.failure is None:
            time.sleep(POLL_SECONDS)
        assert self.failure is None, self.failure
        assert self.held == wanted


def held_by(changes: list[Change]) -> Held:
    return {one.key: (one.seqno, one.value, one.cas) for one in list(changes)}


def read_all(url: str, vbucket: int) -> Held:
    """What the bucket holds now, read by a new consumer."""
    with connect(f"{url}/{BUCKET}", user=USER, password=PASSWORD) as bucket:
        changes = bucket.follow(since="beginning", until="now", vbuckets=(vbucket,))
        return held_by([one for one in changes if isinstance(one, Change)])
