"""Who waits for which seqno."""

from __future__ import annotations

from headrace.store.waiting import Waiting


def test_callbacks_are_taken_in_the_order_of_their_seqnos() -> None:
    waiting, heard = Waiting(), list[str]()
    for seqno, name in ((3, "c"), (1, "a"), (3, "d"), (2, "b"), (9, "z")):
        waiting.add(seqno, lambda _ok, name=name: heard.append(name))  # type: ignore[misc]
    assert len(waiting) == 5
    for callback in waiting.up_to(3):
        callback(True)
    assert heard == ["a", "b", "c", "d"]
    assert waiting.up_to(8) == []
    assert len(waiting) == 1


def test_those_above_a_seqno_are_taken_and_the_others_wait_on() -> None:
    waiting, heard = Waiting(), list[tuple[int, bool]]()
    for seqno in (5, 1, 4, 2, 3):
        waiting.add(seqno, lambda ok, seqno=seqno: heard.append((seqno, ok)))  # type: ignore[misc]
    for callback in waiting.above(3):
        callback(False)
    assert sorted(heard) == [(4, False), (5, False)]
    assert len(waiting.up_to(3)) == 3
