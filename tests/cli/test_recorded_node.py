"""Captured conversations of real servers, played back into the consumer.

For every connection that streamed, the consumer starts where the recorded client started and must
end where the index of the captures says: the same seqnos, and a token inside or at the end of the
last marker that had items.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.cli.recorded_node import RecordedNode, Recording, read_recording
from headrace.client.bucket import connect
from headrace.client.changes import Change
from headrace.client.tokens import TokenSet
from headrace.errors import CaptureError
from headrace.history import Boundaries, BranchId, ResumeToken, Seqno, SnapshotRange
from headrace.protocol.talk import Position
from headrace.wire.dialect import Dialect

if TYPE_CHECKING:
    from collections.abc import Callable

CAPTURES: Final = Path(__file__).resolve().parent.parent / "captures"
INDEX: Final = [
    json.loads(line) for line in (CAPTURES / "index.jsonl").read_text(encoding="utf-8").splitlines()
]
LEFT_OUT: Final = {
    "14_stream_id_665.pcap": "two streams of one vbucket on one connection, told apart by ids",
    "17": "replication: two servers, with messages a client never gets",
}


def spread(ranges: list[str]) -> list[int]:
    """["2-4", "9"] -> [2, 3, 4, 9]."""
    found: list[int] = []
    for one in ranges:
        first, _, last = one.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def cases() -> list[Any]:
    found = []
    for entry in INDEX:
        if any(entry["file"].startswith(name) for name in LEFT_OUT):
            continue
        for number, connection in enumerate(entry["connections"], 1):
            answers = {one["opaque"]: one for one in connection.get("stream_answers", ())}
            accepted = [
                one
                for one in connection.get("stream_reqs", ())
                if answers.get(one["opaque"], {}).get("status") == "0x0"
            ]
            streamed = {
                int(v) for v, one in connection.get("vbuckets", {}).items() if one.get("seqnos")
            }
            once = {one["vb"] for one in accepted}
            # A vbucket that was streamed twice on one connection has one line in the index.
            if streamed and len(once) == len(accepted) and streamed <= once:
                found.append(
                    pytest.param(entry, number, connection, id=f"{entry['file']}-{number}")
                )
    return found


def start_of(connection: dict[str, Any], vbuckets: int) -> TokenSet:
    """The positions the recorded client asked for and got."""
    answers = {one["opaque"]: one["status"] for one in connection["stream_answers"]}
    positions = {}
    for one in connection["stream_reqs"]:
        if answers.get(one["opaque"]) == "0x0":
            snapshot = SnapshotRange(Seqno(one["snap"][0]), Seqno(one["snap"][1]))
            branch = BranchId(int(one["uuid"], 16))
            token = ResumeToken(branch, Seqno(one["start"]), snapshot)
            positions[one["vb"]] = Position(token, Boundaries())
    return TokenSet(bucket="default", vbuckets=vbuckets, positions=positions)


def drained(recording: Recording, tokens: TokenSet, expected: dict[int, list[int]]) -> TokenSet:
    """Follow until every expected change has come; the changes are checked on the way."""
    left = {vbucket: list(seqnos) for vbucket, seqnos in expected.items()}
    with (
        RecordedNode(recording) as node,
        connect(f"couchbase://127.0.0.1:{node.port}/default") as bucket,
        bucket.follow(tokens, vbuckets=list(tokens.positions)) as follow,
    ):
        while any(left.values()):
            change = next(follow)
            assert isinstance(change, Change)
            assert change.seqno == left[change.vbucket].pop(0), f"vbucket {change.vbucket}"
        return follow.tokens


def drained_in_bulk(
    recording: Recording, tokens: TokenSet, expected: dict[int, list[int]]
) -> TokenSet:
    """The same through the bulk road."""
    found: dict[int, list[int]] = {}
    with (
        RecordedNode(recording) as node,
        connect(f"couchbase://127.0.0.1:{node.port}/default") as bucket,
        bucket.changes(since=tokens, vbuckets=list(tokens.positions), whole=False) as changes,
    ):
        while sum(map(len, found.values())) < sum(map(len, expected.values())):
            batch = next(changes)
            for vbucket, seqno in zip(
                batch.column("vbucket").to_pylist(), batch.column("seqno").to_pylist(), strict=True
            ):
                found.setdefault(vbucket, []).append(seqno)
        assert found == {vbucket: seqnos for vbucket, seqnos in expected.items() if seqnos}
        return changes.tokens


@pytest.mark.parametrize("drain", [drained, drained_in_bulk])
@pytest.mark.parametrize(("entry", "number", "connection"), cases())
def test_a_capture_ends_in_the_state_its_index_describes(
    entry: dict[str, Any],
    number: int,
    connection: dict[str, Any],
    drain: Callable[[Recording, TokenSet, dict[int, list[int]]], TokenSet],
) -> None:
    dialect = Dialect.DCP_5 if "6.0.5" in entry["server"] else Dialect.DCP_7
    recording = read_recording(str(CAPTURES / entry["file"]), dialect, connection=number)
    expected = {
        int(vbucket): spread(one.get("seqnos", []))
        for vbucket, one in connection["vbuckets"].items()
    }
    tokens = drain(recording, start_of(connection, recording.vbuckets), expected)
    logs = {one["opaque"]: one.get("failover_log") for one in connection["stream_answers"]}
    for one in connection["stream_reqs"]:
        vbucket = one["vb"]
        if not expected.get(vbucket) or not logs.get(one["opaque"]):
            continue
        token = tokens.token(vbucket)
        assert token.seqno == expected[vbucket][-1]
        newest = logs[one["opaque"]][0].partition("@")[0]
        assert f"{token.branch:016x}" == newest
        # Long lists of markers are shortened in the middle: "... 16 in all ...".
        markers = connection["vbuckets"][str(vbucket)]["markers"]
        ends = [int(m.split()[1].partition("-")[2]) for m in markers if m.startswith("v")]
        assert token.is_boundary == (token.seqno in ends)


def test_most_captures_are_played() -> None:
    assert len({case.values[0]["file"] for case in cases()}) >= 30


def test_a_capture_without_a_stream_is_refused() -> None:
    with pytest.raises(CaptureError, match="holds no stream request"):
        read_recording(str(CAPTURES / "20_sdk_bootstrap_665.pcap"), Dialect.DCP_7)
