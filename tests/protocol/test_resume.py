"""Positions that are refused until one is accepted, and what the consumer has in the end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headrace.history import (
    NO_SEQNO,
    ZERO,
    Boundaries,
    BranchId,
    FailoverLog,
    ResumeToken,
    Seqno,
)
from headrace.protocol.decision import (
    Accepted,
    Refused,
    Rollback,
    StreamStart,
    VBucketView,
    decide,
)
from headrace.protocol.resume import ATTEMPTS_MAX, Resumption, Withdrawal
from headrace.protocol.stream import ConsumerStream
from headrace.wire import messages as m
from headrace.wire.opcodes import MarkerFlag, VBucketState


def held_at(*seqnos: int, log: FailoverLog) -> tuple[ResumeToken, Boundaries]:
    boundaries = Boundaries()
    for seqno in seqnos:
        boundaries = boundaries.recorded(Seqno(seqno), log.branch_at(Seqno(seqno)))
    return ResumeToken.at_boundary(log.newest.uuid, Seqno(seqnos[-1]), log), boundaries


def test_the_first_question_is_the_position_held() -> None:
    token, boundaries = held_at(3, 9, log=FailoverLog.of((0xA, 0)))
    resumption = Resumption(token, boundaries)
    assert resumption.asked == token
    resumed = resumption.accepted(FailoverLog.of((0xA, 0)))
    assert (resumed.token, resumed.withdrawal, resumed.branch_changed) == (token, None, False)


def test_what_is_withdrawn_is_told_once_a_position_is_accepted() -> None:
    token, boundaries = held_at(3, 5, 9, log=FailoverLog.of((0xA, 0)))
    resumption = Resumption(token, boundaries)
    assert resumption.rolled_back(Seqno(6)) is None
    resumed = resumption.accepted(FailoverLog.of((0xB, 6), (0xA, 0)))
    assert resumed.withdrawal == Withdrawal(Seqno(9), Seqno(5), BranchId(0xA))
    assert resumed.branch_changed
    assert [mark.seqno for mark in resumed.boundaries] == [3, 5]


def test_a_producer_that_always_refuses_leaves_the_stream_stuck_after_few_questions() -> None:
    log = FailoverLog.of(*((100 - n, 200 - n) for n in range(25)))
    for answer in (0, 1, 50, 190, 10_000):
        token, boundaries = held_at(*range(100, 300, 7), log=log)
        resumption = Resumption(token, boundaries)
        asked = [resumption.asked]
        while (reason := resumption.rolled_back(Seqno(answer))) is None:
            asked.append(resumption.asked)
            assert len(asked) <= ATTEMPTS_MAX
        assert asked[-1] == ZERO, "the last question is the beginning"
        assert len(set(asked)) == len(asked), "no question is asked twice"
        assert f"roll back to {answer} from the beginning" in reason


def test_at_zero_a_branch_is_named_only_once() -> None:
    resumption = Resumption(ZERO.accepted(FailoverLog.of((0xA, 0))), Boundaries())
    assert resumption.rolled_back(NO_SEQNO) is None
    assert resumption.asked == ZERO
    assert resumption.rolled_back(NO_SEQNO) is not None


# -- stories: copies that fail over, a consumer of real machines ---------------------------------


@dataclass
class Copy:
    """One copy of a vbucket: every write of its history, and its log."""

    writes: list[tuple[str, int]]
    log: FailoverLog

    @property
    def high(self) -> Seqno:
        return Seqno(len(self.writes))

    def snapshots(
        self, rng: random.Random, asked: StreamStart
    ) -> list[list[m.Mutation | m.SnapshotMarker]]:
        """Markers and what lives under them, split at random, deduplicated as at their ends."""
        start = int(asked.start)
        cuts = {int(self.high)}
        if self.high - start > 3:
            cuts.add(rng.randrange(start + 1, self.high))
        sent: list[list[m.Mutation | m.SnapshotMarker]] = []
        low = start
        for cut in sorted(cuts):
            last = {key: at for at, (key, _) in enumerate(self.writes[:cut], start=1)}
            first = low + 1 if low > start else rng.choice([asked.snapshot_start, start, low + 1])
            run: list[m.Mutation | m.SnapshotMarker] = [
                m.SnapshotMarker(start_seqno=first, end_seqno=cut, flags=MarkerFlag.DISK)
            ]
            run += [
                m.Mutation(by_seqno=at, key=key.encode(), cas=value)
                for at, (key, value) in enumerate(self.writes[:cut], start=1)
                if at > low and last[key] == at
            ]
            sent.append(run)
            low = cut
        return sent if self.high > start else []


@dataclass
class Reader:
    """A consumer: rows, token and boundaries; asks as `Resumption` says."""

    token: ResumeToken = ZERO
    boundaries: Boundaries = field(default_factory=Boundaries)
    rows: dict[int, tuple[str, int]] = field(default_factory=dict)
    questions: int = 0
    kept_by_older_branch: int = 0

    def open(self, copy: Copy) -> StreamStart:
        """Talk until accepted; withdraw what has to go."""
        resumption = Resumption(self.token, self.boundaries)
        while True:
            self.questions += 1
            asked = resumption.asked
            start = StreamStart(
                start=asked.seqno,
                branch=asked.branch,
                snapshot_start=asked.snapshot.start,
                snapshot_end=asked.snapshot.end,
            )
            view = VBucketView(state=VBucketState.ACTIVE, high=copy.high, log=copy.log)
            match decide(start, view):
                case Accepted(log=log):
                    resumed = resumption.accepted(log)
                    if asked.branch != self.token.branch and asked.seqno > 0:
                        self.kept_by_older_branch += 1
                    self.token, self.boundaries = resumed.token, resumed.boundaries
                    if resumed.withdrawal is not None:
                        to = resumed.withdrawal.to_seqno
                        self.rows = {at: row for at, row in self.rows.items() if at <= to}
                    return start
                case Rollback(seqno):
                    assert resumption.rolled_back(seqno) is None, "stuck"
                case Refused() as refused:
                    raise AssertionError(refused)

    def read(self, copy: Copy, rng: random.Random, limit: int, story: str) -> None:
        start = self.open(copy)
        stream = ConsumerStream(self.token, boundaries=self.boundaries)
        for run in copy.snapshots(rng, start):
            for message in run:
                if isinstance(message, m.Mutation):
                    limit -= 1
                    if limit < 0:
                        break
                    self.rows[message.by_seqno] = (message.key.decode(), message.cas)
                if stream.receive(message).completed:
                    self.check(copy, stream.token.seqno, story)
            if limit < 0:
                break
        self.token, self.boundaries = stream.token, stream.boundaries

    def check(self, copy: Copy, seqno: int, story: str) -> None:
        held = dict(self.rows[at] for at in sorted(self.rows))
        assert held == dict(copy.writes[:seqno]), story


def tell_a_story(seed: int) -> Reader:
    rng = random.Random(seed)
    reader = Reader()
    copies = [Copy([], FailoverLog.created(BranchId(1)))]
    for step in range(60):
        copy = rng.choice(copies[-3:])
        match rng.randrange(5):
            case 0:
                cut = rng.randrange(max(0, copy.high - 6), copy.high + 1)
                log = copy.log.promoted(BranchId(step + 2), complete_end=Seqno(cut))
                copies.append(Copy(copy.writes[:cut], log))
            case 1 | 2:
                copy.writes.extend(
                    (rng.choice("abcdef"), step * 10 + n) for n in range(rng.randrange(1, 6))
                )
            case _:
                reader.read(copy, rng, rng.choice([0, 1, 2, 4, 1_000]), f"seed {seed} step {step}")
    return reader


@pytest.mark.parametrize("block", range(10))
def test_at_every_boundary_a_reader_has_exactly_what_the_copy_it_reads_has(block: int) -> None:
    """Whatever failed over, wherever links dropped, whichever copy answers."""
    readers = [tell_a_story(seed) for seed in range(block * 60, block * 60 + 60)]
    assert sum(reader.questions for reader in readers) > 1_500, "the stories must ask"


def test_older_branches_save_readers_from_starting_again() -> None:
    assert sum(tell_a_story(seed).kept_by_older_branch for seed in range(100)) > 20
