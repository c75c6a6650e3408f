"""Tasks through Spark: answers in order, errors as sentences of their own class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError, ConnectionLost, HeadraceError
from headrace.spark.jobs import (
    ConnectRunner,
    LocalRunner,
    SparkRunner,
    complaint,
    failure_of,
    runner_on,
)

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


def test_both_roads_run_as_many_tasks_at_once(spark: SparkSession) -> None:
    assert ConnectRunner(spark).width == SparkRunner(spark).width
    assert type(runner_on(spark)) is SparkRunner


# What Connect's runner does needs no SparkContext, and runs where there is one too.
def test_answers_come_in_order_by_the_road_of_spark_connect(spark: SparkSession) -> None:
    answers = ConnectRunner(spark).run([Say(f"{number}") for number in range(7)])
    assert answers == [f"{number}" for number in range(7)]


@pytest.mark.parametrize("kind", ["ConnectionLost", "ConfigError"])
@pytest.mark.parametrize("road", [SparkRunner, ConnectRunner])
def test_a_task_that_fails_is_its_own_sentence(
    spark: SparkSession, kind: str, road: type[SparkRunner]
) -> None:
    expected = {"ConnectionLost": ConnectionLost, "ConfigError": ConfigError}[kind]
    with pytest.raises(expected, match="the node went away, limit 3"):
        road(spark).run([Say("a"), Fail(kind)])


def test_any_other_failure_is_a_sentence_too() -> None:
    assert complaint("") == "no reason was given"
    found = failure_of("Traceback\n  File x\nValueError: seven is no number\n\tat org.apache")
    assert type(found) is HeadraceError
    assert str(found) == "a Spark job failed: ValueError: seven is no number"
    assert len(complaint("x" * 10_000)) <= 500
