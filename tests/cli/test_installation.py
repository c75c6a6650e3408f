"""Checks of a machine: each finds what is wrong when something is."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

import pytest

from headrace.cli import installation
from headrace.cli.finding import Verdict
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_this_machine_is_ready(tmp_path: Path) -> None:
    """What runs these tests runs headrace: nothing fails, whatever is missing of the extras."""
    found = list(installation.examine(tmp_path, with_spark=False))
    assert [one.check for one in found] == [
        "python",
        "system",
        "packages",
        "kernels",
        "database",
        "java",
        "spark",
        "certificates",
        "loopback",
        "descriptors",
        "data",
    ]
    assert [one for one in found if one.verdict is Verdict.FAIL] == []


def test_an_old_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9))
    assert installation.python().verdict is Verdict.FAIL


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "name", "nt")
    assert "WSL" in installation.system().advice


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "PACKAGES", ("click", "no_such_package"))
    found = installation.packages()
    assert found.verdict is Verdict.FAIL
    assert "no_such_package" in found.found
    assert "click (" not in found.found


def test_kernels_that_are_cached_nowhere_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.columns.code.kept_in", lambda: None)
    found = installation.kernels()
    assert found.verdict is Verdict.WARN
    assert "NUMBA_CACHE_DIR" in found.advice


def test_a_directory_for_temporary_files_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    found = installation.database()
    assert found.verdict is Verdict.FAIL
    assert "TMPDIR" in found.advice


def test_without_java_there_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise ConfigError("Spark needs Java 17 or newer and none was found")

    monkeypatch.setattr("headrace.spark.java.find_java", none)
    assert installation.java().verdict is Verdict.WARN


@pytest.mark.parametrize(
    ("version", "verdict"), [("4.2.0", "ok"), ("4.10.1", "ok"), ("3.5.6", "warn"), ("", "warn")]
)
def test_spark_must_be_there_and_new_enough(
    version: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(name: str) -> str:
        if not version:
            raise metadata.PackageNotFoundError(name)
        return version if name == "pyspark" else "2.0"

    monkeypatch.setattr(metadata, "version", told)
    assert installation.spark().verdict.value == verdict


def test_a_loopback_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert installation.loopback().verdict is Verdict.FAIL


def test_few_descriptors_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1_024))
    found = installation.descriptors()
    assert found.verdict is Verdict.WARN
    assert found.advice == "ulimit -n 4096"


class Usage(NamedTuple):
    free: int


def test_a_place_for_data_is_judged_by_rights_and_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    assert installation.directory(tmp_path / "not" / "yet").verdict is Verdict.OK
    assert installation.directory(file).verdict is Verdict.FAIL
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert "cannot be written" in installation.directory(tmp_path).found
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1_000))
    assert installation.directory(tmp_path).verdict is Verdict.WARN


def test_a_spark_that_does_not_start_is_told_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no JVM\nand much more")

    monkeypatch.setattr("headrace.spark.session.session", broken)
    found = installation.spark_session(tmp_path / "spark.log")
    assert found.verdict is Verdict.FAIL
    assert found.found == "does not start: no JVM"
    assert "spark.log" in found.advice
