"""A node in a process of its own, to be killed: `python -m tests.soak.node_process DATA ...`.

The settings make the store work hard on little data: it seals, drops memory and compacts all the
time. `Process` is the parent's end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
START_SECONDS: Final = 60.0
VBUCKETS: Final = 8


def main() -> None:
    """Serve until killed; the port is written to DATA/port."""
    from headrace.node.config import BucketConfig, NodeConfig
    from headrace.node.logs import configure
    from headrace.node.server import Node
    from headrace.store import BucketSettings

    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--commit-delay", type=float, default=0.002)
    parser.add_argument("--journal-kb", type=int, default=49_152)
    parser.add_argument("--block-kb", type=int, default=512)
    parser.add_argument("--segment-kb", type=int, default=4_096)
    parser.add_argument("--quota-mb", type=int, default=256)
    parser.add_argument("--vbuckets", type=int, default=VBUCKETS)
    parser.add_argument("--log-format", default="text")
    options = parser.parse_args()
    settings = BucketSettings(
        vbuckets=options.vbuckets,
        journal_bytes_max=options.journal_kb * 1024,
        block_bytes=options.block_kb * 1024,
        segment_bytes=options.segment_kb * 1024,
        memory_quota=options.quota_mb * 1024 * 1024,
    )
    configure(options.log_format)
    config = NodeConfig(
        data=options.data,
        buckets=(BucketConfig(settings=settings),),
        commit_delay_seconds=options.commit_delay,
    )

    def ready(node: Node) -> None:
        draft = options.data / "port.new"
        draft.write_text(str(node.port), encoding="ascii")
        draft.replace(options.data / "port")

    asyncio.run(Node(config).serve(ready=ready))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one process is run."""

    commit_delay: float = 0.002
    journal_kb: int = 49_152
    block_kb: int = 512
    segment_kb: int = 4_096
    quota_mb: int = 256
    vbuckets: int = VBUCKETS
    log_format: str = "text"


class Process:
    """A node process, its port and its log."""

    def __init__(self, data: Path, settings: Settings) -> None:
        """Start it and wait until it listens."""
        port = data / "port"
        port.unlink(missing_ok=True)
        data.mkdir(parents=True, exist_ok=True)
        self.log = data / "log"
        words = [f"--{name.replace('_', '-')}={value}" for name, value in asdict(settings).items()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.node_process", str(data), *words],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while not port.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the node did not start:\n{self.tail()}")
            time.sleep(0.01)
        self.port = int(port.read_text(encoding="ascii"))

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-4_000:]

    @property
    def resident_bytes(self) -> int:
        """Memory of its own the process has now; pages of the mapped file are the system's."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        (line,) = (one for one in status.splitlines() if one.startswith("RssAnon:"))
        return int(line.split()[1]) * 1024

    @property
    def cpu_seconds(self) -> float:
        """Processor time the process has used."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii")
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9; idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(START_SECONDS)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_SECONDS)


if __name__ == "__main__":
    main()
