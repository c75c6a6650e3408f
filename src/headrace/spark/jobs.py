"""Run a list of small tasks as one Spark job and bring their answers back to the driver.

The row path through the JVM costs more than everything else together, so our own jobs send Spark a
task and get back one short text per task; files are written and read by the tasks themselves.

Rules.
- A task is a picklable callable without arguments that returns a string. It may run more than once
  (a retry, a speculative copy): it must leave nothing behind that a second run would trip over.
- Answers come in the order of the tasks. A task that fails for good is a HeadraceError that carries
  the last line of its complaint; nothing is committed then.
- Tasks travel inside the job, never in an option: options are shown in plans and on pages.
- Two roads to the executors: an RDD job where there is a SparkContext, and a DataFrame of one row
  per task where there is none (Spark Connect). The first costs the JVM least (decision 0013).

Imports: errors.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from headrace import errors
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

COMPLAINT_SIZE_MAX: Final = 500
WIDTH_MAX: Final = 1024
"""Tasks that are run at once at most, as far as Spark Connect tells."""
_OURS: Final = re.compile(r"headrace\.errors\.(\w+): ")
# The classes whose only argument is their sentence, and that a caller treats by class.
_PLAIN: Final = (errors.ConnectionLost, errors.CannotConnect, errors.ConfigError)


class Task(Protocol):
    """What runs on an executor."""

    def __call__(self) -> str:
        """Do it; the answer is small."""
        ...


class Runner(Protocol):
    """Something that runs tasks: a Spark session, or this process."""

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """The answers, in the order of the tasks."""
        ...

    @property
    def width(self) -> int:
        """How many tasks run at once."""
        ...


def run_task(task: Task) -> str:
    """Run one task; the function Spark's workers import."""
    return task()


class SparkRunner:
    """Runs tasks on the executors of a session."""

    def __init__(self, spark: SparkSession) -> None:
        """Use a session that runs already."""
        self._spark = spark

    @property
    def width(self) -> int:
        """How many tasks the session runs at once."""
        return max(1, int(self._spark.sparkContext.defaultParallelism))

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """The answers, in the order of the tasks; one Spark task each."""
        if not tasks:
            return []
        try:
            return self._answers(list(tasks))
        except Exception as error:
            # Py4J and gRPC raise classes of their own for whatever went wrong in the JVM or in a
            # worker.
            raise failure_of(str(error)) from error

    def _answers(self, tasks: list[Task]) -> list[str]:
        context = self._spark.sparkContext
        return list(map(str, context.parallelize(tasks, len(tasks)).map(run_task).collect()))


class ConnectRunner(SparkRunner):
    """Runs tasks on the executors of a session that is somewhere else, through Spark Connect."""

    @property
    def width(self) -> int:
        """How many partitions Spark gives a range by itself: as many as it runs tasks at once."""
        from pyspark.sql import functions as f

        numbers = self._spark.range(WIDTH_MAX).select(f.spark_partition_id().alias("part"))
        return max(1, numbers.distinct().count())

    def _answers(self, tasks: list[Task]) -> list[str]:
        count = len(tasks)
        # The tasks travel inside the function. One row per partition, and so one task each.
        rows = self._spark.range(0, count, 1, count).mapInArrow(
            _Chosen(tuple(tasks)), "place long, answer string"
        )
        answers = {int(row.place): str(row.answer) for row in rows.collect()}
        return [answers[place] for place in range(count)]


class _Chosen:
    """A function for `mapInArrow`: the ids of rows are places of tasks."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        self._tasks = tasks

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            places = batch.column(0).to_pylist()
            answers = [run_task(self._tasks[place]) for place in places]
            yield pa.RecordBatch.from_arrays(
                [pa.array(places, pa.int64()), pa.array(answers, pa.string())],
                names=["place", "answer"],
            )


def runner_on(spark: SparkSession) -> SparkRunner:
    """The runner that suits a session."""
    return ConnectRunner(spark) if is_remote(spark) else SparkRunner(spark)


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is Spark Connect's: it has no SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


class LocalRunner:
    """Runs tasks in this process, one after the other: for tests and for tables without Spark."""

    width = 1

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """The answers, in the order of the tasks."""
        return [run_task(task) for task in tasks]


def failure_of(text: str) -> HeadraceError:
    """The error of a failed job: of the class the task raised, if that is one of ours."""
    sentence = complaint(text)
    found = _OURS.search(text)
    kind = getattr(errors, found.group(1), HeadraceError) if found else HeadraceError
    if kind not in _PLAIN:
        kind = HeadraceError
    return kind(f"a Spark job failed: {sentence}")


def complaint(text: str) -> str:
    """The sentence of a Python error inside a Java one: its last line that names an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [
        line
        for line in lines
        if not line.startswith(("at ", "File ", "...", "Traceback"))
        and ("Error: " in line or "Lost: " in line or "Exception: " in line)
    ]
    chosen = named[-1] if named else (lines[0] if lines else "no reason was given")
    return chosen[:COMPLAINT_SIZE_MAX]
