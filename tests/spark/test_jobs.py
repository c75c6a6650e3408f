"""Tasks through Spark: answers in order, errors as sentences of their own class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError, ConnectionLost, HeadraceError
from headrace.spark.jobs import LocalRunner, SparkRunner, complaint, failure_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Say:
    text: str

    def __call__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Fail:
    kind: str

    def __call__(self) -> str:
        from headrace import errors

        raise getattr(errors, self.kind)("the node went away, limit 3")


def test_answers_come_in_the_order_of_the_tasks(spark: SparkSession) -> None:
    tasks = [Say(f"{number}") for number in range(7)]
    for runner in (SparkRunner(spark), LocalRunner()):
        assert runner.run(tasks) == [f"{number}" for number in range(7)]
        assert runner.run([]) == []
        assert runner.width >= 1


@pytest.mark.parametrize("kind", ["ConnectionLost", "ConfigError"])
def test_a_task_that_fails_is_its_own_sentence(spark: SparkSession, kind: str) -> None:
    expected = {"ConnectionLost": ConnectionLost, "ConfigError": ConfigError}[kind]
    with pytest.raises(expected, match="the node went away, limit 3"):
        SparkRunner(spark).run([Say("a"), Fail(kind)])


def test_any_other_failure_is_a_sentence_too() -> None:
    assert complaint("") == "no reason was given"
    found = failure_of("Traceback\n  File x\nValueError: seven is no number\n\tat org.apache")
    assert type(found) is HeadraceError
    assert str(found) == "a Spark job failed: ValueError: seven is no number"
    assert len(complaint("x" * 10_000)) <= 500
