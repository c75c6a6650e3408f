"""What does a change cost on its way from a node into Spark and into a table, by each road?

Input: four million documents of about 256 bytes of JSON, such as a shop keeps of its customers
(field names repeat, most values do not), in 1,024 vbuckets of a node of ours: four thousand each,
what a small bucket in use has. Figures that end in `.1m` take a million, where a thousand streams
are opened for a thousand rows each. (2,000 in 64 in a quick run.) A node runs in a process of its
own and is left out of every figure. Spark runs on this machine, on one core; CPU time is that of
this process and all it started, read from /proc: the JVM, with its compiler and its garbage
collector, and every Python worker. Each side runs three times before it is measured, since the JVM
compiles for long; then the two take turns, and the cheapest run of each side counts: what else the
machine does only adds.

`rowpath_vs_parquet_read`: CPU per row of Spark reading the rows from Parquet, over that of
`format("dcp")` reading them from the node; both with all 20 columns into Spark's noop sink. 1.0:
a node is as cheap to read as a file. About 0.9 us per row of the row path is Spark taking Arrow
batches from a Python worker, whoever fills them, which is what the file costs altogether. Why this
goal and the next are out of reach: docs/decisions/0018-what-a-row-costs-in-spark.md.

`landing_vs_rowpath`: CPU per row of the row path written as Parquet by Spark, over that of tasks
writing Parquet themselves (`headrace sync` without `state`, its commit included). 1.0: landing is
worth nothing. Both write snappy, and both read the node with the same client.

`landing_vs_consumer`: CPU of the client alone, batches counted and dropped, over that of landing;
both in this process, without Spark. 1.0: a file costs nothing.

`rows_per_second.*`, `megabytes_per_second.*`: by the clock on the wall, at local[1] and local[2]:
`landing` and `rowpath` from node to table, as above; `rowpath_read` and `parquet_read` rows that
Spark drops; and the client alone. The node runs beside them and takes its part of the cores.

`batch_floor_ms`: a micro-batch of one change, by the clock on the wall.

`state_batch_seconds.KEYS`: `state` taking up a turn of 10,000 changes, CPU, with that many keys in
the table and no merge due. It must not grow with the table. Ten million keys take a minute and some
gigabytes to make: HEADRACE_BENCH_FULL=1 measures them too.
"""

from __future__ import annotations

import atexit
import functools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness import Run, Skip, Value, figure

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.client_feed import ClientFactory
    from headrace.spark.sync import Sync

ROOT: Final = Path(__file__).resolve().parent.parent
START_SECONDS_MAX: Final = 180.0
FULL: Final = "HEADRACE_BENCH_FULL"
ROUNDS: Final = 5
WARM_ROUNDS: Final = 3
DOCUMENTS: Final = 4_000_000
DOCUMENT_SIZE: Final = 256
"""Bytes of a document, about."""
FEWER_DOCUMENTS: Final = 1_000_000
QUICK_DOCUMENTS: Final = 2_000
TURN_CHANGES: Final = 10_000
TICKS: Final = os.sysconf("SC_CLK_TCK")
SYLLABLES: Final = ("ka", "lo", "mi", "ren", "sta", "vo", "bru", "eth")
LANDED: Final = "landed-"
NODES: Final[list[int]] = []
"""Process ids of the nodes, which are in no figure."""
NAMES: Final = [f"{first}{second}n".title() for first in SYLLABLES for second in SYLLABLES]


# -- the world -------------------------------------------------------------------------------------


@functools.cache
def scratch() -> Path:
    """A directory that goes with the process."""
    held = tempfile.TemporaryDirectory(prefix="headrace-bench-")
    atexit.register(held.cleanup)
    return Path(held.name)


@functools.cache
def node(count: int) -> tuple[str, int]:
    """A node for that many documents in a process of its own: where it is and its process id."""
    port_file = scratch() / f"port-{count}"
    vbuckets = 1024 if count > QUICK_DOCUMENTS else 64
    command = [sys.executable, "-m", "headrace", "serve", "--memory", "--port", "0"]
    command += ["--vbuckets", str(vbuckets), "--memory-quota-mb", str(2048 + count // 1000)]
    command += ["--port-file", str(port_file), "--log-level", "error"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    started = subprocess.Popen(  # noqa: S603 - our own command
        command, env=environment, stdout=subprocess.DEVNULL
    )
    NODES.append(started.pid)
    atexit.register(started.kill)
    deadline = time.monotonic() + START_SECONDS_MAX
    while not port_file.exists():
        if time.monotonic() > deadline or started.poll() is not None:
            raise Skip("the node did not start")
        time.sleep(0.05)
    port = port_file.read_text(encoding="ascii").strip()
    return f"couchbase://127.0.0.1:{port}/default", started.pid


def filled(run: Run, count: int = DOCUMENTS) -> tuple[ClientFactory, int]:
    """A bucket with documents: how to read it, and how many there are."""
    return _filled(QUICK_DOCUMENTS if run.quick else count)


@functools.cache
def _filled(count: int) -> tuple[ClientFactory, int]:
    from headrace.client.bucket import connect
    from headrace.client.writer import Document
    from headrace.spark.client_feed import ClientFactory

    url, _ = node(count)
    draw = random.Random(1)
    with connect(url) as bucket, bucket.writer() as writer:
        for number in range(count):
            key = f"customer::{number:09d}".encode()
            writer.put(Document(key, customer(number, draw), is_json=True))
    return ClientFactory(url), count


def customer(number: int, draw: random.Random) -> bytes:
    """A document of about 256 bytes."""
    word = draw.getrandbits(64)
    return (
        f'{{"type":"customer","number":{number},'
        f'"name":"{NAMES[word % 64]} {NAMES[word >> 6 & 63]}",'
        f'"email":"{word & 0xFFFFFF:x}@example.com","since":"20{word >> 12 & 15:02d}-'
        f'{word >> 16 & 7:02d}-{word >> 20 & 15:02d}T08:{word >> 24 & 31:02d}:00Z",'
        f'"address":{{"street":"{NAMES[word >> 30 & 63]} {word >> 36 & 255}",'
        f'"city":"{NAMES[word >> 44 & 63]}","zip":"{word >> 50 & 0xFFFF:05d}"}},'
        f'"orders":{word >> 40 & 1023},"balance":{(word >> 8 & 0xFFFFF) / 100},"active":true}}'
    ).encode()


def session_on(cores: int) -> SparkSession:
    """The session, on that many cores; another one is stopped first."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Skip("pyspark is not installed") from error
    from headrace.spark.session import session, with_retries

    os.environ["PYTHONPATH"] = str(ROOT / "src")
    running = SparkSession.getActiveSession()
    wanted = f"local[{cores}]"
    if running is not None and running.sparkContext.master != with_retries(wanted):
        running.stop()
    return session("headrace benchmark", master=wanted, settings={"spark.log.level": "ERROR"})


def tree_cpu_seconds(*without: int) -> float:
    """CPU seconds of this process and everything below it, but for some processes."""
    times: dict[int, float] = {}
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.name)] = int(fields[1])
        times[int(path.name)] = sum(map(int, fields[11:15])) / TICKS
    total = 0.0
    for pid, seconds in times.items():
        above = pid
        while above in parents and above != os.getpid() and above not in without:
            above = parents[above]
        total += seconds if above == os.getpid() else 0.0
    return total


def tree_cost(call: Callable[[], object]) -> float:
    """CPU seconds of one call, over all processes but the nodes'."""
    tidy()
    before = tree_cpu_seconds(*NODES)
    call()
    return tree_cpu_seconds(*NODES) - before


def own_cost(call: Callable[[], object]) -> float:
    """CPU seconds of one call that starts no process: workers that Spark lets go do not matter."""
    tidy()
    before = time.process_time()
    call()
    return time.process_time() - before


def compared(
    run: Run,
    subject: Callable[[], object],
    baseline: Callable[[], object],
    cost: Callable[[Callable[[], object]], float] = tree_cost,
) -> Value:
    """How cheap the subject is as a multiple of the baseline, by CPU, in turns."""
    rounds = 1 if run.quick else ROUNDS
    for _ in range(1 if run.quick else WARM_ROUNDS):
        subject()
        baseline()
    costs: dict[Callable[[], object], list[float]] = {subject: [], baseline: []}
    for number in range(rounds):
        for side in costs if number % 2 == 0 else reversed(costs):
            costs[side].append(cost(side))
    return Value(min(costs[baseline]) / max(min(costs[subject]), 1 / TICKS), rounds)


# -- the roads -------------------------------------------------------------------------------------


def row_path(spark: SparkSession, factory: ClientFactory) -> DataFrame:
    """The rows through the JVM."""
    return spark.read.format("dcp").option("url", factory.url).option("partitions", "2").load()


def same_rows(spark: SparkSession, factory: ClientFactory, count: int) -> str:
    """Where the rows of a node stand as Parquet, written once."""
    path = scratch() / f"same-{count}.parquet"
    if not path.exists():
        row_path(spark, factory).write.parquet(str(path))
    return str(path)


def to_nowhere(frame: DataFrame) -> None:
    """Make Spark produce every row and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def new_sync(factory: ClientFactory, spark: SparkSession | None) -> Sync:
    """A sync of `changes` alone into a new directory, on Spark or in this process."""
    from headrace.spark.jobs import LocalRunner, SparkRunner
    from headrace.spark.sync import Sync, SyncOptions

    directory = tempfile.mkdtemp(dir=scratch(), prefix=LANDED)
    runner = LocalRunner() if spark is None else SparkRunner(spark)
    return Sync(factory, directory, runner, SyncOptions(state=None))


def land(factory: ClientFactory, spark: SparkSession | None = None) -> Sync:
    """One whole landing."""
    sync = new_sync(factory, spark)
    for _ in sync.once():
        pass
    sync.close()
    return sync


def tidy() -> None:
    """Remove what was landed: a table is measured once and takes a third of a gigabyte."""
    for directory in scratch().glob(f"{LANDED}*"):
        shutil.rmtree(directory)


def consume(factory: ClientFactory) -> int:
    """The client alone."""
    feed = factory()
    rows = sum(int(batch.num_rows) for batch in feed.bucket.changes(until="now"))
    feed.close()
    return rows


# -- figures ---------------------------------------------------------------------------------------


def _row_path_against_parquet(run: Run, documents: int) -> Value:
    factory, count = filled(run, documents)
    spark = session_on(1)
    path = same_rows(spark, factory, count)
    return compared(
        run,
        lambda: to_nowhere(row_path(spark, factory)),
        lambda: to_nowhere(spark.read.parquet(path)),
    )


@figure("spark.rowpath_vs_parquet_read", unit="ratio", goal=0.8, better="higher")
def row_path_against_parquet(run: Run) -> Value:
    """Rows from a node, against rows from a file, by CPU per row."""
    return _row_path_against_parquet(run, DOCUMENTS)


@figure("spark.rowpath_vs_parquet_read.1m", unit="ratio", goal=None, better="higher")
def row_path_against_parquet_1m(run: Run) -> Value:
    """The same with a thousand rows per vbucket."""
    return _row_path_against_parquet(run, FEWER_DOCUMENTS)


def _landing_against_row_path(run: Run, documents: int) -> Value:
    factory, _ = filled(run, documents)
    spark = session_on(1)
    path = str(scratch() / "written.parquet")
    return compared(
        run,
        lambda: land(factory, spark),
        lambda: row_path(spark, factory).write.mode("overwrite").parquet(path),
    )


@figure("spark.landing_vs_rowpath", unit="ratio", goal=5.0, better="higher")
def landing_against_row_path(run: Run) -> Value:
    """Files written by tasks, against files written by Spark from the same rows."""
    return _landing_against_row_path(run, DOCUMENTS)


@figure("spark.landing_vs_rowpath.1m", unit="ratio", goal=None, better="higher")
def landing_against_row_path_1m(run: Run) -> Value:
    """The same with a thousand rows per vbucket."""
    return _landing_against_row_path(run, FEWER_DOCUMENTS)


@figure("spark.landing_vs_consumer", unit="ratio", goal=0.15, better="higher")
def landing_against_consumer(run: Run) -> Value:
    """Landing without Spark, against the client alone."""
    factory, _ = filled(run)
    return compared(run, lambda: land(factory), lambda: consume(factory), own_cost)


@functools.cache
def _rate(run: Run, cores: int, road: str) -> float:
    """Rows per second of a road, the second time it is gone."""
    factory, count = filled(run)
    spark = session_on(cores)
    written = str(scratch() / "written.parquet")
    roads: dict[str, Callable[[], object]] = {
        "landing": lambda: land(factory, spark),
        "rowpath": lambda: row_path(spark, factory).write.mode("overwrite").parquet(written),
        "rows": lambda: to_nowhere(row_path(spark, factory)),
        "parquet": lambda: to_nowhere(spark.read.parquet(same_rows(spark, factory, count))),
    }
    roads[road]()
    tidy()
    began = time.perf_counter()
    roads[road]()
    return count / (time.perf_counter() - began)


def _megabytes(rows: float) -> Value:
    """The same by the documents' bytes."""
    return Value(rows * DOCUMENT_SIZE / 1e6, 1)


@figure("spark.landing.rows_per_second.local1", unit="rows/s", goal=None, better="higher")
def landing_rate_1(run: Run) -> Value:
    """Node to table, files written by tasks, on one core."""
    return Value(_rate(run, 1, "landing"), 1)


@figure("spark.landing.megabytes_per_second.local1", unit="MB/s", goal=None, better="higher")
def landing_bytes_1(run: Run) -> Value:
    """Bytes of documents, node to table, files written by tasks, on one core."""
    return _megabytes(_rate(run, 1, "landing"))


@figure("spark.landing.rows_per_second.local2", unit="rows/s", goal=None, better="higher")
def landing_rate_2(run: Run) -> Value:
    """Node to table, files written by tasks, on two cores."""
    return Value(_rate(run, 2, "landing"), 1)


@figure("spark.landing.megabytes_per_second.local2", unit="MB/s", goal=None, better="higher")
def landing_bytes_2(run: Run) -> Value:
    """Bytes of documents, node to table, files written by tasks, on two cores."""
    return _megabytes(_rate(run, 2, "landing"))


@figure("spark.rowpath.rows_per_second.local1", unit="rows/s", goal=None, better="higher")
def row_path_rate_1(run: Run) -> Value:
    """Node to table, files written by Spark from rows, on one core."""
    return Value(_rate(run, 1, "rowpath"), 1)


@figure("spark.rowpath.megabytes_per_second.local1", unit="MB/s", goal=None, better="higher")
def row_path_bytes_1(run: Run) -> Value:
    """Bytes of documents, node to table, files written by Spark from rows, on one core."""
    return _megabytes(_rate(run, 1, "rowpath"))


@figure("spark.rowpath.rows_per_second.local2", unit="rows/s", goal=None, better="higher")
def row_path_rate_2(run: Run) -> Value:
    """Node to table, files written by Spark from rows, on two cores."""
    return Value(_rate(run, 2, "rowpath"), 1)


@figure("spark.rowpath.megabytes_per_second.local2", unit="MB/s", goal=None, better="higher")
def row_path_bytes_2(run: Run) -> Value:
    """Bytes of documents, node to table, files written by Spark from rows, on two cores."""
    return _megabytes(_rate(run, 2, "rowpath"))


@figure("spark.rowpath_read.rows_per_second.local1", unit="rows/s", goal=None, better="higher")
def rows_rate_1(run: Run) -> Value:
    """Node to rows that Spark drops, on one core."""
    return Value(_rate(run, 1, "rows"), 1)


@figure("spark.rowpath_read.rows_per_second.local2", unit="rows/s", goal=None, better="higher")
def rows_rate_2(run: Run) -> Value:
    """Node to rows that Spark drops, on two cores."""
    return Value(_rate(run, 2, "rows"), 1)


@figure("spark.parquet_read.rows_per_second.local1", unit="rows/s", goal=None, better="higher")
def parquet_rate_1(run: Run) -> Value:
    """The same rows from Parquet, dropped, on one core."""
    return Value(_rate(run, 1, "parquet"), 1)


@figure("spark.parquet_read.rows_per_second.local2", unit="rows/s", goal=None, better="higher")
def parquet_rate_2(run: Run) -> Value:
    """The same rows from Parquet, dropped, on two cores."""
    return Value(_rate(run, 2, "parquet"), 1)


@figure("spark.consumer.rows_per_second", unit="rows/s", goal=None, better="higher")
def consumer_rate(run: Run) -> Value:
    """The client alone, without Spark: batches counted and dropped."""
    factory, count = filled(run)
    consume(factory)
    began = time.perf_counter()
    consume(factory)
    return Value(count / (time.perf_counter() - began), 1)


@figure("spark.batch_floor_ms", unit="ms", goal=None, better="lower")
def batch_floor(run: Run) -> Value:
    """The median time of micro-batches of one change."""
    from headrace.client.bucket import connect
    from headrace.client.writer import Document

    factory, _ = filled(run)
    spark = session_on(2)
    query = (
        spark.readStream.format("dcp")
        .option("url", factory.url)
        .option("start", "now")
        .option("pollSeconds", "0.2")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", tempfile.mkdtemp(dir=scratch()))
        .start()
    )
    wanted = 2 if run.quick else 12
    deadline = time.monotonic() + START_SECONDS_MAX
    with connect(factory.url) as bucket, bucket.writer() as writer:
        while time.monotonic() < deadline:
            writer.put(Document(b"document::000000001", b"{}"))
            writer.flush()
            time.sleep(0.3)
            done = [p for p in query.recentProgress if p.numInputRows]
            if len(done) > wanted:
                break
    query.stop()
    times = sorted(p.durationMs["triggerExecution"] for p in done[1:])
    return Value(float(times[len(times) // 2]), len(times))


def _state_batch(run: Run, keys: int) -> Value:
    """CPU seconds of one turn of changes taken up by `state`."""
    from benchmarks._spark_tables import grown

    if run.quick:
        keys //= 1_000
    sync, turn = grown(
        Path(tempfile.mkdtemp(dir=scratch())), keys, TURN_CHANGES if not run.quick else 100
    )
    draw = random.Random(1)
    samples = []
    for _ in range(ROUNDS):
        turn(draw)
        began = time.process_time()
        sync()
        samples.append(time.process_time() - began)
    return Value(sorted(samples)[len(samples) // 2], len(samples))


@figure("spark.state_batch_seconds.100000", unit="s", goal=None, better="lower")
def state_batch_5(run: Run) -> Value:
    """10,000 changes into a hundred thousand keys."""
    return _state_batch(run, 100_000)


@figure("spark.state_batch_seconds.1000000", unit="s", goal=None, better="lower")
def state_batch_6(run: Run) -> Value:
    """10,000 changes into a million keys."""
    return _state_batch(run, 1_000_000)


@figure("spark.state_batch_seconds.10000000", unit="s", goal=None, better="lower")
def state_batch_7(run: Run) -> Value:
    """10,000 changes into ten million keys."""
    if not run.quick and os.environ.get(FULL) != "1":
        raise Skip(f"takes a minute; {FULL}=1 measures it")
    return _state_batch(run, 10_000_000)
