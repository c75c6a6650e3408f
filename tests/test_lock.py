"""The lock installs what pyproject.toml asks for, with a hash for everything, from any index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parent.parent
PIN: Final = re.compile(r"^(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^ ]+)", re.MULTILINE)
# Lock -> the dependency groups and extras it answers, besides the dependencies themselves.
LOCKS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "requirements.lock": (("dev",), ("tls",)),
    "requirements-spark.lock": (("dev", "spark-test"), ("tls", "spark")),
    "requirements-browser.lock": (("dev", "browser"), ("tls",)),
}


def wanted(project: str, groups: tuple[str, ...], extras: tuple[str, ...]) -> list[Requirement]:
    """Return the requirements a lock has to answer."""
    table = tomllib.loads(project)
    texts = list(table["project"]["dependencies"])
    for group in groups:
        texts += table["dependency-groups"][group]
    for extra in extras:
        texts += table["project"]["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def lock_problems(
    project: str, lock: str, groups: tuple[str, ...] = ("dev",), extras: tuple[str, ...] = ()
) -> list[str]:
    """Return one sentence per requirement without a fitting pin, pin without hash, or address."""
    problems = []
    pins: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=\S)", lock):
        pin = PIN.match(block)
        if pin is None:
            continue
        pins.setdefault(canonicalize_name(pin["name"]), []).append(pin["version"])
        if "--hash=sha256:" not in block:
            problems.append(f"{pin['name']} has no hash")
    for requirement in wanted(project, groups, extras):
        versions = pins.get(canonicalize_name(requirement.name), [])
        if not versions:
            problems.append(f"{requirement.name} is not locked")
        problems += [
            f"{requirement.name} is locked at {version}, wanted is {requirement.specifier}"
            for version in versions
            if version not in requirement.specifier
        ]
    if "://" in lock:
        problems.append("the lock names an address; which index to use is the machine's affair")
    return problems


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_answers_the_project(name: str) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lock = (ROOT / name).read_text(encoding="utf-8")
    assert lock_problems(project, lock, *LOCKS[name]) == []


def test_all_locks_pin_the_same() -> None:
    """The others are installed on top of the first."""
    plain, *others = (set(PIN.findall((ROOT / name).read_text(encoding="utf-8"))) for name in LOCKS)
    for other in others:
        assert plain <= other


def test_planted_holes_in_the_lock_are_found() -> None:
    project = (
        '[project]\ndependencies = ["numpy>=2.0", "rich>=13"]\n'
        '[dependency-groups]\ndev = ["pytest>=8", "mypy>=1"]\n'
    )
    lock = (
        "--index-url https://index.example/simple\n"
        "numpy==1.26.0 \\\n    --hash=sha256:00\n"
        "rich==14.0\n    # via headrace\n"
        "pytest==9.0.1 \\\n    --hash=sha256:00\n"
    )
    assert lock_problems(project, lock) == [
        "rich has no hash",
        "numpy is locked at 1.26.0, wanted is >=2.0",
        "mypy is not locked",
        "the lock names an address; which index to use is the machine's affair",
    ]
