"""A real node inside a test: started in a moment, stopped with the block, made to fail on demand.

    from headrace.testing import running_node

    def test_my_consumer_survives_a_failover():
        with running_node(vbuckets=4) as node:
            consumer = MyConsumer(node.connection_string)
            write_500_documents(node.port, vbucket=3)
            node.faults.failover(vbucket=3, lose=20)
            ...

The node runs on a thread and an event loop of its own and listens on a free port of 127.0.0.1. Its
levers (`headrace.node.faults.Faults`) may be pulled from the test's thread. `crash` plays dead:
what was not committed is lost, connections break, nothing is closed properly; `restart` opens the
same data on the same port again, where a consumer finds a new branch.

Imports: node, store.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.node.config import BucketConfig, NodeConfig
from headrace.node.fault_script import read_scenario
from headrace.node.server import Node
from headrace.store import BucketSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.node.faults import Faults

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0


class RunningNode:
    """A node on a thread of its own; made by `running_node`."""

    def __init__(self, config: NodeConfig) -> None:
        """Not started yet."""
        self._config = config
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._stop: Callable[[bool], None] = lambda _clean: None
        self._node: Node | None = None
        self._failed: BaseException | None = None

    # -- what a test uses ------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        """The node itself; only its own thread may use what is not a lever."""
        assert self._node is not None, "the node is not running"
        return self._node

    @property
    def faults(self) -> Faults:
        """The levers, from any thread."""
        assert self.node.faults is not None
        return self.node.faults

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        return self.node.port

    @property
    def connection_string(self) -> str:
        """Where clients connect."""
        return f"couchbase://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether it runs: not before the start, nor after a crash."""
        return self._thread is not None and self._thread.is_alive()

    def crash(self) -> None:
        """Play dead at once: what is not committed is lost."""
        self._end(clean=False)

    def stop(self) -> None:
        """Stop cleanly; idempotent."""
        self._end(clean=True)

    def restart(self) -> None:
        """Stop, unless it crashed, and start again with the same data on the same port."""
        port = self.port
        self.wait_crashed(0.0)
        self.stop()
        self._config = replace(self._config, port=port)
        self.start()

    def wait_crashed(self, timeout_seconds: float = 30.0) -> bool:
        """Whether the node has crashed within that time."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)
        return not self.is_running

    # -- running ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Run on a new thread; raises what kept the node from starting."""
        assert not self.is_running, "the node runs already"
        self._ready.clear()
        self._thread = threading.Thread(target=self._run, name="headrace-node", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS_MAX):
            raise TimeoutError(f"the node did not start in {START_SECONDS_MAX:.0f} s")
        self._raise_failure()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised again on the test's thread
            self._failed = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        ending: asyncio.Future[bool] = loop.create_future()

        def end(clean: bool) -> None:
            if not ending.done():
                ending.set_result(clean)

        self._stop = lambda clean: _soon(loop, lambda: end(clean))
        node = Node(self._config)
        node.crash = lambda: self._stop(False)
        await node.start()
        self._node = node
        self._ready.set()
        await node.stop(clean=await ending)

    def _end(self, *, clean: bool) -> None:
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        self._stop(clean)
        thread.join(STOP_SECONDS_MAX)
        if thread.is_alive():
            raise TimeoutError(f"the node did not stop in {STOP_SECONDS_MAX:.0f} s")
        self._raise_failure()

    def _raise_failure(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop closed meanwhile: it has stopped by itself
        loop.call_soon_threadsafe(function)


@contextmanager
def running_node(
    *,
    data: Path | None = None,
    vbuckets: int = 4,
    buckets: tuple[str, ...] = ("default",),
    scenario: str = "",
    settings: BucketSettings | None = None,
    config: NodeConfig | None = None,
) -> Iterator[RunningNode]:
    """A node that runs until the block ends; in memory unless ``data`` is a directory.

    ``scenario``: lines of faults (docs/guide/faults.md). ``settings`` are those of each bucket;
    ``config`` replaces everything but the scenario.
    """
    if config is None:
        chosen = settings if settings is not None else BucketSettings(vbuckets=vbuckets)
        config = NodeConfig(
            data=data,
            buckets=tuple(BucketConfig(name=name, settings=chosen) for name in buckets),
        )
    running = RunningNode(replace(config, faults=True, scenario=read_scenario(scenario)))
    running.start()
    try:
        yield running
    finally:
        running.stop()
