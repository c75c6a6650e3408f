"""Tokens and kinds of values."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.node import fault_words as words
from headrace.node.fault_words import LINE_SIZE_MAX, Misread, Parameter, Phrase, tokens_of


def test_tokens_know_their_columns() -> None:
    found = tokens_of(' cut "a: b#c" :x # rest')
    assert [(token.text, token.column, token.quoted) for token in found] == [
        ("cut", 2, False),
        ("a: b#c", 6, True),
        (":", 15, False),
        ("x", 16, False),
    ]


def test_quoted_text_is_no_word_of_a_phrase() -> None:
    with pytest.raises(Misread, match="found 'cut', expected `cut`"):
        Phrase(head="cut").read(tokens_of('"cut"'), {}, 6)


def test_a_line_has_a_limit() -> None:
    assert tokens_of("x" * LINE_SIZE_MAX)
    with pytest.raises(Misread, match=f"limit {LINE_SIZE_MAX}"):
        tokens_of("x" * (LINE_SIZE_MAX + 1))


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (words.SEQNO, "0x10", 16),
        (words.SEQNO, 2**64 - 1, 2**64 - 1),
        (words.SECONDS, "250ms", 0.25),
        (words.SECONDS, 2, 2.0),
        (words.SECONDS, 0.5, 0.5),
        (words.OPCODE, "stream_req", 0x53),
        (words.OPCODE, "Stream-Request", 0x53),
        (words.OPCODE, 1, 1),
        (words.STATUS, "tmpfail".upper().replace("TMP", "ETMP"), 0x86),
        (words.STATUS, 0x86, 0x86),
        (words.STATE, "Dead", 4),
        (words.STATE, 2, 2),
        (words.FLAG, True, True),
        (words.FLAG, "false", False),
        (words.CONNECTION, 12, "12"),
    ],
)
def test_text_and_json_give_the_same_values(
    kind: words.Kind, given: object, value: words.Value
) -> None:
    assert Parameter(name="x", kind=kind, help="").value(given) == value


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (words.VBUCKET, 1024),
        (words.VBUCKET, -1),
        (words.VBUCKET, True),
        (words.VBUCKET, [1]),
        (words.VBUCKET, None),
        (words.COUNT, 0),
        (words.SEQNO, 2**64),
        (words.SECONDS, "2h"),
        (words.SECONDS, "-1s"),
        (words.SECONDS, 100_000),
        (words.OPCODE, 256),
        (words.STATUS, 0),
        (words.STATUS, 0x7777),
        (words.STATE, 5),
        (words.FLAG, "yes"),
        (words.CONNECTION, ""),
        (words.CONNECTION, "x" * 257),
    ],
)
def test_what_is_not_allowed_is_named(kind: words.Kind, given: object) -> None:
    with pytest.raises(ConfigError, match=r"x is .*; allowed: "):
        Parameter(name="x", kind=kind, help="").value(given)
