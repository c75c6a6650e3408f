"""Where a stream starts that does not start at the beginning."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from headrace.client.tokens import TokenFile
from headrace.errors import ConfigError
from headrace.spark.client_feed import ClientFactory
from headrace.spark.starts import start_tokens
from tests.spark.conftest import numbered, url_of, write
from tests.spark.producer import Producer, ScriptedFeed

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.testing import RunningNode


def test_now_is_where_every_vbucket_is(node: RunningNode) -> None:
    write(node, numbered(100))
    feed = ClientFactory(url_of(node))()
    tokens = start_tokens(feed, "now")
    assert {vb: token.seqno for vb, token in tokens.items()} == feed.high_seqnos()
    feed.close()


def test_a_token_file_is_where_its_reader_stood(tmp_path: Path, node: RunningNode) -> None:
    write(node, numbered(100))
    feed = ClientFactory(url_of(node))()
    TokenFile(tmp_path / "tokens").save(feed.bucket.tokens_now())
    before = feed.high_seqnos()
    write(node, numbered(50, version=1))
    tokens = start_tokens(feed, str(tmp_path / "tokens"))
    assert {vb: token.seqno for vb, token in tokens.items()} == before
    feed.close()


def test_a_time_in_the_future_is_now_and_one_long_past_is_the_beginning(node: RunningNode) -> None:
    write(node, numbered(60))
    feed = ClientFactory(url_of(node))()
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    tokens = start_tokens(feed, later)
    assert {vb: token.seqno for vb, token in tokens.items()} == feed.high_seqnos()
    assert {token.seqno for token in start_tokens(feed, "2001-01-01").values()} == {0}
    feed.close()


def test_tokens_of_another_bucket_are_refused(tmp_path: Path, node: RunningNode) -> None:
    feed = ClientFactory(url_of(node))()
    TokenFile(tmp_path / "tokens").save(feed.bucket.tokens_now())
    feed.close()
    with pytest.raises(ConfigError, match="no tokens of this bucket"):
        start_tokens(ScriptedFeed(Producer.with_vbuckets(3)), str(tmp_path / "tokens"))
    with pytest.raises(ConfigError, match="no times"):
        start_tokens(ScriptedFeed(Producer.with_vbuckets(3)), "2026-01-01")
