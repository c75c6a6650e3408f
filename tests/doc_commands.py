"""Commands of the docs, run as a reader would type them: one page, one directory, top to bottom.

A fenced block with no language, `sh`, `bash` or `console` holds commands: in `console` the lines
that begin with `$ `, elsewhere those that begin with a program of `PROGRAMS`. What runs until it is
stopped (`LIVES`) goes to the background; another node for the same port takes its place, one for
another port runs beside it. A port in the text is exchanged for one that is free, and a URL without
a port gets that of the newest node. A block of TOML whose first line is a comment with the name of
a file is that file, in the page's directory, with the ports exchanged as well.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL: Final = frozenset({"", "sh", "bash", "console"})
PROGRAMS: Final = ("headrace", ".venv/bin/headrace", "make", ".ci/run", "pip", "python")
LIVES: Final = frozenset({"serve", "watch", "replicate"})
READY: Final = re.compile(r"^connect:|^  Ctrl-C ends it", re.MULTILINE)
EXPORT: Final = re.compile(r"export (\w+)=(\S+)")
PORT: Final = re.compile(r"listening on 127\.0\.0\.1:(\d+):")
TLS_PORT: Final = re.compile(r"listening on 127\.0\.0\.1:(\d+) \(TLS\)")
NODE_PORT, NODE_TLS_PORT = 11210, 11207
"""Where a node listens that is not told where."""
FILE: Final = re.compile(r"^# ([\w.-]+\.toml)(?:, mode 600)?$")
FILE_MODE: Final = 0o600
START_SECONDS_MAX: Final = 120.0
RUN_SECONDS_MAX: Final = 240.0


class Command(NamedTuple):
    """A line to type, with what the page shows below it ("" where nothing is shown)."""

    page: str
    line: str
    shown: str

    def __str__(self) -> str:
        return f"{self.page}: {self.line}"


def commands_of(page: str, text: str) -> list[Command]:
    """The commands of a page's fenced blocks, in order."""
    found: list[Command] = []
    for language, block in FENCE.findall(text):
        if language not in SHELL:
            continue
        if language == "console":
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                line, _, shown = part.partition("\n")
                found.append(Command(page, line.strip(), shown.rstrip()))
            continue
        found += [
            Command(page, _bare(line), "")
            for line in block.splitlines()
            if line.startswith(tuple(f"{program} " for program in PROGRAMS)) or line in PROGRAMS
        ]
    return found


def files_of(text: str) -> dict[str, str]:
    """The files a page shows with their names."""
    found = {}
    for language, block in FENCE.findall(text):
        first, _, rest = block.partition("\n")
        if language == "toml" and (named := FILE.match(first)):
            found[named.group(1)] = rest
    return found


def _bare(line: str) -> str:
    """The line without what its author says about it."""
    return re.sub(r"\s+#\s.*$", "", line).strip()


def words_of(line: str) -> list[str]:
    """The words of a command; the first is the program, without its directory."""
    words = [word for word in shlex.split(line) if word != "&"]
    return [Path(words[0]).name, *words[1:]]


@dataclass
class Reader:
    """Someone who types the commands of one page, in an empty directory."""

    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)
    """Port in the text -> port of the node that stands for it."""
    newest: int = 0
    processes: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    """Port in the text -> the node."""

    def type(self, line: str) -> subprocess.CompletedProcess[str] | None:
        """Run a command to its end, or start one that has none."""
        words = [self.placed(word) for word in words_of(line)]
        for name, text in self.files.items():
            path = self.directory / name
            path.write_text(self.placed(text), encoding="utf-8")
            path.chmod(FILE_MODE)
        if words[0] != "headrace":
            raise AssertionError(
                f"{line}: only headrace is typed here; give a reason not to run it"
            )
        if words[1] in LIVES and "--once" not in words:
            return self._start(words)
        return self._run(words)

    def stop(self) -> None:
        """Stop what runs in the background."""
        for typed in list(self.processes):
            self._end(typed)

    def _end(self, typed: int) -> None:
        process = self.processes.pop(typed, None)
        if process is not None:
            process.terminate()
            process.wait(START_SECONDS_MAX)

    def placed(self, text: str) -> str:
        """The text with the ports of the nodes that run."""
        if not self.ports:
            return text

        def exchanged(found: re.Match[str]) -> str:
            return f"127.0.0.1:{self.ports.get(int(found.group(1)), self.newest)}"

        text = re.sub(r"127\.0\.0\.1:(\d+)", exchanged, text)
        return text.replace("127.0.0.1/", f"127.0.0.1:{self.newest}/")

    def _command(self, words: list[str]) -> list[str]:
        code = "import sys; sys.argv[0] = 'headrace'; from headrace.cli import main; main()"
        return [sys.executable, "-c", code, *words[1:]]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **self.environment}

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(words),
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=self._environment(),
            timeout=RUN_SECONDS_MAX,
        )

    def _start(self, words: list[str]) -> subprocess.CompletedProcess[str] | None:
        """Start it; what it said if it ended at once."""
        typed = NODE_PORT
        if words[1] == "serve":
            typed = _port_of(words)
            self._end(typed)
            words = _with_free_ports(words)
        told, errors = (self.directory / f"{words[1]}.{kind}" for kind in ("out", "err"))
        with told.open("w") as output, errors.open("w") as complaints:
            process = subprocess.Popen(
                self._command(words),
                stdout=output,
                stderr=complaints,
                text=True,
                cwd=self.directory,
                env={**self._environment(), "PYTHONUNBUFFERED": "1"},
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not READY.search(text := told.read_text(encoding="utf-8")):
            if process.poll() is not None:
                said = errors.read_text(encoding="utf-8")
                return subprocess.CompletedProcess(words, process.returncode, text, said)
            assert time.monotonic() < deadline, f"{words} did not say that it is ready: {text}"
            time.sleep(0.05)
        if words[1] != "serve":
            # It is there: that is all a page can promise. One node stays for the whole page.
            process.terminate()
            process.wait(START_SECONDS_MAX)
            return None
        self.processes[typed] = process
        self.environment |= dict(EXPORT.findall(text))
        for pattern, port in ((PORT, typed), (TLS_PORT, NODE_TLS_PORT)):
            if found := pattern.search(text):
                self.ports[port] = int(found.group(1))
        self.newest = self.ports[typed]
        return None


def _port_of(words: list[str]) -> int:
    """The port a node is told to listen on, in the text."""
    return int(words[words.index("--port") + 1]) if "--port" in words else NODE_PORT


def _with_free_ports(words: list[str]) -> list[str]:
    """The same node where nobody else listens."""
    options = [word for word in words if word != "--web"]
    if "--port" in options:
        options[options.index("--port") + 1] = "0"
    elif "--config" not in options:
        options += ["--port", "0"]
    if "--tls-self-signed" in words:
        options += ["--tls-port", "0"]
    if "--web" in words:
        with socket.create_server(("127.0.0.1", 0)) as free:
            options += ["--web", str(free.getsockname()[1])]
    return options
