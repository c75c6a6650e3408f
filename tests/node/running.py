"""A node on a thread of its own, for tests that are clients."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from headrace.node.config import BucketConfig, NodeConfig
from headrace.node.server import Node
from headrace.store import BucketSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

START_SECONDS = 30.0

SMALL = BucketConfig(settings=BucketSettings(vbuckets=4))
"""A bucket that starts fast."""


class RunningNode:
    """A started node and the loop it runs on."""

    def __init__(self, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self.node = node
        self._loop = loop

    @property
    def port(self) -> int:
        return self.node.port

    def call(self, function: Callable[[], object]) -> object:
        """Call on the node's own thread, as its commands are."""

        async def work() -> object:
            return function()

        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(START_SECONDS)


@contextmanager
def running(config: NodeConfig) -> Iterator[RunningNode]:
    """Run a node until the block ends."""
    started: list[RunningNode] = []
    failed: list[BaseException] = []
    ready = threading.Event()
    stop: list[Callable[[], object]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        stop.append(lambda: loop.call_soon_threadsafe(stopped.set))
        async with Node(config) as node:
            started.append(RunningNode(node, loop))
            ready.set()
            await stopped.wait()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="node-under-test")
    thread.start()
    assert ready.wait(START_SECONDS)
    try:
        if started:
            yield started[0]
    finally:
        if stop:
            with suppress(RuntimeError):  # the loop closed meanwhile: the node has failed
                stop[0]()
        thread.join(START_SECONDS)
    if failed:
        raise failed[0]
    assert not thread.is_alive()
