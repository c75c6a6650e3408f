"""Our consumer beside foreign ones: the same node, the same documents, one run.

Readers, each a process that connects, streams every vbucket from the beginning to now over one
connection with flow control, and says what that cost. Four end with key, seqno, CAS and value of
every change in the application's hands: `arrow` (`bucket.changes`), `objects` (`bucket.follow`),
`go` (gocbcore's DCP agent, a stream observer that counts), `java` (dcp-client's listener of
documents). Two do less: `java_undecoded` (dcp-client's data event handler, which hands out received
buffers as they are and leaves reading them to the application) and `raw` (the same streams read
with `recv_into` and never looked at, without flow control). What
is measured is the last of `ROUNDS` drains within one process: libraries are loaded and compiled, by
the JIT too, and connecting and logging in is in it for all of them. Readers take turns, the order
flips every turn, values are medians over the turns. Objects have one drain of fewer documents.

`objects_vs_arrow`: messages per CPU second of `objects` as a part of those of `arrow`.

`arrow_vs_go`, `arrow_vs_java`: messages per CPU second of `arrow` as a multiple of theirs. CPU of
the reader's process alone, user and system, of all its threads, is counted the same way for all.
`arrow_vs_java_undecoded` sets our decoded columns against buffers that nobody has read yet.
`raw_recv_vs_go`, `raw_recv_vs_java`: the same for `raw`. No client in any language can do better:
the kernel copies every byte to somebody. It bounds the two above: with the goal of
`arrow_vs_raw_recv` just reached they stand at 0.45 of it. So read their goal of 10 with this number
beside it: below 22 it asks for more than the other goal does, and below 10 for more than can be had
on that machine.
`messages_per_cpu_second`, `messages_per_second`: the same readings as rates, values of 256 bytes.
`memory_mb`: highest resident size of each process after all its rounds, values of 256 bytes.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
from typing import Final, NamedTuple

from benchmarks.harness import Run, Skip, Value, figure
from tools.foreign_clients import ToolMissing, command_of

TURNS: Final = 2
ROUNDS: Final = {"arrow": 3, "raw": 3, "go": 3, "java": 3, "java_undecoded": 3, "objects": 1}
"""Reader -> drains within its process, of which the last counts; a JIT needs most."""
OBJECTS_PART: Final = 16
"""Objects take long, so that they read a bucket with so many times fewer documents."""
DRAIN_SECONDS_MAX: Final = 600
OURS: Final = ("arrow", "objects", "raw")
WORDS: Final = {
    "go": ("go",),
    "java": ("java",),
    "java_undecoded": ("java", "--undecoded"),
}
"""Foreign reader -> its program and what that is told."""
SIZE_OF_RATES: Final = 256
"""The size of values for the figures that are about one size only."""


class Reading(NamedTuple):
    """What one drain cost a process."""

    items: int
    cpu_seconds: float
    wall_seconds: float
    memory_mb: float


def command(reader: str, rounds: int, url: str) -> list[str]:
    """The command that drains a bucket with a reader; Skip where it cannot be had."""
    if reader in OURS:
        return [sys.executable, "-m", "benchmarks._consumer_drain", reader, str(rounds), url]
    try:
        program, *words = WORDS[reader]
        return [*command_of(program), "--count", *words, "--rounds", str(rounds), url]
    except (ToolMissing, RuntimeError) as missing:
        raise Skip(str(missing).splitlines()[0]) from missing


def drain(reader: str, rounds: int, url: str, login: tuple[str, str]) -> Reading:
    """The last of some drains in a process of its own."""
    done = subprocess.run(  # noqa: S603 - our own words
        command(reader, rounds, url),
        env={**os.environ, "DRAIN_USER": login[0], "DRAIN_PASSWORD": login[1]},
        capture_output=True,
        text=True,
        timeout=DRAIN_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the {reader} reader failed: {done.stderr.strip()[-500:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    return Reading(*(told[name] for name in Reading._fields))


@functools.cache
def readings(run: Run, value_size: int) -> dict[str, list[Reading]]:
    """Every reader's readings, one per turn; a reader whose tools are missing has none."""
    # Of the file that gathers this one, which has the nodes and is loaded by now.
    from benchmarks.consumer import LOGINS, source

    url, documents = source(run, value_size)
    few_url, few = source(run, value_size, OBJECTS_PART)
    sources = {"objects": (few_url, few)}
    in_turns = ["arrow", "raw", "go", "java"]
    if value_size == SIZE_OF_RATES:
        in_turns.append("java_undecoded")
    order = [
        reader
        for turn in range(run.pick(full=TURNS, quick=1))
        for reader in (in_turns if turn % 2 == 0 else reversed(in_turns))
    ]
    found: dict[str, list[Reading]] = {reader: [] for reader in [*in_turns, "objects"]}
    for reader in [*order, "objects"]:
        where, count = sources.get(reader, (url, documents))
        try:
            rounds = run.pick(full=ROUNDS[reader], quick=1)
            reading = drain(reader, rounds, where, LOGINS[where])
        except Skip:
            continue
        assert reading.items == count, (reader, reading, count)
        found[reader].append(reading)
    return found


def of(run: Run, value_size: int, reader: str) -> list[Reading]:
    """The readings of one reader; Skip with the reason if there are none."""
    found = readings(run, value_size)[reader]
    if not found:
        command(reader, 1, "")
        raise Skip(f"the {reader} reader did not run")
    return found


def arrow_against(run: Run, value_size: int, reader: str, our: str = "arrow") -> Value:
    """Messages per CPU second of our batches as a multiple of a reader's."""
    pairs = zip(of(run, value_size, reader), of(run, value_size, our), strict=True)
    ratios = [theirs.cpu_seconds / ours.cpu_seconds for theirs, ours in pairs]
    return Value(statistics.median(ratios), len(ratios))


def objects_against_arrow(run: Run, value_size: int) -> Value:
    """Messages per CPU second of our objects as a part of those of our batches."""
    (objects,) = of(run, value_size, "objects")
    arrow = statistics.median(one.items / one.cpu_seconds for one in of(run, value_size, "arrow"))
    return Value(objects.items / objects.cpu_seconds / arrow, 1)


def per_cpu_second(run: Run, reader: str) -> Value:
    """Messages per CPU second of a reader, values of 256 bytes."""
    rates = [one.items / one.cpu_seconds for one in of(run, SIZE_OF_RATES, reader)]
    return Value(statistics.median(rates), len(rates))


def per_second(run: Run, reader: str) -> Value:
    """Messages per second on the wall, values of 256 bytes."""
    rates = [one.items / one.wall_seconds for one in of(run, SIZE_OF_RATES, reader)]
    return Value(statistics.median(rates), len(rates))


def memory(run: Run, reader: str) -> Value:
    """Highest resident size of a reader's process, values of 256 bytes."""
    sizes = [one.memory_mb for one in of(run, SIZE_OF_RATES, reader)]
    return Value(statistics.median(sizes), len(sizes))


@figure("consumer.arrow_vs_go.64", unit="ratio", goal=None, better="higher")
def go_64(run: Run) -> Value:
    """Messages per CPU second against gocbcore, values of 64 bytes."""
    return arrow_against(run, 64, "go")


@figure("consumer.arrow_vs_go.256", unit="ratio", goal=10, better="higher")
def go_256(run: Run) -> Value:
    """Messages per CPU second against gocbcore, values of 256 bytes; raw_recv_vs_go bounds it."""
    return arrow_against(run, 256, "go")


@figure("consumer.arrow_vs_go.1024", unit="ratio", goal=None, better="higher")
def go_1024(run: Run) -> Value:
    """Messages per CPU second against gocbcore, values of 1024 bytes."""
    return arrow_against(run, 1024, "go")


@figure("consumer.arrow_vs_java.64", unit="ratio", goal=None, better="higher")
def java_64(run: Run) -> Value:
    """Messages per CPU second against dcp-client, values of 64 bytes."""
    return arrow_against(run, 64, "java")


@figure("consumer.arrow_vs_java.256", unit="ratio", goal=10, better="higher")
def java_256(run: Run) -> Value:
    """Messages per CPU second against dcp-client, 256 bytes; raw_recv_vs_java bounds it."""
    return arrow_against(run, 256, "java")


@figure("consumer.arrow_vs_java.1024", unit="ratio", goal=None, better="higher")
def java_1024(run: Run) -> Value:
    """Messages per CPU second against dcp-client, values of 1024 bytes."""
    return arrow_against(run, 1024, "java")


@figure("consumer.arrow_vs_java_undecoded.256", unit="ratio", goal=None, better="higher")
def java_undecoded_256(run: Run) -> Value:
    """Messages per CPU second, decoded, against buffers of dcp-client that nobody has read yet."""
    return arrow_against(run, 256, "java_undecoded")


@figure("consumer.raw_recv_vs_go.64", unit="ratio", goal=None, better="higher")
def raw_go_64(run: Run) -> Value:
    """The bound of arrow_vs_go: reading bytes of values of 64, against gocbcore."""
    return arrow_against(run, 64, "go", "raw")


@figure("consumer.raw_recv_vs_go.256", unit="ratio", goal=None, better="higher")
def raw_go_256(run: Run) -> Value:
    """The bound of arrow_vs_go: reading bytes of values of 256, against gocbcore."""
    return arrow_against(run, 256, "go", "raw")


@figure("consumer.raw_recv_vs_go.1024", unit="ratio", goal=None, better="higher")
def raw_go_1024(run: Run) -> Value:
    """The bound of arrow_vs_go: reading bytes of values of 1024, against gocbcore."""
    return arrow_against(run, 1024, "go", "raw")


@figure("consumer.raw_recv_vs_java.64", unit="ratio", goal=None, better="higher")
def raw_java_64(run: Run) -> Value:
    """The bound of arrow_vs_java: reading bytes of values of 64, against dcp-client."""
    return arrow_against(run, 64, "java", "raw")


@figure("consumer.raw_recv_vs_java.256", unit="ratio", goal=None, better="higher")
def raw_java_256(run: Run) -> Value:
    """The bound of arrow_vs_java: reading bytes of values of 256, against dcp-client."""
    return arrow_against(run, 256, "java", "raw")


@figure("consumer.raw_recv_vs_java.1024", unit="ratio", goal=None, better="higher")
def raw_java_1024(run: Run) -> Value:
    """The bound of arrow_vs_java: reading bytes of values of 1024, against dcp-client."""
    return arrow_against(run, 1024, "java", "raw")


@figure("consumer.objects_vs_arrow.64", unit="ratio", goal=None, better="higher")
def objects_64(run: Run) -> Value:
    """Objects against Arrow, values of 64 bytes."""
    return objects_against_arrow(run, 64)


@figure("consumer.objects_vs_arrow.256", unit="ratio", goal=None, better="higher")
def objects_256(run: Run) -> Value:
    """Objects against Arrow, values of 256 bytes."""
    return objects_against_arrow(run, 256)


@figure("consumer.objects_vs_arrow.1024", unit="ratio", goal=None, better="higher")
def objects_1024(run: Run) -> Value:
    """Objects against Arrow, values of 1024 bytes."""
    return objects_against_arrow(run, 1024)


@figure("consumer.messages_per_cpu_second.raw", unit="1/s", goal=None, better="higher")
def raw_cpu(run: Run) -> Value:
    """The rate behind the bound: bytes that nobody looks at."""
    return per_cpu_second(run, "raw")


@figure("consumer.messages_per_cpu_second.arrow", unit="1/s", goal=None, better="higher")
def arrow_cpu(run: Run) -> Value:
    """The rate behind the ratios: our batches."""
    return per_cpu_second(run, "arrow")


@figure("consumer.messages_per_cpu_second.objects", unit="1/s", goal=None, better="higher")
def objects_cpu(run: Run) -> Value:
    """The rate behind the ratios: our objects."""
    return per_cpu_second(run, "objects")


@figure("consumer.messages_per_cpu_second.go", unit="1/s", goal=None, better="higher")
def go_cpu(run: Run) -> Value:
    """The rate behind the ratios: gocbcore."""
    return per_cpu_second(run, "go")


@figure("consumer.messages_per_cpu_second.java", unit="1/s", goal=None, better="higher")
def java_cpu(run: Run) -> Value:
    """The rate behind the ratios: dcp-client."""
    return per_cpu_second(run, "java")


@figure("consumer.messages_per_second.arrow", unit="1/s", goal=None, better="higher")
def arrow_wall(run: Run) -> Value:
    """On the wall, the node being as fast as it is: our batches."""
    return per_second(run, "arrow")


@figure("consumer.messages_per_second.objects", unit="1/s", goal=None, better="higher")
def objects_wall(run: Run) -> Value:
    """On the wall, the node being as fast as it is: our objects."""
    return per_second(run, "objects")


@figure("consumer.messages_per_second.go", unit="1/s", goal=None, better="higher")
def go_wall(run: Run) -> Value:
    """On the wall, the node being as fast as it is: gocbcore."""
    return per_second(run, "go")


@figure("consumer.messages_per_second.java", unit="1/s", goal=None, better="higher")
def java_wall(run: Run) -> Value:
    """On the wall, the node being as fast as it is: dcp-client."""
    return per_second(run, "java")


@figure("consumer.memory_mb.arrow", unit="MB", goal=None, better="lower")
def arrow_memory(run: Run) -> Value:
    """Highest resident size: our batches."""
    return memory(run, "arrow")


@figure("consumer.memory_mb.objects", unit="MB", goal=None, better="lower")
def objects_memory(run: Run) -> Value:
    """Highest resident size: our objects."""
    return memory(run, "objects")


@figure("consumer.memory_mb.go", unit="MB", goal=None, better="lower")
def go_memory(run: Run) -> Value:
    """Highest resident size: gocbcore."""
    return memory(run, "go")


@figure("consumer.memory_mb.java", unit="MB", goal=None, better="lower")
def java_memory(run: Run) -> Value:
    """Highest resident size: dcp-client."""
    return memory(run, "java")
