"""Changes reach exactly those who watch the vbucket."""

from __future__ import annotations

from headrace.node.feed import Feed


class Ear:
    def __init__(self) -> None:
        self.heard: list[int] = []

    def vbucket_changed(self, vbucket: int) -> None:
        self.heard.append(vbucket)


def test_a_watcher_hears_of_its_vbuckets_only() -> None:
    feed, one, two = Feed(), Ear(), Ear()
    feed.watch(1, one)
    feed.watch(1, two)
    feed.watch(2, two)
    feed.tell(1)
    feed.tell(2)
    feed.tell(3)
    assert (one.heard, two.heard) == ([1], [1, 2])


def test_watching_twice_is_watching_once() -> None:
    feed, ear = Feed(), Ear()
    feed.watch(1, ear)
    feed.watch(1, ear)
    feed.tell(1)
    assert ear.heard == [1]
    assert feed.watchers(1) == 1


def test_who_stopped_watching_hears_nothing() -> None:
    feed, ear = Feed(), Ear()
    feed.watch(1, ear)
    feed.unwatch(1, ear)
    feed.unwatch(1, ear)
    feed.tell(1)
    assert ear.heard == []
    assert feed.watchers(1) == 0


def test_everyone_can_be_told_at_once() -> None:
    feed, ear = Feed(), Ear()
    for vbucket in (3, 5):
        feed.watch(vbucket, ear)
    feed.tell_all()
    assert sorted(ear.heard) == [3, 5]


def test_a_watcher_may_leave_while_it_is_told() -> None:
    feed = Feed()

    class Leaver(Ear):
        def vbucket_changed(self, vbucket: int) -> None:
            super().vbucket_changed(vbucket)
            feed.unwatch(vbucket, self)

    leaver, stayer = Leaver(), Ear()
    feed.watch(1, leaver)
    feed.watch(1, stayer)
    feed.tell(1)
    feed.tell(1)
    assert (leaver.heard, stayer.heard) == ([1], [1, 1])
