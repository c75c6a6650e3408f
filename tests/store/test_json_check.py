"""The JSON check of the bulk road against the parser of the slow one."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.store.json_check import DEPTH_MAX, NO, UNSURE, YES, check_json
from headrace.store.native import address_of, bytes_at


def check(text: bytes) -> int:
    """What the kernel says."""
    padded = bytes_at(text + b"\0")
    return check_json(address_of(padded), len(text))


def parses(text: bytes) -> bool:
    """What the parser says."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


TEXTS = [
    b"{}", b"[]", b'""', b"0", b"-0", b"1.5", b"1e9", b"-1.25E-7", b"true", b"false", b"null",
    b" 1 ", b'{"a":1,"b":[true,{"c":null}]}', b'"\\u00e9\\n\\""', b"[1,2,3]", b"[ [ ] , { } ]",
    b"\t\r\n[1]\n", b"", b" ", b"{", b"}", b"[1,]", b"{,}", b'{"a"}', b'{"a":}', b'{"a":1,}',
    b"[1 2]", b"01", b"1.", b".5", b"+1", b"1e", b"--1", b"tru", b"nul", b"falsey", b"NaN",
    b"Infinity", b"-Infinity", b'"', b'"\\x"', b'"\n"', b'"\\u12"', b'"\\u12g4"', b'"\\u+123"',
    b"1 1", b"[}", b"{]", b"'a'", b"hello", b"/**/1", b'{"a":1}x', b"-", b'"\\', b"{1:2}",
    b'["a":1]', b'"a" "b"', b"[[1]",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_kernel_and_parser_agree(text: bytes) -> None:
    assert check(text) == (YES if parses(text) else NO)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_was_written_as_json_is_json(value: object) -> None:
    assert check(json.dumps(value).encode()) == YES


@pytest.mark.parametrize("seed", range(20))
def test_broken_json_is_judged_as_the_parser_does(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(300):
        text = bytearray(generator.choice(TEXTS) or b"{}")
        for _ in range(generator.randrange(1, 3)):
            place = generator.randrange(len(text) + 1)
            junk = generator.choice(b'{}[]",:0123456789.eE+-tfn \\ua')
            text[place : place + generator.randrange(2)] = bytes([junk])
        assert check(bytes(text)) == (YES if parses(bytes(text)) else NO), bytes(text)


@pytest.mark.parametrize(
    "text",
    ['"é"'.encode(), b"[\x001]", b"[" * (DEPTH_MAX + 2) + b"]" * (DEPTH_MAX + 2), b"1" * 1001],
)
def test_what_only_a_parser_can_judge(text: bytes) -> None:
    assert check(text) == UNSURE
