"""`headrace serve` in a process of its own, its levers, and kill -9.

The node keeps its port from one life to the next, so that consumers find it again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.cli.fault import Target
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from types import TracebackType

ROOT: Final = Path(__file__).resolve().parent.parent.parent
START_SECONDS: Final = 120.0
TAIL: Final = 4_000


class ServedNode:
    """A node process on a directory; killed at the end of the block."""

    def __init__(self, directory: Path, *, vbuckets: int, quota_mb: int = 512) -> None:
        """Start it and wait until it listens."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.vbuckets, self.quota_mb = directory, vbuckets, quota_mb
        self.port = 0
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def __enter__(self) -> ServedNode:
        """Kill it at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill it."""
        del kind, error, trace
        self.kill()

    @property
    def url(self) -> str:
        """Where consumers connect."""
        return f"couchbase://127.0.0.1:{self.port}/default"

    @property
    def log(self) -> str:
        """The end of what the processes said."""
        path = self.directory / "log"
        return path.read_text(encoding="utf-8", errors="replace")[-TAIL:] if path.exists() else ""

    def start(self) -> None:
        """Run on the directory, at the port it had before."""
        port, admin = self.directory / "port", self.directory / "admin"
        for path in (port, admin):
            path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "headrace", "serve", "--log-level", "warning"]
        command += ["--data", str(self.directory / "data"), "--vbuckets", str(self.vbuckets)]
        command += ["--port", str(self.port), "--port-file", str(port)]
        command += ["--admin-port", "0", "--admin-file", str(admin)]
        command += ["--memory-quota-mb", str(self.quota_mb)]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while not admin.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the node did not start:\n{self.log}")
            time.sleep(0.01)
        self.port = int(port.read_text(encoding="ascii"))
        self.starts += 1

    def kill(self) -> None:
        """kill -9; idempotent."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
        if process is not None:
            process.wait(START_SECONDS)

    def pull(self, lever: str, **values: object) -> dict[str, object] | None:
        """Pull a lever as `headrace fault` does; None if the node says that it cannot be pulled."""
        return self._post({"lever": lever, **values})

    def step(self, line: str) -> dict[str, object] | None:
        """Add a step of a scenario."""
        return self._post({"line": line})

    def _post(self, body: dict[str, object]) -> dict[str, object] | None:
        target = Target(str(self.directory / "admin"), None, as_json=False)
        try:
            return target.call("POST", "/faults", body)
        except HeadraceError:
            return None
