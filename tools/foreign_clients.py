"""Builds the foreign clients under tests/interop/foreign and says how to run them.

Each is a small program of ours around somebody else's client library: Go's gocbcore, Java's
dcp-client. `python -m tools.foreign_clients` builds those whose tools are here. Builds go to
build/interop/foreign, are made once and again after a source has changed; the libraries come from
the Go module proxy and Maven Central, at the versions go.sum and pom.xml name.

Imports: nothing of ours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ROOT / "tests" / "interop" / "foreign"
BUILT: Final = ROOT / "build" / "interop" / "foreign"
BUILD_SECONDS_MAX: Final = 900


class ToolMissing(Exception):
    """A program cannot be built or run here; the text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One foreign client: what it needs, how it is built, how it is run."""

    name: str
    needs: tuple[str, ...]
    build: tuple[str, ...]
    output: Path
    run: tuple[str, ...]
    environment: dict[str, str]

    @property
    def sources(self) -> Path:
        """Where its code is."""
        return SOURCES / self.name


# Where Go's own installer puts it; distributions put it on PATH.
OFF_PATH: Final = {"go": "/usr/local/go/bin/go"}

PROGRAMS: Final = {
    program.name: program
    for program in (
        Program(
            name="go",
            needs=("go",),
            build=("go", "build", "-trimpath", "-o", str(BUILT / "go" / "drain"), "."),
            output=BUILT / "go" / "drain",
            run=(str(BUILT / "go" / "drain"),),
            # The compiler that is here and the versions of go.sum, or a refusal; never a download
            # of another compiler. Without C the build needs nothing else.
            environment={"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"},
        ),
        Program(
            name="java",
            needs=("java", "mvn"),
            build=("mvn", "--quiet", "--batch-mode", "--no-transfer-progress", "package"),
            output=BUILT / "java" / "drain.jar",
            run=("java", "-jar", str(BUILT / "java" / "drain.jar")),
            environment={},
        ),
    )
}


def command_of(name: str) -> list[str]:
    """The command that runs a client, built if need be; ToolMissing if it cannot be."""
    program = PROGRAMS[name]
    tools = {need: tool_path(need) for need in program.needs}
    if not is_fresh(program):
        program.output.parent.mkdir(parents=True, exist_ok=True)
        command = [tools.get(program.build[0], program.build[0]), *program.build[1:]]
        done = subprocess.run(  # noqa: S603 - our own words
            command,
            cwd=program.sources,
            env={**os.environ, **program.environment},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            told = (done.stdout + done.stderr).strip()
            raise RuntimeError(f"{' '.join(program.build)} failed:\n{told[-4000:]}")
        # Its time is that of its sources where nothing had to be linked anew.
        program.output.touch()
    return [tools.get(program.run[0], program.run[0]), *program.run[1:]]


def tool_path(name: str) -> str:
    """Where a tool is; ToolMissing if it is not."""
    found = shutil.which(name) or shutil.which(OFF_PATH.get(name, ""))
    if found is None:
        raise ToolMissing(f"{name} is not installed")
    return found


def is_fresh(program: Program) -> bool:
    """Whether what was built is newer than every source."""
    if not program.output.is_file():
        return False
    built = program.output.stat().st_mtime
    files = [path for path in program.sources.rglob("*") if path.is_file()]
    return all(path.stat().st_mtime <= built for path in files)


def main() -> int:
    """Build what can be built."""
    for name in PROGRAMS:
        try:
            command_of(name)
        except ToolMissing as missing:
            sys.stderr.write(f"the {name} client is left out: {missing}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
