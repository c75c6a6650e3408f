"""A consumer that is disconnected again and again and goes on from saved tokens.

`python -m tests.soak.resume [--harm NAME] [--documents N] [--vbuckets N] [--cuts N] [--seed N]`;
a slice of it in the suite: tests/sim/test_resume.py.

A node process, a writer (inserts, updates, deletes), and an application (`tests.soak.model`) that
lives many short lives. Each life connects anew, resumes from the JSON text of the tokens the last
one committed, reads for a while in one of three styles (whole snapshots, rows as they come, single
changes) and is disconnected somewhere: see `tests.soak.cutting.Place`, the node's cut lever, or by
its own decision. In hard lives it dies there; in soft ones the reader reconnects by itself first.

Three campaigns: CUTS alone, where the writer's own notes are the truth; FAILOVERS, where vbuckets
also lose their last changes, are rolled back for no reason, are purged or change their state;
KILLS, where the node dies of kill -9 with changes that were streamed and not yet on its disk.

What must hold: no row twice unless a Rollback withdrew it, every vbucket rises to its high seqno,
and the rows, folded, are what an independent read from the beginning finds, seqno by seqno, and
what GET answers.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from headrace.client.bucket import connect
from headrace.client.tokens import TokenSet
from headrace.client.writer import Document
from headrace.columns.scan import warm
from headrace.errors import ConnectionLost, HeadraceError
from headrace.wire import kv
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import Status
from headrace.wire.values import vbucket_of
from tests.soak.cutting import Cut, Cutter, Place
from tests.soak.model import Model, value_of, version_of
from tests.soak.served import ServedNode
from tests.soak.slow import slow_application
from tests.soak.stall import Stall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.client.bucket import Bucket
    from headrace.client.reader import Changes, Follow

SAMPLE: Final = 500
"""Keys asked for one by one in a check."""
UPDATES: Final = 0.15
DELETES: Final = 0.10
ALWAYS_WRITTEN: Final = 40
"""Changes per life at least: no life finds nothing to read."""
DOCUMENT_SIZE: Final = 200
LIVES_PER_CUT_MAX: Final = 6
WINDOWS: Final = (16 << 10, 256 << 10, 4 << 20)
LOSSES: Final = (0, 1, 3, 20, 100, 400)
JOIN_SECONDS: Final = 60.0
SLOW_DOCUMENTS: Final = 200_000
SLOW_WINDOW: Final = 8 << 20


class Harm(Enum):
    """What happens besides cuts."""

    CUTS = "cuts"
    FAILOVERS = "failovers"
    KILLS = "kills"


class Style(Enum):
    """How a life reads."""

    WHOLE = "whole snapshots"
    ROWS = "rows as they come"
    OBJECTS = "single changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One campaign; it ends with the last of ``cuts``, and everything is compared so many times."""

    documents: int
    vbuckets: int
    cuts: int
    seed: int
    harm: Harm = Harm.CUTS
    comparisons: int = 4


class Writer:
    """Inserts, updates and deletes, and notes what it did."""

    def __init__(self, random: Random, url: Callable[[], str], *, strict: bool) -> None:
        """``strict``: a write that fails is a failure of the campaign."""
        self.notes: dict[bytes, int | None] = {}
        self.changes = 0
        self._random, self._url, self._strict = random, url, strict
        self._inserted = 0

    def write(self, count: int, *, inserts: int) -> None:
        """Make so many changes, of which so many new documents."""
        try:
            with connect(self._url()) as bucket, bucket.writer() as writer:
                for document in self._documents(count, inserts):
                    writer.put(document)
        except HeadraceError:
            if self._strict:
                raise

    def _documents(self, count: int, inserts: int) -> Iterator[Document]:
        for number in range(max(count, inserts)):
            self.changes += 1
            chance = self._random.random()
            if number < inserts or not self._inserted:
                self._inserted += 1
                key = b"doc-%07d" % self._inserted
            else:
                # Half of the updates hit few keys: those are what producers deduplicate.
                among = 50 if chance < 0.5 else self._inserted
                key = b"doc-%07d" % self._random.randrange(1, 1 + min(among, self._inserted))
            deleted = number >= inserts and self._random.random() < DELETES / (UPDATES + DELETES)
            version = None if deleted else self.changes
            self.notes[key] = version
            yield Document(key, None if version is None else value_of(key, version))


class Campaign:
    """Lives of one consumer against one node."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        """Start the node; `run` ends it."""
        self.plan, self.random = plan, Random(plan.seed)
        self.node = ServedNode(directory, vbuckets=plan.vbuckets)
        self.model = Model(plan.vbuckets)
        self.counts: Counter[str] = Counter()
        self.saved: str | None = None
        self.lives = 0
        self.begun = time.monotonic()
        self._failures: list[BaseException] = []
        self._killed = False
        random = Random(plan.seed + 1)
        is_strict = plan.harm is Harm.CUTS
        self.writer = Writer(random, lambda: self.node.url, strict=is_strict)
        self._left = plan.documents

    @property
    def cuts(self) -> int:
        """Lives so far that ended where they were cut: the next one began with their tokens."""
        return sum(count for name, count in self.counts.items() if name.startswith("cut "))

    def run(self, say: Callable[[str], None] | None = None) -> dict[str, object]:
        """Write half of the documents, live until the cuts are made; the summary."""
        plan = self.plan
        try:
            self._left -= plan.documents // 2
            self.writer.write(plan.documents // 2, inserts=plan.documents // 2)
            for part in range(1, plan.comparisons + 1):
                goal = plan.cuts * part // plan.comparisons
                while self.cuts < goal and self.lives < plan.cuts * LIVES_PER_CUT_MAX:
                    self.live()
                self.check(is_last=part == plan.comparisons)
                if say is not None:
                    say(f"{plan.harm.value}: {json.dumps(self.summary())}")
            assert self.cuts >= plan.cuts, f"{self.lives} lives ended in {self.cuts} cuts"
        except BaseException as error:
            error.add_note(f"{plan}; life {self.lives}; {self.summary()}\n{self.node.log}")
            raise
        finally:
            self.node.kill()
        return self.summary()

    def summary(self) -> dict[str, object]:
        """What has happened so far."""
        plan = dataclasses.asdict(self.plan) | {"harm": self.plan.harm.value}
        return {
            **plan,
            "lives": self.lives,
            "cuts made": self.cuts,
            "written": self.writer.changes,
            **dict(sorted(self.counts.items())),
            **dict(sorted(self.model.counts.items())),
            "node starts": self.node.starts,
            "seconds": round(time.monotonic() - self.begun, 1),
        }

    # -- one life --------------------------------------------------------------------------------

    def live(self) -> None:
        """Connect, resume from the saved text, read, be cut."""
        random, self.lives, self._killed = self.random, self.lives + 1, False
        inserts = self._left // max(1, self.plan.cuts - self.cuts)
        self._left -= inserts
        count = inserts + ALWAYS_WRITTEN + int(inserts * (UPDATES + DELETES))
        threads = [threading.Thread(target=self._guarded(self.writer.write, count, inserts))]
        harm = self._harm()
        if harm is not None:
            threads.append(threading.Thread(target=self._guarded(harm)))
        for thread in threads:
            thread.start()
        try:
            with self._connected(threads) as bucket:
                self._read(bucket, random)
        except ConnectionLost:
            # A node that dies while it is asked where to start; a reader that runs never raises it.
            assert self.plan.harm is Harm.KILLS
            self.counts["ended: not begun"] += 1
        finally:
            for thread in threads:
                thread.join(JOIN_SECONDS)
                assert not thread.is_alive(), "a writer hangs"
        if self._failures:
            raise self._failures[0]

    def _guarded(self, work: Callable[..., None], *args: int) -> Callable[[], None]:
        def run() -> None:
            try:
                if args:
                    work(args[0], inserts=args[1])
                else:
                    work()
            except BaseException as error:  # noqa: BLE001 - raised again on the main thread
                self._failures.append(error)

        return run

    def _connected(self, threads: list[threading.Thread]) -> Bucket:
        """The bucket; while the node is being killed, once it is back."""
        try:
            return connect(self.node.url)
        except HeadraceError:
            if self.plan.harm is not Harm.KILLS:
                raise
        for thread in threads:
            thread.join(JOIN_SECONDS)
        return connect(self.node.url)

    def _read(self, bucket: Bucket, random: Random) -> None:
        style = random.choices(list(Style), weights=(5, 4, 1))[0]
        is_killed = self.plan.harm is Harm.KILLS
        is_hard = random.random() < (0.4 if is_killed else 0.8)
        is_endless = random.random() < (0.8 if is_killed else 0.3)
        name = f"resume:{self.lives}"
        how, cutter = self._disconnection(random, name)
        bucket.access = dataclasses.replace(bucket.access, tap=cutter.tap)
        troubles: list[object] = []

        def trouble(what: object) -> None:
            troubles.append(what)
            if is_hard:
                # Not here: the reader is in the middle of its work.
                threading.Thread(target=reader.close, daemon=True).start()

        options: dict[str, object] = {
            "since": TokenSet.from_text(self.saved) if self.saved else "beginning",
            "until": None if is_endless else "now",
            "window": random.choice(WINDOWS),
            "name": name,
            "on_trouble": trouble,
        }
        things = self._log_uniform(random, 1, 8) if how == "application" else 1 << 30
        reader: Changes | Follow
        if style is Style.OBJECTS:
            reader, things = bucket.follow(None, **options), things * 50
        else:
            whole = style is Style.WHOLE
            reader = bucket.changes(whole=whole, on_rollback="yield", **options)
        self.counts[f"style {style.value}"] += 1
        # A node that was killed needs time to come back, and its consumers to find it.
        closer = threading.Timer(random.uniform(0.05, 4.0 if is_killed else 0.5), reader.close)
        closer.daemon = True
        if is_endless:
            closer.start()
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(reader, over), daemon=True)
        watch.start()
        try:
            ended = self._take(reader, things, is_hard=is_hard, is_cut=lambda: bool(troubles))
        finally:
            over.set()
            closer.cancel()
            reader.close()
        self._account(how, ended, cutter, troubles)

    def _watch(self, reader: Changes | Follow, ended: threading.Event) -> None:
        """End a life in which nothing moves, and say where every vbucket stands."""
        stall = Stall(reader, self.node.url, lambda: self.model.counts["rows"])
        if report := stall.watch(ended):
            self._failures.append(AssertionError(report))

    def _take(
        self,
        reader: Changes | Follow,
        things: int,
        *,
        is_hard: bool,
        is_cut: Callable[[], bool],
    ) -> str:
        """Take things until the end, the cut, or enough of them; why it ended."""
        model, random = self.model, self.random
        careful = random.choice((1.0, 0.3, 0.02))
        ended = "finished"
        for number, given in enumerate(reader, 1):
            model.take(given)
            if is_hard and is_cut():
                ended = "died"
                break
            if number >= things:
                ended = "left"
                break
            if reader.is_covered and random.random() < careful:
                model.commit(reader.tokens)
        if is_hard and is_cut():
            ended = "died"
        if ended != "died" and reader.is_covered:
            model.commit(reader.tokens)
        model.die(same_history=self.plan.harm is Harm.CUTS)
        if model.tokens is not None:
            self.saved = model.tokens.to_text()
        return ended

    def _disconnection(self, random: Random, name: str) -> tuple[str, Cutter]:
        """How this life shall be disconnected, if it comes that far."""
        hows = [*Place, "application", "lever", "lever middle", "step"]
        how = random.choice(hows)
        size = DOCUMENT_SIZE * self.plan.documents // self.plan.cuts
        items = self._log_uniform(random, 1, 4 * size // DOCUMENT_SIZE)
        if how is Place.BYTES:
            # Behind the answers to the stream requests, most of the time.
            start = random.choice((0, 100 * self.plan.vbuckets))
            return "tap", Cutter(Cut(how, start + self._log_uniform(random, 1, 4 * size)))
        if isinstance(how, Place):
            limit = {Place.MARKER: 40, Place.END: 40}.get(how, items)
            return "tap", Cutter(Cut(how, self._log_uniform(random, 1, limit)))
        assert isinstance(how, str)
        if how == "step":
            self.node.step(f'after {items} mutations to "{name}": cut connection "{name}"')
        elif how != "application":
            most = self._log_uniform(random, 1, 4 * size)
            self._cut_soon(name, most, is_middle=how == "lever middle")
        return how, Cutter()

    def _cut_soon(self, name: str, size: int, *, is_middle: bool) -> None:
        """Pull the node's lever as soon as the connection is there."""

        def pull() -> None:
            for _ in range(40):
                if self.node.pull("cut", connection=name, size=size, middle=is_middle) is not None:
                    return
                time.sleep(0.02)

        threading.Thread(target=pull, daemon=True).start()

    def _account(self, how: str, ended: str, cutter: Cutter, troubles: list[object]) -> None:
        self.counts[f"ended: {ended}"] += 1
        where = ""
        if cutter.done:
            where = cutter.done[0].place.value
        elif troubles:
            where = f"by the node ({'kill' if self._killed else how})"
        elif ended == "left":
            where = "by the application"
        if where:
            # A life that went on after its cut was not resumed from saved tokens there.
            self.counts[f"{'reconnected' if ended == 'finished' else 'cut'} {where}"] += 1
        if how == "step":
            self.node.pull("clear")

    @staticmethod
    def _log_uniform(random: Random, least: int, most: int) -> int:
        return int(least * (max(most, least) / least) ** random.random())

    # -- harm ------------------------------------------------------------------------------------

    def _harm(self) -> Callable[[], None] | None:
        random = self.random
        if self.plan.harm is Harm.CUTS or random.random() < 0.3:
            return None
        chosen = Random(random.getrandbits(32))
        if self.plan.harm is Harm.KILLS:
            return lambda: self._kill(chosen)
        return lambda: self._fail_over(chosen)

    def _kill(self, random: Random) -> None:
        self.node.pull("delay-commits", seconds=random.choice((0.0, 0.05, 1.0)))
        time.sleep(random.uniform(0.0, 0.5))
        self.node.kill()
        self.counts["kill -9"] += 1
        self._killed = True
        self.node.start()

    def _fail_over(self, random: Random) -> None:
        node, counts = self.node, self.counts
        for _ in range(random.randrange(1, 5)):
            time.sleep(random.uniform(0.0, 0.1))
            vbucket = random.randrange(self.plan.vbuckets)
            lever = random.choices(
                ("failover", "rollback", "drop-cursor", "set-state", "purge"),
                weights=(10, 5, 2, 2, 1),
            )[0]
            if lever == "failover":
                done = node.pull(lever, vbucket=vbucket, lose=random.choice(LOSSES))
            elif lever == "rollback":
                held = self.model.seqno(vbucket)
                done = node.pull(lever, vbucket=vbucket, seqno=random.randrange(held + 1))
            elif lever == "set-state":
                node.pull(lever, vbucket=vbucket, state="replica")
                time.sleep(random.uniform(0.0, 0.05))
                done = node.pull(lever, vbucket=vbucket, state="active")
                assert done is not None
            else:
                done = node.pull(lever, vbucket=vbucket)
            counts[f"lever {lever}" + ("" if done is not None else " refused")] += 1

    # -- checks ----------------------------------------------------------------------------------

    def check(self, *, is_last: bool) -> None:
        """Read to the end from the saved tokens and compare with everything there is to ask."""
        if is_last and self._left:
            self.writer.write(self._left, inserts=self._left)
            self._left = 0
        self.node.pull("clear")
        # The consumer itself stays where it is, with what it has still to read.
        model = self.model if is_last else self.model.copied()
        other = Model(self.plan.vbuckets)
        with connect(self.node.url) as bucket:
            since = TokenSet.from_text(self.saved) if self.saved else "beginning"
            self._drain(bucket, model, since)
            self._drain(bucket, other, "beginning")
            highs = bucket.seqnos()
            for one in (model, other):
                behind = {number: (one.seqno(number), high) for number, high in highs.items()}
                behind = {number: pair for number, pair in behind.items() if pair[0] != pair[1]}
                assert not behind, f"vbucket: (seqno held, high seqno): {behind}"
            found, wanted = model.state(), other.state()
            if not self.counts["lever purge"]:
                assert_equal(found, wanted, "an independent read")
            living = {key: one for key, one in found.items() if one[1] is not None}
            assert_equal(living, {k: v for k, v in wanted.items() if v[1] is not None}, "living")
            if self.plan.harm is Harm.CUTS:
                notes = {key: one for key, one in self.writer.notes.items() if one is not None}
                assert_equal({key: one[1] for key, one in living.items()}, notes, "the writer")
            keys = list(self.writer.notes)
            sample = self.random.sample(keys, min(SAMPLE, len(keys)))
            self._compare_documents(bucket, sample, {key: one[1] for key, one in living.items()})
        self.counts["compared"] += 1
        self.counts["keys living"] = len(living)

    def _drain(self, bucket: Bucket, model: Model, since: TokenSet | str) -> None:
        with bucket.changes(since=since, until="now", on_rollback="yield") as reader:
            for given in reader:
                model.take(given)
                if reader.is_covered:
                    model.commit(reader.tokens)
            assert reader.is_covered
            model.commit(reader.tokens)

    def _compare_documents(
        self, bucket: Bucket, sample: list[bytes], versions: dict[bytes, int | None]
    ) -> None:
        (node,) = bucket.cluster_map.nodes
        with bucket.kv(node, collections=False) as link:
            requests = [
                kv.Get(key=key, vbucket=vbucket_of(key, self.plan.vbuckets)) for key in sample
            ]
            for key, reply in zip(sample, link.ask_all(requests), strict=True):
                if isinstance(reply, kv.GetReply):
                    assert versions.get(key) == version_of(key, reply.value), key
                else:
                    assert isinstance(reply, ErrorReply)
                    assert reply.status == Status.KEY_ENOENT, reply
                    assert key not in versions, f"GET {key!r}: not there, {versions[key]} is held"
        self.counts["documents asked for"] += len(sample)


def assert_equal(found: Mapping[bytes, object], wanted: Mapping[bytes, object], what: str) -> None:
    """Say which keys differ, and how: the states themselves are too large to read."""
    if found == wanted:
        return
    keys = sorted(found.keys() | wanted.keys())
    wrong = [key for key in keys if found.get(key) != wanted.get(key)]
    lines = [f"{key!r}: {found.get(key)}, {what} has {wanted.get(key)}" for key in wrong[:10]]
    raise AssertionError(f"{len(wrong)} keys differ from {what}\n" + "\n".join(lines))


def main() -> int:
    """Run the campaigns that were asked for; a failure is a traceback."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.resume", description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--vbuckets", type=int, action="append")
    parser.add_argument("--cuts", type=int, default=1_000)
    parser.add_argument("--harm", choices=[one.value for one in Harm], action="append")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    seed = int.from_bytes(os.urandom(4)) if options.seed is None else options.seed
    say(f"resume: seed {seed}; again with --seed {seed}")
    # To compile what scans takes longer than a stall may, if several campaigns do it at once.
    warm()
    summaries: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="headrace-resume-") as name:
        for harm in options.harm or [one.value for one in Harm]:
            for vbuckets in options.vbuckets or [64, 1024]:
                plan = Plan(
                    documents=options.documents,
                    vbuckets=vbuckets,
                    cuts=options.cuts,
                    seed=seed,
                    harm=Harm(harm),
                )
                summaries.append(Campaign(Path(name) / f"{harm}-{vbuckets}", plan).run(say))
        if options.harm is None:
            report = slow_application(
                Path(name) / "slow", documents=SLOW_DOCUMENTS, window=SLOW_WINDOW, seconds=10.0
            )
            summaries.append({"harm": "slow application", **dataclasses.asdict(report)})
    say(json.dumps(summaries))
    say("resume: everything held")
    return 0


def say(text: str) -> None:
    """Write one line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
