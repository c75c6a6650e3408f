"""What Python and the kernel share: numbers at places."""

from __future__ import annotations

from headrace.columns.block import PRESENCES
from headrace.columns.table import STREAM_NUMBERS, Context, Stream, named_place, stream_name


def test_no_two_numbers_share_a_place() -> None:
    assert len(set(Context)) == len(Context.__members__)
    assert len(set(Stream)) == len(Stream.__members__)
    assert max(Stream) < STREAM_NUMBERS


def test_the_nulls_of_all_groups_come_last() -> None:
    assert max(Context) == Context.FIRST_NULLS
    assert len(PRESENCES) == 11


def test_what_every_row_touches_of_a_stream_is_one_cache_line() -> None:
    hot = (Stream.START, Stream.END, Stream.FLAGS, Stream.PRESENCE, Stream.SEQNO, Stream.COUNTED)
    assert max(hot) < 8


def test_names_of_streams_are_different_and_never_free() -> None:
    names = {stream_name(vbucket, id_) for vbucket in (0, 1, 65535) for id_ in (0, 1, 65535)}
    assert len(names) == 9
    assert 0 not in names


def test_neighbouring_streams_are_spread_over_the_table() -> None:
    places = {named_place(stream_name(vbucket, 1), 1024) for vbucket in range(512)}
    assert all(0 <= place < 1024 for place in places)
    assert len(places) > 300
