"""Who hears of which vbucket: the road from a change in the store to the streams that send it.

One `Feed` per bucket. It is the bucket's one listener for changes and passes each call on to the
connections that watch the vbucket. A watcher only notes the number and wakes its owner; the work is
done later, on the owner's thread, by looking at the store.

Rules:

* `vbucket_changed` may be called from any thread and must not block: it reads one tuple that is
  replaced as a whole, never changed in place.
* Whoever changes a vbucket's state or history, deletes it, or changes the collections manifest
  calls `tell` (or `tell_all`) afterwards: streams look again and end where they must.
* A call too many costs a look; a call too few stalls a stream. When in doubt, tell.

Imports: nothing of ours at run time.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.store.bucket import Bucket


class Watcher(Protocol):
    """Something that wants to hear of vbuckets."""

    def vbucket_changed(self, vbucket: int) -> None:
        """Note that there may be something new in the vbucket; any thread, must not block."""


class Feed:
    """The watchers of one bucket's vbuckets."""

    __slots__ = ("_lock", "_watchers")

    def __init__(self, bucket: Bucket | None = None) -> None:
        """Become the listener of ``bucket``; with None the owner calls `tell` for every change."""
        self._lock = Lock()
        self._watchers: dict[int, tuple[Watcher, ...]] = {}
        if bucket is not None:
            bucket.on_change(self.tell)

    def watch(self, vbucket: int, watcher: Watcher) -> None:
        """Tell ``watcher`` of this vbucket from now on; twice is once."""
        with self._lock:
            there = self._watchers.get(vbucket, ())
            if not any(one is watcher for one in there):
                self._watchers[vbucket] = (*there, watcher)

    def unwatch(self, vbucket: int, watcher: Watcher) -> None:
        """Stop telling ``watcher`` of this vbucket; idempotent."""
        with self._lock:
            there = self._watchers.get(vbucket, ())
            left = tuple(one for one in there if one is not watcher)
            if left:
                self._watchers[vbucket] = left
            else:
                self._watchers.pop(vbucket, None)

    def tell(self, vbucket: int) -> None:
        """Pass on that the vbucket has changed: items, state, history or existence."""
        for watcher in self._watchers.get(vbucket, ()):
            watcher.vbucket_changed(vbucket)

    def tell_all(self) -> None:
        """Pass on that every vbucket may have changed: a flush, a new manifest."""
        for vbucket in tuple(self._watchers):
            self.tell(vbucket)

    def watchers(self, vbucket: int) -> int:
        """Number of watchers of a vbucket."""
        return len(self._watchers.get(vbucket, ()))
