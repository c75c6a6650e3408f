"""Where a stream that does not start at the beginning starts: now, a time, or kept tokens.

A token file is one that the client keeps (`headrace.client.tokens.TokenFile`). A time means the
first change at or after it; no server has an index of times, so all keys are read once.

Imports: client, errors, history, spark.client_feed, spark.feed, spark.options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.history import ResumeToken, VBucketId
from headrace.spark.options import start_time

if TYPE_CHECKING:
    from headrace.spark.feed import Feed


def start_tokens(feed: Feed, start: str) -> dict[VBucketId, ResumeToken]:
    """The token of every vbucket at the start; ConfigError if the file is not for this bucket."""
    if start == "now":
        return tokens_now(feed)
    if (time := start_time(start)) is not None:
        from headrace.client.plan import tokens_at_time
        from headrace.spark.client_feed import ClientFeed

        if not isinstance(feed, ClientFeed):
            raise ConfigError(f"option start is {start!r}, this source has no times")
        found = tokens_at_time(feed.bucket, time, tuple(feed.vbuckets()))
        return {vb: found.token(vb) for vb in feed.vbuckets()}
    from headrace.client.tokens import TokenFile

    kept = TokenFile(start).load()
    if kept is None or kept.vbuckets != len(feed.vbuckets()):
        raise ConfigError(f"option start names {start}, which holds no tokens of this bucket")
    return {vb: kept.token(vb) for vb in feed.vbuckets()}


def tokens_now(feed: Feed) -> dict[VBucketId, ResumeToken]:
    """Where a reader that holds everything there is now would stand."""
    logs = feed.failover_logs(feed.vbuckets())
    return {
        vb: ResumeToken.at_boundary(logs[vb].newest.uuid, seqno, logs[vb])
        for vb, seqno in feed.high_seqnos().items()
        if vb in logs
    }
