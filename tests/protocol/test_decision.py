"""Every row of the stream-request decision, a real server's answers, and a model of the truth."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from headrace.history import (
    NO_SEQNO,
    SEQNO_MAX,
    ZERO,
    Boundaries,
    BranchId,
    FailoverLog,
    ResumeToken,
    Seqno,
    SnapshotRange,
)
from headrace.protocol.decision import (
    Accepted,
    ConnectionView,
    Decision,
    Refused,
    Rollback,
    StreamStart,
    VBucketView,
    decide,
)
from headrace.wire.opcodes import Status, StreamFlag, VBucketState

VECTORS = Path(__file__).parents[1] / "vectors" / "decisions.jsonl"
LOG = FailoverLog.of((2222, 3), (1111, 0))
VIEW = VBucketView(state=VBucketState.ACTIVE, high=Seqno(10), log=LOG)


def ask(
    branch: int,
    start: int,
    snapshot: tuple[int, int],
    *,
    end: int = SEQNO_MAX,
    flags: int = 0,
    purge_seqno: int = 0,
) -> StreamStart:
    return StreamStart(
        start=Seqno(start),
        end=Seqno(end),
        branch=BranchId(branch),
        snapshot_start=Seqno(snapshot[0]),
        snapshot_end=Seqno(snapshot[1]),
        flags=StreamFlag(flags),
        purge_seqno=Seqno(purge_seqno),
    )


def status(decision: Decision) -> Status:
    assert isinstance(decision, Refused)
    assert decision.reason, "a refusal says why"
    return decision.status


def ok(decision: Decision) -> Accepted:
    assert isinstance(decision, Accepted), decision
    return decision


@pytest.mark.parametrize(
    ("asked", "rollback"),
    [
        (ask(1111, 3, (1, 4)), 1),
        (ask(1111, 3, (3, 3)), None),
        (ask(1111, 9, (5, 9)), 3),
        (ask(9999, 5, (0, 5)), 0),
        (ask(2222, 12, (1, 12)), 10),
        (ask(2222, 7, (7, 12)), None),
        (ask(9999, 0, (0, 0)), None),
        (ask(9999, 0, (0, 0), flags=StreamFlag.STRICT_UUID), 0),
        (ask(0, 0, (0, 0), flags=StreamFlag.STRICT_UUID), None),
        (ask(2222, 0, (0, 0), flags=StreamFlag.STRICT_UUID), None),
        (ask(0, 5, (5, 5)), 0),
        (ask(2222, 7, (5, 12)), 5),
        (ask(2222, 10, (8, 10)), None),
        (ask(2222, 10, (10, 14)), None),
        (ask(1111, 2, (2, 9)), None),
        (ask(1111, 4, (2, 9)), 2),
        (ask(1111, 5, (4, 9)), 3),
        (ask(2222, 2, (0, 10)), None),
    ],
)
def test_what_the_consumer_holds_is_compared_with_the_history(
    asked: StreamStart, rollback: int | None
) -> None:
    decision = decide(asked, VIEW)
    if rollback is None:
        assert ok(decision).log == LOG
    else:
        assert decision == Rollback(Seqno(rollback))


def test_a_real_server_gave_the_same_answer_every_time() -> None:
    """1,500 random requests put to a kv_engine 6.6.5; their origin is in vectors/README.md."""
    answers = 0
    for number, line in enumerate(VECTORS.read_text().splitlines(), start=1):
        row = json.loads(line)
        asked = ask(
            row["uuid"],
            row["start"],
            (row["snap_start"], row["snap_end"]),
            end=int(row["end"]),
            flags=row["flags"],
        )
        view = VBucketView(
            state=VBucketState.ACTIVE,
            high=Seqno(row["high"]),
            purge=Seqno(row["purge"]),
            log=FailoverLog.of(*row["log"]),
        )
        match decide(asked, view):
            case Accepted():
                found: tuple[int, int | None] = (Status.SUCCESS, None)
            case Rollback(seqno):
                found = (Status.ROLLBACK, seqno)
            case Refused(refused, _):
                found = (refused, None)
        assert found == (row["status"], row["rollback"]), f"line {number}: {line}"
        answers += 1
    assert answers == 1500


def test_a_vbucket_that_is_not_here_is_not_ours() -> None:
    assert status(decide(ask(0, 0, (0, 0)), None)) == Status.NOT_MY_VBUCKET


@pytest.mark.parametrize(
    ("state", "flags", "served"),
    [
        (VBucketState.ACTIVE, 0, True),
        (VBucketState.REPLICA, 0, True),
        (VBucketState.PENDING, 0, False),
        (VBucketState.DEAD, 0, False),
        (VBucketState.ACTIVE, StreamFlag.ACTIVE_ONLY, True),
        (VBucketState.REPLICA, StreamFlag.ACTIVE_ONLY, False),
        (VBucketState.PENDING, StreamFlag.ACTIVE_ONLY, False),
    ],
)
def test_only_active_and_replica_copies_are_streamed(
    state: VBucketState, flags: int, served: bool
) -> None:
    decision = decide(ask(0, 0, (0, 0), flags=flags), replace(VIEW, state=state))
    if served:
        ok(decision)
    else:
        assert status(decision) == Status.NOT_MY_VBUCKET


def test_from_latest_starts_at_the_high_seqno_of_the_current_branch() -> None:
    accepted = ok(decide(ask(0, 0, (0, 0), flags=StreamFlag.FROM_LATEST), VIEW))
    assert (accepted.start, accepted.snapshot) == (10, SnapshotRange(Seqno(10), Seqno(10)))


def test_from_latest_with_a_dead_branch_is_still_rolled_back() -> None:
    decision = decide(ask(9999, 0, (0, 0), flags=StreamFlag.FROM_LATEST), VIEW)
    assert decision == Rollback(NO_SEQNO)


@pytest.mark.parametrize(
    ("needs", "enabled", "served"),
    [(False, False, True), (True, False, False), (True, True, True), (False, True, True)],
)
def test_xattrs_and_collections_need_noop(needs: bool, enabled: bool, served: bool) -> None:
    connection = ConnectionView(needs_noop=needs, noop_enabled=enabled)
    decision = decide(ask(0, 0, (0, 0)), VIEW, connection)
    if served:
        ok(decision)
    else:
        assert status(decision) == Status.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (ask(2222, 5, (5, 5), end=4), Status.ERANGE),
        (ask(2222, 5, (6, 7)), Status.ERANGE),
        (ask(2222, 5, (3, 4)), Status.ERANGE),
        (ask(0, 0, (0, 0), flags=StreamFlag.NO_VALUE), Status.EINVAL),
        (ask(2222, 9, (9, 9), end=10, flags=StreamFlag.DISK_ONLY), Status.ERANGE),
    ],
)
def test_ranges_and_flags_out_of_the_rules_are_refused(asked: StreamStart, found: Status) -> None:
    assert status(decide(asked, replace(VIEW, persisted=Seqno(8)))) == found


def test_start_equal_to_end_is_accepted() -> None:
    assert ok(decide(ask(2222, 5, (5, 5), end=5), VIEW)).end == 5


def test_start_above_high_on_a_snapshot_start_is_out_of_range() -> None:
    """The history has nothing against it: no item of that snapshot is held."""
    log = FailoverLog.of((2222, 20), (1111, 0))
    decision = decide(ask(1111, 15, (15, 15)), replace(VIEW, log=log))
    assert status(decision) == Status.ERANGE


def test_refusals_come_in_the_documented_order() -> None:
    bad_filter = Refused(Status.UNKNOWN_COLLECTION, "collection 9 is unknown")
    connection = ConnectionView(
        needs_noop=True, filter_refusal=bad_filter, stream_is_live=True, backfill_full=True
    )
    view = replace(VIEW, state=VBucketState.DEAD, filling=True)
    asked = ask(9999, 5, (6, 7))
    seen = [status(decide(asked, view, connection))]
    view = replace(view, state=VBucketState.ACTIVE)
    seen.append(status(decide(asked, view, connection)))
    connection = replace(connection, noop_enabled=True)
    seen.append(status(decide(asked, view, connection)))
    asked = ask(9999, 5, (5, 7))
    seen.append(status(decide(asked, view, connection)))
    connection = replace(connection, filter_refusal=None)
    seen.append(status(decide(asked, view, connection)))
    connection = replace(connection, stream_is_live=False)
    assert decide(asked, view, connection) == Rollback(NO_SEQNO)
    asked = ask(2222, 5, (5, 5))
    seen.append(status(decide(asked, view, connection)))
    connection = replace(connection, backfill_full=False)
    seen.append(status(decide(asked, view, connection)))
    assert seen == [
        Status.NOT_MY_VBUCKET,
        Status.NOT_SUPPORTED,
        Status.ERANGE,
        Status.UNKNOWN_COLLECTION,
        Status.KEY_EEXISTS,
        Status.ENOMEM,
        Status.ETMPFAIL,
    ]


@pytest.mark.parametrize(
    ("asked", "filter_high", "rollback"),
    [
        (ask(2222, 5, (5, 5)), None, True),
        (ask(2222, 8, (8, 8)), None, False),
        (ask(2222, 9, (9, 9)), None, False),
        (ask(2222, 0, (0, 0)), None, False),
        (ask(2222, 0, (0, 0), flags=StreamFlag.STRICT_UUID), None, False),
        (ask(2222, 5, (5, 5), purge_seqno=8), None, False),
        (ask(2222, 5, (5, 5), purge_seqno=7), None, True),
        (ask(2222, 5, (5, 5), flags=StreamFlag.IGNORE_PURGED_TOMBSTONES), None, False),
        (ask(2222, 5, (5, 5)), 5, False),
        (ask(2222, 5, (5, 5)), 4, False),
        (ask(2222, 5, (5, 5)), 6, True),
        (ask(2222, 5, (5, 5)), 9, True),
    ],
)
def test_a_consumer_behind_the_purge_seqno_starts_again(
    asked: StreamStart, filter_high: int | None, rollback: bool
) -> None:
    view = replace(
        VIEW,
        purge=Seqno(8),
        filter_high=None if filter_high is None else Seqno(filter_high),
    )
    decision = decide(asked, view)
    assert (decision == Rollback(NO_SEQNO)) is rollback
    if not rollback:
        ok(decision)


@pytest.mark.parametrize(
    ("flags", "filter_high", "end"),
    [
        (0, None, 99),
        (0, 6, 99),
        (StreamFlag.TO_LATEST, None, 10),
        (StreamFlag.TO_LATEST, 6, 6),
        (StreamFlag.DISK_ONLY, None, 8),
        (StreamFlag.DISK_ONLY | StreamFlag.TO_LATEST, None, 8),
        (StreamFlag.TAKEOVER, None, SEQNO_MAX),
    ],
)
def test_flags_set_the_end(flags: int, filter_high: int | None, end: int) -> None:
    view = replace(
        VIEW,
        persisted=Seqno(8),
        filter_high=None if filter_high is None else Seqno(filter_high),
    )
    assert ok(decide(ask(2222, 5, (5, 5), end=99, flags=flags), view)).end == end


def test_a_snapshot_that_was_never_begun_and_ends_beyond_us_is_forgotten() -> None:
    assert ok(decide(ask(2222, 7, (7, 12)), VIEW)).snapshot == SnapshotRange(Seqno(7), Seqno(7))
    assert ok(decide(ask(2222, 7, (7, 9)), VIEW)).snapshot == SnapshotRange(Seqno(7), Seqno(9))


# -- the truth: copies that diverge, a consumer that must end up with exactly what the copy has ----


@dataclass
class Copy:
    """One copy of a vbucket: all writes ever made on its history, and its log."""

    writes: list[tuple[str, int]]
    log: FailoverLog

    @property
    def high(self) -> Seqno:
        return Seqno(len(self.writes))

    def state(self) -> dict[str, int]:
        return dict(self.writes)

    def after(self, seqno: int) -> list[tuple[int, str, int]]:
        """What a snapshot from here holds: only the last write of each key."""
        last = {key: at for at, (key, _) in enumerate(self.writes, start=1)}
        return [
            (at, key, value)
            for at, (key, value) in enumerate(self.writes, start=1)
            if at > seqno and last[key] == at
        ]


@dataclass
class Reader:
    """A consumer that keeps rows, a token and boundaries, and obeys the rules of history."""

    token: ResumeToken = ZERO
    boundaries: Boundaries = field(default_factory=lambda: Boundaries(limit=4))
    rows: list[tuple[int, str, int]] = field(default_factory=list)

    def open(self, copy: Copy) -> None:
        """Ask until accepted, going back as told; 0 is always accepted."""
        asked, older = self.token, self.token.on_older_branches(self.boundaries)
        for _ in range(60):
            match decide(start_of(asked), view_of(copy)):
                case Accepted(log=log):
                    self.go_back_to(asked)
                    self.token = self.token.accepted(log)
                    return
                case Rollback(seqno) if seqno > NO_SEQNO:
                    asked = asked.rolled_back(self.boundaries.greatest(seqno))
                case Rollback():
                    asked = next(older, ZERO)
                case refused:
                    raise AssertionError(refused)
        raise AssertionError("never accepted")

    def go_back_to(self, token: ResumeToken) -> None:
        self.rows = [row for row in self.rows if row[0] <= token.seqno]
        self.boundaries = self.boundaries.rolled_back(token.seqno)
        self.token = token

    def read(self, copy: Copy, limit: int) -> None:
        """Take one snapshot, or its first items when the link drops."""
        items = copy.after(self.token.seqno)
        if not items:
            return
        marker = SnapshotRange(self.token.snapshot.start, Seqno(items[-1][0]))
        for row in items[:limit]:
            self.rows.append(row)
            self.token = self.token.advanced(Seqno(row[0]), marker)
        if self.token.is_boundary:
            branch = copy.log.branch_at(self.token.seqno)
            self.boundaries = self.boundaries.recorded(self.token.seqno, branch)


def start_of(token: ResumeToken) -> StreamStart:
    return StreamStart(
        start=token.seqno,
        branch=token.branch,
        snapshot_start=token.snapshot.start,
        snapshot_end=token.snapshot.end,
    )


def view_of(copy: Copy) -> VBucketView:
    return VBucketView(state=VBucketState.ACTIVE, high=copy.high, log=copy.log)


def fork(rng: random.Random, copy: Copy, uuid: int) -> Copy:
    """A replica that had received a part of the copy is promoted."""
    cut = rng.randrange(max(0, copy.high - 6), copy.high + 1)
    log = copy.log.promoted(BranchId(uuid), complete_end=Seqno(cut))
    return Copy(copy.writes[:cut], log)


def tell_a_story(seed: int) -> tuple[Reader, int]:
    """Run writes, failovers and dropped links; check the reader whenever it has caught up."""
    rng = random.Random(seed)
    reader, checks = Reader(), 0
    copies = [Copy([], FailoverLog.created(BranchId(1)))]
    for step in range(40):
        copy = rng.choice(copies[-3:])
        match rng.randrange(4):
            case 0:
                copies.append(fork(rng, copy, step + 2))
            case 1:
                copy.writes.extend((rng.choice("abcd"), step * 10 + n) for n in range(4))
            case 2:
                reader.open(copy)
                reader.read(copy, limit=rng.randrange(4))
            case _:
                reader.open(copy)
                reader.read(copy, limit=1_000)
                found = {key: value for _, key, value in reader.rows}
                assert found == copy.state(), f"seed {seed}, step {step}"
                checks += 1
    return reader, checks


@pytest.mark.parametrize("block", range(10))
def test_an_accepted_reader_always_ends_with_exactly_what_the_copy_has(block: int) -> None:
    checks = sum(tell_a_story(seed)[1] for seed in range(block * 50, block * 50 + 50))
    assert checks > 250, "the stories must get as far as the check"


def test_the_stories_go_back_further_than_zero_and_reuse_older_branches() -> None:
    """Or the model above would pass by always starting again."""
    kept = [len(tell_a_story(seed)[0].boundaries) for seed in range(100)]
    assert sum(count > 1 for count in kept) > 30
