"""From options to a reader: starts, ends, filters and what is asked of the producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.client.changes import Kind, Trouble
from headrace.client.plan import log_trouble, split_options
from headrace.client.tokens import TokenSet
from headrace.errors import ConfigError
from headrace.history import Boundaries, BranchId, ResumeToken, Seqno
from headrace.protocol.talk import Position
from headrace.wire.opcodes import StreamFlag
from tests.client.producer import Producer, Step, accept, end, marker, mutations, said

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.wire import messages as m


def script(request: m.StreamRequest, _: int) -> Iterator[Step]:
    last = min(request.end_seqno, 9)
    first = request.start_seqno + 1
    yield from said(accept(), marker(first, last), *mutations(first, last), end())


def test_texts_and_lists_become_what_the_options_want() -> None:
    options, wanted = split_options(
        {"collections": "beer", "vbuckets": [3, 1], "key_prefix": "a", "kinds": ["mutation"]}
    )
    assert (options.collections, options.vbuckets) == (("beer",), (3, 1))
    assert (wanted.key_prefix, wanted.kinds) == (b"a", frozenset({Kind.MUTATION}))
    with pytest.raises(ConfigError, match="option 'x' is unknown"):
        split_options({"x": 1})


def test_collections_are_asked_for_by_id_and_an_end_by_seqno() -> None:
    with Producer(script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        list(bucket.changes(collections=["beer", "shop.orders"], until="now"))
        (request,) = producer.requests
        assert request.value == b'{"uid":"2","collections":["8","a"]}'
        assert request.end_seqno == 9
        assert request.flags == StreamFlag.ACTIVE_ONLY
        list(bucket.changes(scope="shop", until="now", ignore_purged=True, active_only=False))
        assert producer.requests[-1].value == b'{"uid":"2","scope":"9"}'
        assert producer.requests[-1].flags == StreamFlag.IGNORE_PURGED_TOMBSTONES


def test_tokens_are_an_end_too() -> None:
    place = Position(ResumeToken.at_boundary(BranchId(1), Seqno(4)), Boundaries())
    until = TokenSet(bucket="default", vbuckets=1, positions={0: place})
    with Producer(script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        reader = bucket.changes(until=until)
        assert sum(batch.num_rows for batch in reader) == 4
        assert reader.tokens.seqno(0) == 4


def test_tokens_of_another_bucket_are_refused() -> None:
    with Producer(script, seqnos={0: 9}) as producer, producer.connect() as bucket:
        other = TokenSet(bucket="other", vbuckets=1)
        with pytest.raises(ConfigError, match="tokens of bucket 'other' used on bucket 'default'"):
            next(bucket.changes(since=other, until="now"))


def test_a_trouble_that_nobody_listens_to_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    log_trouble(Trouble(vbuckets=(1,), reason="so", attempts=1, retry_seconds=None))
    assert "vbucket 1: so (attempt 1)" in caplog.text
