"""The hub: looks, differences, watchers."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import ConnectionLost
from headrace.web import hub as module
from headrace.web.hub import HISTORY_SECONDS, Hub, TooMany
from tests.web.pictures import picture

WAIT_SECONDS = 5.0

if TYPE_CHECKING:
    from headrace.web.picture import Json, Picture


class Scripted:
    """A source that shows the pictures it was given, and then the last one."""

    kind = "node"
    title = "a script"

    def __init__(self, *pictures: Picture | Exception) -> None:
        self._waiting = deque(pictures)
        self.looks = 0

    def buckets(self) -> list[str]:
        return ["default"]

    async def look(self, bucket: str) -> Picture:
        assert bucket == "default"
        self.looks += 1
        shown = self._waiting[0]
        if len(self._waiting) > 1:
            self._waiting.popleft()
        if isinstance(shown, Exception):
            raise shown
        return shown

    async def vbucket(self, bucket: str, vbucket: int) -> Json:
        raise NotImplementedError

    async def connection(self, bucket: str, key: str) -> Json:
        raise NotImplementedError


def read(message: bytes) -> tuple[str, Any]:
    """Name and content of an event."""
    name, data = message.decode().rstrip("\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def hub_of(*pictures: Picture | Exception) -> Hub:
    return Hub(Scripted(*pictures), "default")


def test_who_follows_gets_differences_and_who_missed_one_the_whole() -> None:
    async def main() -> None:
        hub = hub_of(*(picture(0.5 * n, highs=(n, 0, 0, 0)) for n in range(6)))
        await hub.look()
        quick, slow = hub.watch(), hub.watch()
        assert (await anext(quick)).startswith(b"retry: ")
        await anext(slow)
        name, state = read(await anext(quick))
        assert (name, state["columns"]["high"]["all"]) == ("state", [0, 0, 0, 0])
        assert read(await anext(slow))[0] == "state"
        await hub.look()
        name, change = read(await anext(quick))
        assert (name, change["columns"]) == ("change", {"high": {"at": [0], "to": [1]}})
        assert change["version"] == state["version"] + 1
        await hub.look()
        await anext(quick)
        # The slow one comes back after two looks: nothing was queued for it.
        name, late = read(await anext(slow))
        assert (name, late["columns"]["high"]["all"]) == ("state", [2, 0, 0, 0])
        await quick.aclose()
        await slow.aclose()

    asyncio.run(main())


def test_a_watcher_waits_until_there_is_something() -> None:
    async def main() -> None:
        hub = hub_of(picture())
        watching = hub.watch()
        await anext(watching)
        first = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        assert not first.done()
        await hub.look()
        assert read(await first)[0] == "state"
        await watching.aclose()

    asyncio.run(main())


def test_a_lost_source_is_a_sentence_and_comes_back_whole() -> None:
    async def main() -> None:
        gone = ConnectionLost("the node closed the connection")
        hub = hub_of(picture(highs=(1,)), gone, gone, picture(2.0, highs=(7,)))
        watching = hub.watch()
        await anext(watching)
        await hub.look()
        assert read(await anext(watching))[0] == "state"
        await hub.look()
        assert read(await anext(watching)) == (
            "lost",
            {"error": "the node closed the connection", "version": 2},
        )
        await hub.look()
        await anext(watching)
        await hub.look()
        name, state = read(await anext(watching))
        assert (name, state["columns"]["high"]["all"]) == ("state", [7])
        assert [one["kind"] for one in state["happenings"]] == ["lost", "found"]
        await watching.aclose()

    asyncio.run(main())


def test_a_source_that_was_never_seen_is_lost_to_a_newcomer() -> None:
    async def main() -> None:
        hub = hub_of(ConnectionLost("nobody is there"))
        await hub.look()
        watching = hub.watch()
        await anext(watching)
        assert read(await anext(watching))[0] == "lost"
        await watching.aclose()

    asyncio.run(main())


def test_a_failover_is_in_the_next_change() -> None:
    async def main() -> None:
        new = picture(0.5, highs=(4,), branches=("bb",), began=(4,))
        hub = hub_of(picture(highs=(9,)), new)
        await hub.look()
        watching = hub.watch()
        await anext(watching)
        await anext(watching)
        hub.note("lever", "somebody did it", 0)
        await hub.look()
        _, change = read(await anext(watching))
        assert [one["kind"] for one in change["happenings"]] == ["lever", "failover"]
        assert change["columns"]["branch"] == {"all": ["bb"]}
        await watching.aclose()

    asyncio.run(main())


def test_the_history_is_sampled_once_a_second_and_bounded() -> None:
    async def main() -> None:
        shown = [picture(0.5 * n, highs=(100 * n,)) for n in range(2 * HISTORY_SECONDS + 50)]
        hub = hub_of(*shown)
        for _ in shown:
            await hub.look()
        history = read(hub.whole())[1]["history"]
        assert len(history) == HISTORY_SECONDS
        assert {sample[1] for sample in history} == {200.0}
        assert history[1][0] - history[0][0] == 1.0

    asyncio.run(main())


def test_too_many_watchers_are_refused_and_leaving_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        hub = hub_of(picture())
        one = hub.watch()
        await anext(one)
        with pytest.raises(TooMany):
            await anext(hub.watch())
        await one.aclose()
        two = hub.watch()
        await anext(two)
        await two.aclose()

    monkeypatch.setattr(module, "WATCHERS_MAX", 1)
    asyncio.run(main())


@pytest.mark.parametrize("turns", range(6))
def test_it_can_be_ended_in_the_moment_it_is_poked(turns: int) -> None:
    """A cancellation that meets the end of a wait must not be swallowed."""

    async def main() -> None:
        hub = hub_of(picture())
        running = asyncio.ensure_future(hub.run())
        while not hub.looks:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        hub.poke()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=WAIT_SECONDS)
        assert running in done
        assert running.cancelled()

    asyncio.run(main())


def test_running_looks_again_when_it_is_poked_and_ends_its_watchers() -> None:
    async def main() -> None:
        hub = hub_of(picture())
        source = hub.source
        assert isinstance(source, Scripted)
        running = asyncio.ensure_future(hub.run())
        watching = hub.watch()
        await anext(watching)
        await anext(watching)
        seen = source.looks
        hub.poke()
        await anext(watching)
        assert source.looks > seen
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        with pytest.raises(StopAsyncIteration):
            await anext(watching)

    asyncio.run(main())
