"""What a check found: good, worth knowing, or in the way, and what to do about it.

Imports: nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `headrace doctor`; ``advice`` says what to do, "" where nothing is to be done."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""

    def to_json(self) -> dict[str, str]:
        """As plain data."""
        return {
            "check": self.check,
            "verdict": self.verdict.value,
            "found": self.found,
            "advice": self.advice,
        }


def good(check: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Verdict.OK, found)


def warning(check: str, found: str, advice: str) -> Finding:
    """It works, and someone should know."""
    return Finding(check, Verdict.WARN, found, advice)


def failure(check: str, found: str, advice: str) -> Finding:
    """It will not work."""
    return Finding(check, Verdict.FAIL, found, advice)
