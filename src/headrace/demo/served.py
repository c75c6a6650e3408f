"""A node in a process of its own, that ends with the one that started it.

`python -m headrace.demo.served` is that process: `headrace serve` with a watch on its standard
input. The owner holds the other end; when the owner is gone, however it went, the pipe breaks and
the node stops cleanly. The process has a session of its own, so that Ctrl-C on the terminal reaches
only the owner, which then stops things in their order.

Imports: errors, cli.fault, cli.serve.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from headrace.cli.fault import Target
from headrace.errors import CannotConnect

START_SECONDS_MAX: Final = 180.0
"""The first start on a machine compiles the node's kernels."""
STOP_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.05
LOG_LINES_SHOWN: Final = 3


class ServedNode:
    """One node process with its data, its log and its fault levers."""

    def __init__(self, directory: Path, *, vbuckets: int, port: int = 0) -> None:
        """Nothing is started yet."""
        self.data = directory / "node"
        self.log = directory / "node.log"
        self.port = port
        self._port_file = directory / "node.port"
        self._admin_file = directory / "node.admin"
        self._vbuckets = vbuckets
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"couchbase://127.0.0.1:{self.port}/default"

    @property
    def admin_file(self) -> Path:
        """What `headrace fault --admin` takes."""
        return self._admin_file

    def start(self) -> None:
        """Start the process; `wait_ready` tells when it listens."""
        self._port_file.unlink(missing_ok=True)
        words = (self.data, self._port_file, self._admin_file, self._vbuckets, self.port)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-m", "headrace.demo.served", *map(str, words)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        """Whether it listens; CannotConnect if it ended instead."""
        assert self._process is not None, "the node was not started"
        code = self._process.poll()
        if code is not None:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            said = " / ".join(lines[-LOG_LINES_SHOWN:])
            raise CannotConnect(f"the node ended with exit code {code}: {said}")
        try:
            self.port = int(self._port_file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return False
        return True

    def wait_ready(self, timeout_seconds: float = START_SECONDS_MAX) -> None:
        """Wait until it listens; CannotConnect if it does not."""
        deadline = time.monotonic() + timeout_seconds
        while not self.is_ready():
            if time.monotonic() > deadline:
                raise CannotConnect(f"the node did not start in {timeout_seconds:g} s")
            time.sleep(POLL_SECONDS)

    def pull(self, lever: str, **said: object) -> dict[str, object]:
        """Pull a fault lever, as `headrace fault` does; what came of it."""
        target = Target(str(self._admin_file), None, as_json=True)
        answer = target.call("POST", "/faults", {"lever": lever, **said})
        result = answer.get("result")
        return result if isinstance(result, dict) else {}

    def stop(self) -> None:
        """Stop it cleanly, and by force if that takes too long; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for path in (self._port_file, self._admin_file):
            path.unlink(missing_ok=True)


def main(arguments: list[str]) -> None:
    """Serve until standard input ends."""
    from headrace.cli.serve import Options, run

    data, port_file, admin_file, vbuckets, port = arguments
    # The owner's: in a session of its own this process gets no Ctrl-C from a terminal anyway.
    threading.Thread(target=_end_with_owner, daemon=True).start()
    run(
        Options(
            data=Path(data),
            port=int(port),
            vbuckets=int(vbuckets),
            port_file=Path(port_file),
            admin_file=Path(admin_file),
        )
    )


def _end_with_owner() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
