"""What a replica asks of its producer, per dialect, and how it takes the answers."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from headrace.node.replica_talk import STEPS, Talk, Terms
from headrace.wire.admin import GetErrorMap
from headrace.wire.dialect import Dialect
from headrace.wire.messages import Control

if TYPE_CHECKING:
    from headrace.wire.message import Request


def make(dialect: Dialect = Dialect.DCP_7, *, name: str = "b", collections: bool = True) -> Talk:
    numbers = count(1)
    terms = Terms(dialect=dialect, collections=collections, consumer_name=name)
    return Talk(terms, lambda: next(numbers))


def words(requests: list[Request]) -> list[str]:
    return [one.key.decode() if isinstance(one, Control) else "error map" for one in requests]


def whole(talk: Talk, *, accepted: bool = True) -> list[Request]:
    """Everything it asks when each question is answered in turn."""
    said = waiting = list(talk.begin())
    while waiting:
        following = talk.answered(waiting[0].opaque, accepted=accepted)
        assert following is not None
        more = list(following)
        said, waiting = said + more, waiting[1:] + more
    assert talk.is_done
    return said


def test_the_pauses_of_released_nodes() -> None:
    talk = make()
    assert not talk.has_begun
    first = list(talk.begin())
    assert words(first) == ["connection_buffer_size", "error map"]
    assert isinstance(first[1], GetErrorMap)
    assert list(talk.answered(first[0].opaque, accepted=True) or ()) == [], "the map is awaited"
    second = list(talk.answered(first[1].opaque, accepted=False) or ())
    assert words(second)[0] == "enable_noop"
    assert words(second)[-1] == "enable_sync_writes"
    third = list(talk.answered(second[-1].opaque, accepted=True) or ())
    assert words(third)[:2] == ["consumer_name", "include_deleted_user_xattrs"]
    before = talk.is_done
    for one in (*second[:-1], *third):
        assert list(talk.answered(one.opaque, accepted=True) or ()) == []
    assert (before, talk.is_done) == (False, True)
    assert talk.replicates_sync_writes


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        (Dialect.UPR_DRAFT, []),
        (Dialect.UPR_2014, ["connection_buffer_size", "enable_noop", "set_noop_interval"]),
        (
            Dialect.DCP_3,
            [
                "connection_buffer_size",
                "enable_noop",
                "set_noop_interval",
                "set_priority",
                "enable_ext_metadata",
                "supports_cursor_dropping",
            ],
        ),
    ],
)
def test_an_older_peer_is_asked_only_what_its_dialect_has(
    dialect: Dialect, expected: list[str]
) -> None:
    assert words(whole(make(dialect))) == expected


def test_refusals_are_answers() -> None:
    talk = make()
    said = whole(talk, accepted=False)
    assert len(said) == len([step for step in STEPS if Dialect.DCP_7 in step.dialects])
    assert talk.granted == set()
    assert not talk.replicates_sync_writes


def test_a_nameless_consumer_leaves_sync_writes_out() -> None:
    said = words(whole(make(name="", collections=False)))
    assert not {"enable_sync_writes", "consumer_name", "max_marker_version"} & set(said)


def test_an_answer_to_nothing_is_no_answer() -> None:
    assert make().answered(99, accepted=True) is None
