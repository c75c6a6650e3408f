"""Every control: what it takes, what it needs, what it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.node.controls import (
    CONTROLS,
    BackfillOrder,
    Controls,
    OutOfOrder,
    Priority,
    Setting,
    apply_control,
)
from headrace.node.opening import OpenOptions
from headrace.protocol.decision import Refused
from headrace.wire.dialect import Dialect
from headrace.wire.opcodes import Feature, Status

OPTIONS = OpenOptions(name="app", producer=True)
EVERYTHING = Setting(
    text="",
    before=Controls(),
    options=replace(OPTIONS, deleted_user_xattrs=True, xattrs=True),
    features=frozenset({Feature.SNAPPY, Feature.COLLECTIONS}),
    collections=True,
    keeps_history=True,
)
NOTHING = Setting(
    text="",
    before=Controls(),
    options=OPTIONS,
    features=frozenset(),
    collections=False,
    keeps_history=False,
)


def set_to(
    key: str, text: str, setting: Setting = EVERYTHING, dialect: Dialect = Dialect.DCP_7
) -> Controls | Refused:
    return apply_control(key.encode(), replace(setting, text=text), dialect)


GOOD = [
    ("enable_noop", "true", {"noop": True}),
    ("enable_noop", "false", {}),
    ("set_noop_interval", "1", {"noop_interval_seconds": 1.0}),
    ("set_noop_interval", "0.1", {"noop_interval_seconds": 0.1}),
    ("connection_buffer_size", "4294967295", {"window": 2**32 - 1}),
    ("connection_buffer_size", "0", {}),
    ("set_priority", "high", {"priority": Priority.HIGH}),
    ("supports_cursor_dropping", "false", {"cursor_dropping": False}),
    ("supports_cursor_dropping_vulcan", "false", {"cursor_dropping": False}),
    ("send_stream_end_on_client_close_stream", "true", {"end_on_close": True}),
    ("enable_expiry_opcode", "true", {"expiry_opcode": True}),
    ("force_value_compression", "true", {"force_compression": True}),
    ("supports_hifi_MFU", "true", {"hifi_mfu": True}),
    ("backfill_order", "sequential", {"backfill_order": BackfillOrder.SEQUENTIAL}),
    ("enable_stream_id", "true", {"stream_ids": True}),
    ("enable_out_of_order_snapshots", "true", {"out_of_order": OutOfOrder.YES}),
    (
        "enable_out_of_order_snapshots",
        "true_with_seqno_advanced",
        {"out_of_order": OutOfOrder.WITH_SEQNO_ADVANCED},
    ),
    ("enable_sync_writes", "true", {"sync_writes": True}),
    ("consumer_name", "node-b", {"consumer_name": "node-b"}),
    ("include_deleted_user_xattrs", "true", {}),
    ("v7_dcp_status_codes", "true", {"v7_status_codes": True}),
    ("flatbuffers_system_events", "true", {"flatbuffers_events": True}),
    ("change_streams", "true", {"change_streams": True}),
    ("max_marker_version", "2.2", {"purge_in_markers": True}),
    ("max_marker_version", "2.0", {}),
]


@pytest.mark.parametrize(("key", "text", "changed"), GOOD)
def test_a_control_changes_one_thing(key: str, text: str, changed: dict[str, object]) -> None:
    assert set_to(key, text) == replace(Controls(), **changed)  # type: ignore[arg-type]


BAD = [
    ("no_such_control", "true"),
    ("conn", "400"),
    ("enable_noop", "maybe"),
    ("set_noop_interval", "soon"),
    ("set_noop_interval", "0"),
    ("set_noop_interval", "0.05"),
    ("set_noop_interval", "-1"),
    ("set_noop_interval", "1e3"),
    ("connection_buffer_size", "4294967296"),
    ("connection_buffer_size", "-1"),
    ("connection_buffer_size", ""),
    ("set_priority", "urgent"),
    ("send_stream_end_on_client_close_stream", "false"),
    ("enable_stream_id", "false"),
    ("enable_sync_writes", "false"),
    ("enable_out_of_order_snapshots", "false"),
    ("backfill_order", "random"),
    ("consumer_name", ""),
    ("consumer_name", "n" * 251),
    ("max_marker_version", "2.1"),
    ("change_streams", "false"),
    ("enable_ext_metadata", "true"),
]


@pytest.mark.parametrize(("key", "text"), BAD)
def test_a_wrong_value_or_key_is_invalid(key: str, text: str) -> None:
    answer = set_to(key, text)
    assert isinstance(answer, Refused)
    assert answer.status is Status.EINVAL
    assert key in answer.reason


NEEDS = [
    ("force_value_compression", "true", Status.EINVAL),
    ("include_deleted_user_xattrs", "true", Status.EINVAL),
    ("enable_stream_id", "true", Status.NOT_SUPPORTED),
    ("flatbuffers_system_events", "true", Status.NOT_SUPPORTED),
    ("change_streams", "true", Status.NOT_SUPPORTED),
    ("max_marker_version", "2.2", Status.NOT_SUPPORTED),
]


@pytest.mark.parametrize(("key", "text", "status"), NEEDS)
def test_a_control_needs_what_it_builds_on(key: str, text: str, status: Status) -> None:
    answer = set_to(key, text, NOTHING)
    assert isinstance(answer, Refused)
    assert answer.status is status


@pytest.mark.parametrize("key", ["stream_buffer_size", "cache_transfer"])
def test_what_is_known_and_not_here_is_not_supported(key: str) -> None:
    answer = set_to(key, "1")
    assert isinstance(answer, Refused)
    assert answer.status is Status.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("first", "second"),
    [("enable_stream_id", "enable_sync_writes"), ("enable_sync_writes", "enable_stream_id")],
)
def test_stream_ids_and_sync_writes_exclude_each_other(first: str, second: str) -> None:
    before = set_to(first, "true")
    assert isinstance(before, Controls)
    answer = set_to(second, "true", replace(EVERYTHING, before=before))
    assert isinstance(answer, Refused)
    assert answer.status is Status.NOT_SUPPORTED


def test_only_a_named_consumer_takes_part_in_sync_writes() -> None:
    assert not Controls(sync_writes=True).sync_replication
    assert Controls(sync_writes=True, consumer_name="b").sync_replication


def test_cursors_between_nodes_are_kept() -> None:
    assert Controls.for_name("app:1").cursor_dropping
    assert not Controls.for_name("replication:a->b:default").cursor_dropping


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_dialect_knows_the_controls_of_its_time(dialect: Dialect) -> None:
    for key, row in CONTROLS.items():
        answer = set_to(key, "true", dialect=dialect)
        unknown = isinstance(answer, Refused) and "is unknown in" in answer.reason
        assert unknown == (dialect not in row.dialects)
