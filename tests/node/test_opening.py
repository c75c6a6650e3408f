"""OPEN: every flag, every combination that is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.node.opening import NAME_SIZE_MAX, OpenOptions, read_open
from headrace.protocol.decision import Refused
from headrace.wire.dialect import Dialect
from headrace.wire.messages import Open
from headrace.wire.opcodes import Datatype, OpenFlag, Status


def opened(
    flags: int,
    *,
    dialect: Dialect = Dialect.DCP_7,
    collections: bool = False,
    key: bytes = b"app:1",
    value: bytes = b"",
    datatype: int = 0,
) -> OpenOptions | Refused:
    message = Open(flags=flags, key=key, value=value, datatype=datatype)
    return read_open(message, dialect=dialect, collections=collections)


ACCEPTED = {
    "plain": (0x01, {}),
    "xattrs": (0x05, {"xattrs": True}),
    "no value": (0x09, {"values": False}),
    "no value but xattrs": (0x0D, {"values": False, "xattrs": True}),
    "delete times": (0x21, {"delete_times": True}),
    "keep datatype": (0x41, {"values": False, "keep_datatype": True}),
    "deleted user xattrs": (0x105, {"xattrs": True, "deleted_user_xattrs": True}),
}


@pytest.mark.parametrize("case", ACCEPTED.values(), ids=ACCEPTED)
def test_a_flag_says_what_streams_carry(case: tuple[int, dict[str, bool]]) -> None:
    flags, said = case
    expected = replace(OpenOptions(name="app:1", producer=True, flags=flags), **said)  # type: ignore[arg-type]
    assert opened(flags) == expected


REFUSED = {
    "notifier": 0x03,
    "collections prototype": 0x11,
    "point-in-time recovery": 0x81,
    "no value twice": 0x49,
    "deleted user xattrs alone": 0x101,
    "skip deletes without collections": 0x201,
    "a bit nobody knows": 0x401,
}


@pytest.mark.parametrize("flags", REFUSED.values(), ids=REFUSED)
def test_a_wrong_flag_is_refused(flags: int) -> None:
    answer = opened(flags)
    assert isinstance(answer, Refused)
    assert answer.status is Status.EINVAL


def test_skipping_deletes_needs_collections_and_a_producer() -> None:
    allowed = opened(0x201, collections=True)
    assert isinstance(allowed, OpenOptions)
    assert allowed.skip_deletes
    assert isinstance(opened(0x200, collections=True), Refused)


@pytest.mark.parametrize("size", [0, NAME_SIZE_MAX + 1])
def test_a_name_must_have_a_size(size: int) -> None:
    assert isinstance(opened(1, key=b"n" * size), Refused)


@pytest.mark.parametrize("size", [1, 200, 201, NAME_SIZE_MAX])
def test_a_long_name_is_a_name(size: int) -> None:
    assert isinstance(opened(1, key=b"n" * size), OpenOptions)


@pytest.mark.parametrize("dialect", [Dialect.UPR_DRAFT, Dialect.UPR_2014, Dialect.DCP_3])
def test_older_dialects_know_the_producer_flag_alone(dialect: Dialect) -> None:
    assert isinstance(opened(OpenFlag.PRODUCER, dialect=dialect), OpenOptions)
    assert isinstance(opened(0x05, dialect=dialect), Refused)


def test_a_consumer_may_tell_its_name() -> None:
    answer = opened(0, value=b'{"consumer_name":"node-b"}', datatype=Datatype.JSON)
    assert answer == OpenOptions(name="app:1", producer=False, consumer_name="node-b")


VALUES = {
    "for a producer": (1, b'{"consumer_name":"b"}', Datatype.JSON),
    "without the datatype": (0, b'{"consumer_name":"b"}', Datatype.RAW),
    "not JSON": (0, b"{", Datatype.JSON),
    "not an object": (0, b"[]", Datatype.JSON),
    "deep": (0, b"[" * 100_000, Datatype.JSON),
    "another key": (0, b'{"consumer_name":"b","x":1}', Datatype.JSON),
    "a number": (0, b'{"consumer_name":1}', Datatype.JSON),
    "an empty name": (0, b'{"consumer_name":""}', Datatype.JSON),
}


@pytest.mark.parametrize("case", VALUES.values(), ids=VALUES)
def test_a_wrong_value_is_refused(case: tuple[int, bytes, int]) -> None:
    flags, value, datatype = case
    assert isinstance(opened(flags, value=value, datatype=datatype), Refused)
