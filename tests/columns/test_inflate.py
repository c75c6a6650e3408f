"""Snappy values inflated in bulk, held against the plain road value by value."""

from __future__ import annotations

from random import Random

import pytest

from headrace.columns.inflate import GROWTH_MAX
from headrace.columns.scan import Scanner
from headrace.errors import RemoteProtocolError
from headrace.wire.values import VALUE_SIZE_MAX, deflate, inflate
from tests.columns.makers import frame, mutation

JSON, SNAPPY = 1, 2


def scanned(values: list[tuple[bytes, int]]) -> tuple[list[bytes], list[int], tuple[int, ...]]:
    data = b"".join(
        mutation(seqno, value=value, datatype=datatype)
        for seqno, (value, datatype) in enumerate(values, 1)
    )
    result = Scanner(inflate=True).scan(data)
    assert result.consumed == len(data)
    result.batch.validate(full=True)
    return (
        result.batch.column("value").to_pylist(),
        result.batch.column("datatype").to_pylist(),
        result.not_inflated,
    )


def test_only_what_says_snappy_is_inflated_and_the_bit_is_cleared() -> None:
    document = b'{"a": "b"}' * 20
    packed = deflate(document)
    values = [(packed, JSON | SNAPPY), (packed, JSON), (document, JSON), (packed, SNAPPY), (b"", 0)]
    found, datatypes, failed = scanned(values)
    assert found == [document, packed, document, document, b""]
    assert datatypes == [JSON, JSON, JSON, 0, 0]
    assert failed == ()


def test_other_columns_do_not_change() -> None:
    data = mutation(1, key=b"one", value=deflate(b"x" * 100), datatype=3) + frame(0x64, bytes(8))
    plain, inflated = Scanner().scan(data).batch, Scanner(inflate=True).scan(data).batch
    for name in plain.schema.names:
        if name not in ("value", "datatype"):
            assert plain.column(name).equals(inflated.column(name)), name
    assert inflated.schema.equals(plain.schema, check_metadata=True)


def test_a_batch_without_snappy_is_left_alone() -> None:
    data = mutation(1) * 3
    assert Scanner(inflate=True).scan(data).batch.equals(Scanner().scan(data).batch)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff" * 5,
        b"\x05\x00a",
        b"\x01\xf0\x00a",
        b"\x05\x10abc",
        b"\x04\x00a\x01\x00",
        b"\x05\x00a\x01\x00",
        b"\x05\x00a\x01\x02",
        b"\x04\x00a\x0d\x01",
        b"\x04\x00a\x03\x01\x00\x00",
        (VALUE_SIZE_MAX + 1).to_bytes(4, "little"),
        b"\x80\x80\x80\x80\x80\x00",
    ],
)
def test_a_value_that_does_not_inflate_stays_as_it_came(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        inflate(value)
    good = deflate(b"good")
    found, datatypes, failed = scanned([(good, SNAPPY), (value, SNAPPY), (good, SNAPPY)])
    assert found == [b"good", value, b"good"]
    assert datatypes == [0, SNAPPY, 0]
    assert failed == (1,)


def varint(number: int) -> bytes:
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def test_a_claim_beyond_the_limit_is_refused_and_one_at_the_limit_is_not() -> None:
    for size in (VALUE_SIZE_MAX, VALUE_SIZE_MAX + 1):
        packed = deflate(bytes(size))
        found, _, failed = scanned([(packed, SNAPPY)])
        assert failed == (() if size == VALUE_SIZE_MAX else (0,))
        assert len(found[0]) == (size if size == VALUE_SIZE_MAX else len(packed))


def test_a_claim_the_value_cannot_keep_gets_no_room() -> None:
    """Thousands of small values that each claim 20 MB must not be given gigabytes."""
    bomb = varint(20 << 20) + b"\x00a"
    found, _, failed = scanned([(bomb, SNAPPY)] * 2000)
    assert found == [bomb] * 2000
    assert failed == tuple(range(2000))


def test_nothing_inflates_to_more_than_the_growth_that_is_allowed() -> None:
    densest = deflate(bytes(1 << 20))
    assert (1 << 20) / len(densest) < GROWTH_MAX
    assert scanned([(densest, SNAPPY)])[2] == ()


def drawn(random: Random) -> bytes:
    """Return snappy that is sound, bent or noise."""
    size = random.choice((0, 1, 3, 10, 59, 60, 61, 100, 300, 5000))
    raw = (
        bytes(random.choices(b"abcd", k=size)) if random.random() < 0.6 else random.randbytes(size)
    )
    if random.random() < 0.1:
        raw *= random.randint(1, 50)
    value = bytearray(deflate(raw))
    if random.random() < 0.4:
        for _ in range(random.randint(1, 3)):
            place = random.randrange(min(len(value), random.choice((3, 10, 1000))))
            value[place] = random.choice((0, 1, 0xF0, 0xF4, 0xFC, 0xFF, random.randrange(256)))
    if random.random() < 0.1:
        del value[random.randint(0, len(value)) :]
    return random.randbytes(random.randint(0, 30)) if random.random() < 0.05 else bytes(value)


@pytest.mark.parametrize("seed", range(60))
def test_the_kernel_inflates_what_the_library_inflates(seed: int) -> None:
    random = Random(seed)
    values = [(drawn(random), random.choice((JSON, SNAPPY, SNAPPY, 7))) for _ in range(60)]
    expected, datatypes, failed = [], [], []
    for row, (value, datatype) in enumerate(values):
        try:
            plain = inflate(value) if datatype & SNAPPY else value
            datatype &= ~SNAPPY
        except RemoteProtocolError:
            plain = value
            failed.append(row)
        expected.append(plain)
        datatypes.append(datatype)
    assert scanned(values) == (expected, datatypes, tuple(failed))
