"""The thread that commits."""

from __future__ import annotations

import threading

from headrace.errors import StoreFull
from headrace.store import committer
from headrace.store.committer import Committer
from tests.store.crash_disk import CrashDisk
from tests.store.kit import make_bucket


def test_it_commits_after_each_wake_and_while_it_is_busy() -> None:
    wake, done = threading.Event(), threading.Event()
    commits: list[int] = []

    def commit() -> None:
        wake.clear()
        commits.append(1)
        if len(commits) == 3:
            done.set()

    worker = Committer(commit, wake, lambda: 1 <= len(commits) < 3)
    worker.start(0.0)
    assert not commits
    wake.set()
    assert done.wait(30)
    worker.stop()
    assert len(commits) == 3


def test_a_mistake_of_our_own_is_kept_as_well_and_does_not_end_the_thread() -> None:
    wake, again = threading.Event(), threading.Event()
    calls: list[int] = []

    def commit() -> None:
        calls.append(1)
        if len(calls) == 2:
            again.set()
        raise ZeroDivisionError("by design")

    worker = Committer(commit, wake, lambda: False)
    wake.set()
    worker.start(0.0)
    assert again.wait(30)
    worker.stop()
    assert "by design" in str(worker.failure)


def test_a_failure_is_kept_until_a_commit_succeeds() -> None:
    committer_pause = committer.RETRY_SECONDS
    disk = CrashDisk()
    bucket = make_bucket(disk)
    disk.fail_at = disk.commits
    failed, done = threading.Event(), threading.Event()
    original = bucket.journal.commit

    def commit(**options: object) -> object:
        try:
            report = original(**options)  # type: ignore[arg-type]
        except StoreFull:
            failed.set()
            raise
        done.set()
        return report

    bucket.journal.commit = commit  # type: ignore[method-assign, assignment]
    bucket.vbucket(0).store(b"\0a", b"")
    bucket.start_committer(delay_seconds=0.0)
    assert failed.wait(30)
    assert done.wait(30 + committer_pause)
    bucket.stop_committer()
    assert bucket.failure is None
    assert bucket.vbucket(0).persisted_seqno == 1


def test_stopping_twice_and_before_the_start_is_allowed() -> None:
    worker = Committer(lambda: None, threading.Event(), lambda: False)
    worker.stop()
    worker.start(0.0)
    worker.stop()
    worker.stop()
