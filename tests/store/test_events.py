"""Which system event makes which other superfluous."""

from __future__ import annotations

from headrace.store.events import Events
from headrace.wire.opcodes import SystemEventId

BEGIN, END = SystemEventId.BEGIN_COLLECTION, SystemEventId.END_COLLECTION
MODIFY = SystemEventId.MODIFY_COLLECTION
CREATE_SCOPE, DROP_SCOPE = SystemEventId.CREATE_SCOPE, SystemEventId.DROP_SCOPE


def superseded(*happened: tuple[int, int]) -> list[tuple[int, int]]:
    """(old seqno, new seqno) pairs after events on subjects at seqnos 1, 2, 3..."""
    pairs: list[tuple[int, int]] = []
    events = Events(lambda old, _ordinal, new: pairs.append((old, new)))
    for seqno, (event, subject) in enumerate(happened, 1):
        events.happened(event, subject, seqno, 0)
    return pairs


def test_an_end_supersedes_the_beginning_and_all_modifications() -> None:
    assert superseded((BEGIN, 8), (MODIFY, 8), (END, 8)) == [(1, 3), (2, 3)]


def test_a_modification_leaves_the_beginning() -> None:
    assert superseded((BEGIN, 8), (MODIFY, 8), (MODIFY, 8)) == [(2, 3)]


def test_a_new_beginning_supersedes_the_end() -> None:
    assert superseded((BEGIN, 8), (END, 8), (BEGIN, 8)) == [(1, 2), (2, 3)]


def test_scopes_and_collections_with_one_number_are_strangers() -> None:
    assert superseded((BEGIN, 8), (CREATE_SCOPE, 8), (DROP_SCOPE, 8), (BEGIN, 9)) == [(2, 3)]


def test_clearing_forgets() -> None:
    events = Events(lambda *_: (_ for _ in ()).throw(AssertionError))
    events.happened(BEGIN, 8, 1, 0)
    events.clear()
    events.happened(END, 8, 2, 0)
