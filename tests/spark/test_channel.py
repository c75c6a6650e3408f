"""The side channel: reports that arrive, that are void, that are forged, that are lost."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from headrace.history import SEQNO_MAX, FailoverLog, Seqno, VBucketId
from headrace.spark import channel
from headrace.spark.channel import Address, Listener, Report
from headrace.spark.positions import START, Reached

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOG = FailoverLog.of((1111, 0))


def report(seqno: int) -> Report:
    position = START.advanced(Seqno(seqno), LOG)
    return Report({VBucketId(3): Reached(position, Seqno(seqno))}, rows=5, bytes=50)


@pytest.fixture
def listener() -> Iterator[Listener]:
    one = Listener("127.0.0.1")
    yield one
    one.close()


def test_a_report_arrives_whole(listener: Listener) -> None:
    address = listener.address("127.0.0.1", None)
    assert channel.begin(address, 7, 0)
    assert channel.report(address, 7, 0, report(9))
    assert listener.mailbox.reports(7) == [report(9)]
    assert listener.mailbox.reports(8) == []


def test_a_second_attempt_voids_what_the_first_reported(listener: Listener) -> None:
    address = listener.address("127.0.0.1", None)
    channel.begin(address, 7, 0)
    channel.report(address, 7, 0, report(9))
    channel.begin(address, 7, 0)
    assert listener.mailbox.reports(7) == []


def test_a_batch_that_is_planned_again_forgets_its_reports(listener: Listener) -> None:
    address = listener.address("127.0.0.1", None)
    channel.begin(address, 7, 0)
    channel.report(address, 7, 0, report(9))
    listener.mailbox.forget(7)
    channel.report(address, 7, 1, report(9))
    assert listener.mailbox.reports(7) == [], "nobody began it since"


def test_a_forged_report_is_refused(listener: Listener) -> None:
    good = listener.address("127.0.0.1", None)
    channel.begin(good, 7, 0)
    forged = Address(good.host, good.port, None, b"another secret")
    assert not channel.begin(forged, 7, 0)
    assert not channel.report(forged, 7, 0, report(9))
    assert listener.mailbox.reports(7) == []


@pytest.mark.parametrize("junk", [b"\n", b"x y\n", b"no end", b"\xff" * 100 + b"\n"])
def test_junk_does_not_stop_the_listener(listener: Listener, junk: bytes) -> None:
    address = listener.address("127.0.0.1", None)
    with socket.create_connection(("127.0.0.1", address.port)) as link:
        link.sendall(junk)
    assert channel.begin(address, 7, 0)


def test_a_planner_that_is_gone_is_noticed(listener: Listener) -> None:
    address = listener.address("127.0.0.1", None)
    listener.close()
    assert not channel.begin(address, 7, 0)
    assert not channel.report(address, 7, 0, report(9))


def test_the_secret_is_shown_nowhere(listener: Listener) -> None:
    assert str(listener.secret) not in repr(listener.address("127.0.0.1", None))


def test_a_directory_keeps_reports_for_the_next_planner(tmp_path: Path) -> None:
    address = Address(directory=str(tmp_path / "made"))
    assert channel.begin(address, 7, 0)
    assert channel.report(address, 7, 0, report(9))
    assert channel.report(address, 7, 1, report(4))
    found = channel.read_directory(str(tmp_path / "made"), 7)
    assert found == [report(9), report(4)]
    channel.begin(address, 7, 0)
    assert channel.read_directory(str(tmp_path / "made"), 7) == [report(4)]
    channel.clear_directory(str(tmp_path / "made"), 7)
    assert channel.read_directory(str(tmp_path / "made"), 7) == []


def test_a_report_that_cannot_be_read_is_as_if_lost(tmp_path: Path) -> None:
    (tmp_path / "plan-7-0.json").write_text("{")
    assert channel.read_directory(str(tmp_path), 7) == []


def test_old_plans_go(tmp_path: Path, listener: Listener) -> None:
    address = listener.address("127.0.0.1", str(tmp_path))
    for plan in range(1, 12):
        channel.begin(address, plan, 0)
        channel.report(address, plan, 0, report(plan))
    channel.clear_directory(str(tmp_path), 12)
    assert len(list(tmp_path.iterdir())) == 4
    assert listener.mailbox.reports(1) == []


def test_numbers_are_not_rounded(listener: Listener) -> None:
    address = listener.address("127.0.0.1", None)
    huge = Report({VBucketId(0): Reached(START, SEQNO_MAX)})
    channel.begin(address, 1, 0)
    channel.report(address, 1, 0, huge)
    assert listener.mailbox.reports(1) == [huge]
