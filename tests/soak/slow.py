"""An application that stops asking: what its process holds, what its producer does meanwhile.

The consumer is a process of its own (`python -m tests.soak.slow URL WINDOW SECONDS`), so that its
memory is nobody else's. It takes one batch, asks for nothing for some seconds, then reads to the
end. Meanwhile the node's statistics are watched.

What must hold: memory grows by no more than what a window of frames becomes; the producer has sent
a window, is paused and sends no more; noops with the shortest interval are answered, so that the
link outlives many of them; and at last everything came, once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.client.bucket import connect
from headrace.client.writer import Document
from tests.soak.served import ROOT, ServedNode

if TYPE_CHECKING:
    from headrace.client.bucket import Bucket

VBUCKETS: Final = 64
NAME: Final = "slow"
NOOP_SECONDS: Final = 1.0
ROW_OVERHEAD: Final = 3
"""A frame in the receive buffer, its row, and the buffer that the row was decoded into."""
SLACK_BYTES: Final = 24 << 20
"""What a reader costs that is at work: receive buffers, pools, threads."""
MESSAGE_SIZE_MAX: Final = 1 << 20
"""A producer may overshoot its window by what it has just begun."""
SETTLE_SECONDS: Final = 1.5
"""More than the keeper's interval: what the window lets come has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was seen."""

    window: int
    seconds_asleep: float
    consumer_grew_by: int
    producer_unacked: int
    producer_items_sent_asleep: int
    producer_paused: bool
    heard_asleep: bool
    """Whether the producer heard of the sleeping consumer: there is nothing but noop replies."""
    documents: int
    rows: int
    troubles: int

    def check(self) -> None:
        """AssertionError where something does not hold."""
        allowed = self.window * ROW_OVERHEAD + SLACK_BYTES
        assert self.consumer_grew_by <= allowed, f"{self}; {allowed} bytes are allowed"
        assert self.producer_paused, f"{self}; the producer does not wait"
        assert self.producer_items_sent_asleep == 0, f"{self}; the producer goes on"
        assert self.producer_unacked <= self.window + MESSAGE_SIZE_MAX, f"{self}; past the window"
        assert self.heard_asleep, f"{self}; noops are not answered"
        assert self.troubles == 0, f"{self}; the link did not outlive the noops"
        assert self.rows == self.documents, f"{self}; something was lost"


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of its own that a process has now."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = (one for one in status.splitlines() if one.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def consume(url: str, window: int, seconds: float) -> dict[str, int]:
    """Take one batch, sleep, take the rest."""
    troubles: list[object] = []
    rows = 0
    seen: set[tuple[int, int]] = set()
    with (
        connect(url) as bucket,
        bucket.changes(
            until="now",
            name=NAME,
            window=window,
            noop_seconds=NOOP_SECONDS,
            on_trouble=troubles.append,
        ) as reader,
    ):
        grew = 0
        for number, batch in enumerate(reader):
            rows += batch.num_rows
            seen.update(
                zip(
                    batch.column("vbucket").to_pylist(),
                    batch.column("seqno").to_pylist(),
                    strict=True,
                )
            )
            if number == 0:
                before = resident_bytes()
                sys.stdout.write("asleep\n")
                sys.stdout.flush()
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    time.sleep(0.1)
                    grew = max(grew, resident_bytes() - before)
                sys.stdout.write("awake\n")
                sys.stdout.flush()
    assert len(seen) == rows, "a row came twice"
    return {"grew": grew, "rows": rows, "troubles": len(troubles)}


def statistics(bucket: Bucket) -> dict[str, str]:
    """The producer's numbers of the slow connection."""
    (found,) = bucket.stats("dcp").values()
    return {name.rpartition(":")[2]: value for name, value in found.items() if f":{NAME}:" in name}


def slow_application(
    directory: Path, *, documents: int, window: int, seconds: float, size: int = 1024
) -> Report:
    """Run it; AssertionError where something does not hold."""
    with ServedNode(directory, vbuckets=VBUCKETS) as node, connect(node.url) as bucket:
        with bucket.writer() as writer:
            for number in range(documents):
                writer.put(Document(b"slow-%07d" % number, b"%08d" % number * (size // 8)))
        command = [sys.executable, "-m", "tests.soak.slow", node.url, str(window), str(seconds)]
        consumer = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            stdout=subprocess.PIPE,
        )
        assert consumer.stdout is not None
        try:
            assert consumer.stdout.readline() == b"asleep\n"
            time.sleep(SETTLE_SECONDS)
            settled = statistics(bucket)
            time.sleep(seconds - 2 * SETTLE_SECONDS)
            later = statistics(bucket)
            assert consumer.stdout.readline() == b"awake\n"
            last = json.loads(consumer.stdout.readline())
            assert consumer.wait(30.0) == 0
        finally:
            consumer.kill()
            consumer.wait()
            consumer.stdout.close()
    sent = [int(one["items_sent"]) for one in (settled, later)]
    report = Report(
        window=window,
        seconds_asleep=seconds,
        consumer_grew_by=last["grew"],
        producer_unacked=int(later["unacked_bytes"]),
        producer_items_sent_asleep=sent[1] - sent[0],
        producer_paused=settled["paused"] == later["paused"] == "true",
        heard_asleep=int(later["last_receive_time"]) > int(settled["last_receive_time"]),
        documents=documents,
        rows=last["rows"],
        troubles=last["troubles"],
    )
    report.check()
    return report


def main() -> None:
    """Be the consumer; the last line is what it saw."""
    url, window, seconds = sys.argv[1:]
    sys.stdout.write(json.dumps(consume(url, int(window), float(seconds))) + "\n")


if __name__ == "__main__":
    main()
