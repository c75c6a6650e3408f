"""Nodes as processes of their own, as people run them, that can be killed and started again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE: Final = Path(__file__).resolve().parent.parent.parent / "src"
START_SECONDS_MAX: Final = 120.0
USER: Final = "Administrator"
PASSWORD: Final = "of this test"  # noqa: S105 - of nodes that live for one test
ENVIRONMENT: Final = {**os.environ, "PYTHONPATH": str(SOURCE)}


@dataclass
class ProcessNode:
    """`headrace serve` in a process."""

    name: str
    directory: Path
    vbuckets: int
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None

    def begin(self) -> None:
        """Start it, on the port it had before if it had one; `wait` until it listens."""
        (self.directory / f"{self.name}.port").unlink(missing_ok=True)
        log = (self.directory / f"{self.name}.log").open("ab")
        command = [sys.executable, "-m", "headrace", "serve"]
        command += ["--data", str(self.directory / self.name), "--vbuckets", str(self.vbuckets)]
        command += ["--port", str(self.port), "--users", str(self.directory / "users.toml")]
        command += ["--port-file", str(self.directory / f"{self.name}.port")]
        with log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT)

    def wait(self) -> None:
        """Wait until it listens."""
        path = self.directory / f"{self.name}.port"
        limit = time.monotonic() + START_SECONDS_MAX
        while not path.exists():
            assert self.process is not None
            ended = self.process.poll() is not None
            if ended or time.monotonic() > limit:
                log = (self.directory / f"{self.name}.log").read_text()
                raise AssertionError(f"node {self.name} does not start: {log[-2000:]}")
            time.sleep(0.05)
        self.port = int(path.read_text())

    def kill(self) -> None:
        """Kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class ProcessNodes:
    """Nodes by name, and the cluster file that names them."""

    path: Path
    nodes: dict[str, ProcessNode] = field(default_factory=dict)

    def write_file(self, *, replicas: int = 0) -> None:
        lines = [f"replicas = {replicas}", 'credentials = "manager.toml"']
        for name, node in self.nodes.items():
            lines += [f"[nodes.{name}]", f'url = "couchbase://127.0.0.1:{node.port}"']
        self.path.write_text("\n".join(lines) + "\n")

    def manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ours on the cluster file: ``move --to b`` ..."""
        command = [sys.executable, "-m", "headrace", words[0], str(self.path), *words[1:]]
        return subprocess.run(
            command, capture_output=True, text=True, env=ENVIRONMENT, timeout=START_SECONDS_MAX
        )

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())
        return f"couchbase://{hosts}"


@contextmanager
def process_nodes(
    directory: Path, names: str = "ab", *, vbuckets: int = 64, replicas: int = 0
) -> Iterator[ProcessNodes]:
    """Nodes with data on disk that insist on a login, killed with the block."""
    users = directory / "users.toml"
    users.write_text(f'[users.{USER}]\npassword = "{PASSWORD}"\nrole = "admin"\n')
    users.chmod(0o600)
    (directory / "manager.toml").write_text(f'user = "{USER}"\npassword = "{PASSWORD}"\n')
    found = ProcessNodes(directory / "cluster.toml")
    with ExitStack() as stack:
        for name in names:
            found.nodes[name] = ProcessNode(name, directory, vbuckets)
            stack.callback(found.nodes[name].kill)
            found.nodes[name].begin()
        for node in found.nodes.values():
            node.wait()
        found.write_file(replicas=replicas)
        yield found


@contextmanager
def process(path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`headrace move` on a cluster file, in a process of its own, killed with the block."""
    command = [sys.executable, "-m", "headrace", "move", str(path), *words]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_paused(running: subprocess.Popen[str], place: str) -> None:
    """Wait until the manager stands still at a place."""
    assert running.stderr is not None
    lines = []
    for line in running.stderr:
        lines.append(line)
        if line.startswith(f"paused at {place} "):
            return
    raise AssertionError(f"it ended before {place}: {''.join(lines)}")
