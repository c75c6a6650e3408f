"""A node with its live page, and a workload, each in a process of its own: for tests in a browser,
for the page's benchmark and for its screenshots.

`python -m tools.live URL --rate 10000 --consumer orders` writes so many changes a second and runs
consumers until it is stopped; a slow consumer has a small window and rests between batches.

Imports: client, errors.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
START_SECONDS_MAX: Final = 90.0
STOP_SECONDS_MAX: Final = 20.0
TURNS_PER_SECOND: Final = 20
KEYS: Final = 50_000
SLOW_WINDOW: Final = 16 * 1024
SLOW_SECONDS: Final = 2.0
LOGIN: Final = re.compile(r"^ +(\S+) / (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Served:
    """A running node: where documents go, where its page is, and who may log in there."""

    url: str
    page: str
    user: str
    password: str
    pid: int


def environment() -> dict[str, str]:
    """Of a process that finds the package and these tools."""
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own words
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environment(),
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def serving(*options: str, port: int = 0, web: int = 0) -> Iterator[Served]:
    """`headrace serve` with its page, until the block ends."""
    base = ("-m", "headrace", "serve", "--port", str(port), "--web", str(web))
    with _process(*base, *options) as process:
        said = ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "headrace tail" in line:
                break
        address = re.search(r"couchbase://\S+", said)
        page = re.search(r"live page +(\S+)", said)
        if address is None or page is None:
            raise RuntimeError(f"the node did not start: {said!r}")
        login = LOGIN.search(said)
        user, password = (login[1], login[2]) if login else ("", "")
        yield Served(f"{address[0]}/default", page[1], user, password, process.pid)


@contextmanager
def watching(url: str, address_file: Path) -> Iterator[str]:
    """`headrace watch`, until the block ends; the address of its page."""
    with _process("-m", "headrace", "watch", url, "--url-file", str(address_file)) as process:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not address_file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the page did not start")
            time.sleep(0.05)
        yield address_file.read_text(encoding="ascii").strip()


@contextmanager
def loading(
    url: str, *, rate: int, consumers: tuple[str, ...] = (), slow: tuple[str, ...] = ()
) -> Iterator[None]:
    """A workload, until the block ends: a process that writes and one per consumer."""
    roles = [["--rate", str(rate)]] if rate else []
    roles += [["--consumer", name] for name in consumers] + [["--slow", name] for name in slow]
    with ExitStack() as stack:
        for words in roles:
            process = stack.enter_context(_process("-m", "tools.live", url, *words))
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"the workload {' '.join(words)} did not start")
        yield


# -- the workload's own process --------------------------------------------------------------------


def write(url: str, rate: int, stopped: threading.Event) -> None:
    """Write ``rate`` changes a second in small turns; a second at most is made up for."""
    from headrace.client.bucket import connect
    from headrace.client.writer import Document

    chance = random.Random(1)  # noqa: S311 - a workload
    value = b'{"state": "open", "lines": [1, 2, 3], "note": "' + b"x" * 120 + b'"}'
    with connect(url) as bucket, bucket.writer() as writer:
        owed, before = 0.0, time.monotonic()
        while not stopped.wait(1 / TURNS_PER_SECOND):
            now = time.monotonic()
            owed = min(owed + (now - before) * rate, float(rate))
            before = now
            for _ in range(int(owed)):
                key = b"order-%d" % chance.randrange(KEYS)
                gone = chance.random() < 0.05
                writer.put(Document(key, None if gone else value, is_json=not gone))
            writer.flush()
            owed -= int(owed)


def consume(url: str, name: str, stopped: threading.Event, *, slow: bool) -> None:
    """Read and keep nothing; a slow one reads a quarter of it and rests after every batch."""
    from headrace.client.bucket import connect

    with connect(url) as bucket:
        quarter = tuple(range(bucket.vbuckets // 4, bucket.vbuckets // 2)) or None
        options: dict[str, object] = {"window": SLOW_WINDOW, "vbuckets": quarter} if slow else {}
        reader = bucket.changes(
            since="now", name=name, whole=False, on_rollback=lambda _: None, **options
        )
        for _ in reader:
            if stopped.wait(SLOW_SECONDS if slow else 0.0):
                return


def main() -> int:
    """Work until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tools.live", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rate", type=int, default=0, help="changes to write per second")
    parser.add_argument("--consumer", help="read as this consumer")
    parser.add_argument("--slow", help="read as this consumer, slowly")
    options = parser.parse_args()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())

    def work() -> None:
        if options.rate:
            write(options.url, options.rate, stopped)
        if name := options.consumer or options.slow:
            consume(options.url, name, stopped, slow=bool(options.slow))

    threading.Thread(target=work, daemon=True).start()
    sys.stdout.write("working\n")
    sys.stdout.flush()
    stopped.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
