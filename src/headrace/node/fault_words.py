"""The words faults are said in: tokens, kinds of values, and phrases with slots.

A phrase is a head (`fail over`) followed by groups in any order (`vbucket {vbucket}`,
`losing {lose}`). A group begins with a word that no other group of its phrase begins with, so one
token decides what comes next; a group without a slot is a yes (`in the middle of a frame`). Lines,
the command line and JSON give the same values, read by the same kinds.

A mistake names the column, what was found there and what would be right.

Imports: errors, wire.opcodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.errors import ConfigError
from headrace.wire.opcodes import SEQNO_MAX, Opcode, Status, VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Value: TypeAlias = int | float | str | bool
Values: TypeAlias = dict[str, Value]

LINE_SIZE_MAX: Final = 4_096
_TOKEN: Final = re.compile(r'\s+|#.*|"([^"]*)"|(:)|([^\s":#]+)')
_SLOT: Final = re.compile(r"\{(\w+)\}")
_OPCODE_ALIASES: Final = {
    "stream_request": Opcode.STREAM_REQ,
    "failover_log": Opcode.GET_FAILOVER_LOG,
}


class Misread(ConfigError):
    """A line cannot be understood; ``column`` counts from 1."""

    def __init__(self, sentence: str, column: int) -> None:
        """Keep the place beside the sentence."""
        super().__init__(sentence)
        self.column = column


@dataclass(frozen=True, slots=True)
class Token:
    """One word, quoted text or colon of a line."""

    text: str
    column: int
    quoted: bool = False

    def is_word(self, word: str) -> bool:
        """Whether this is that word, in any case."""
        return not self.quoted and self.text.lower() == word


def tokens_of(line: str) -> list[Token]:
    """The tokens of a line; a comment (`#` outside quotes) is none."""
    if len(line) > LINE_SIZE_MAX:
        raise Misread(f"line of {len(line)} characters, limit {LINE_SIZE_MAX}", LINE_SIZE_MAX + 1)
    found, at = [], 0
    while at < len(line):
        match = _TOKEN.match(line, at)
        if match is None:
            raise Misread('a quote is opened and not closed; write "name"', at + 1)
        quoted, colon, word = match.groups()
        if quoted is not None:
            found.append(Token(quoted, at + 1, quoted=True))
        elif colon or word:
            found.append(Token(colon or word, at + 1))
        at = match.end()
    return found


# -- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: how its text is read (ValueError when it is not) and what is allowed."""

    name: str
    allowed: str
    read: Callable[[str], Value]


def number(name: str, *, low: int = 0, high: int = SEQNO_MAX) -> Kind:
    """A whole number in a range."""

    def read(text: str) -> int:
        value = int(text.replace("_", ""), 0)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return Kind(name, f"{low}..{high}", read)


_SECONDS: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|)")
SECONDS_MAX: Final = 86_400.0


def _seconds(text: str) -> float:
    match = _SECONDS.fullmatch(text)
    if match is None:
        raise ValueError(text)
    value = float(match[1]) / (1_000 if match[2] == "ms" else 1)
    if value > SECONDS_MAX:
        raise ValueError(text)
    return value


def _name(text: str) -> str:
    if not 1 <= len(text) <= 256:
        raise ValueError(text)
    return text


def _opcode(text: str) -> int:
    word = text.lower().replace("-", "_")
    if word in _OPCODE_ALIASES:
        return int(_OPCODE_ALIASES[word])
    if word.upper() in Opcode.__members__:
        return int(Opcode[word.upper()])
    value = int(text, 0)
    if not 0 <= value <= 0xFF:
        raise ValueError(text)
    return value


def _status(text: str) -> int:
    word = text.upper().replace("-", "_")
    value = int(Status[word]) if word in Status.__members__ else int(text, 0)
    if not 0 < value <= 0xFFFF:
        raise ValueError(text)
    return int(Status(value))


def _state(text: str) -> int:
    word = text.upper()
    return int(VBucketState[word] if word in VBucketState.__members__ else VBucketState(int(text)))


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


VBUCKET: Final = number("vbucket", high=1_023)
SEQNO: Final = number("seqno")
COUNT: Final = number("count", low=1, high=2**31)
SIZE: Final = number("bytes", high=2**48)
RATE: Final = number("bytes per second", low=1, high=2**40)
COMMITS: Final = number("commits", high=2**31)
SECONDS: Final = Kind("seconds", "2s, 500ms or 1.5, at most a day", _seconds)
BUCKET: Final = Kind("bucket", "the name of a bucket", _name)
CONNECTION: Final = Kind(
    "connection", "a change-stream name, with * for any text, or a connection's number", _name
)
OPCODE: Final = Kind("opcode", "a name such as stream-request or set, or 0x53", _opcode)
STATUS: Final = Kind("status", "a name such as ETMPFAIL, or 0x86, but not 0", _status)
STATE: Final = Kind("state", "active, replica, pending or dead", _state)
FLAG: Final = Kind("flag", "true or false", _flag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One value of a lever or a trigger."""

    name: str
    kind: Kind
    help: str

    def value(self, given: object) -> Value:
        """The value of a text, or of a JSON value; ConfigError names what is allowed."""
        text = str(given).lower() if isinstance(given, bool) else str(given)
        try:
            if not isinstance(given, bool | int | float | str):
                raise ValueError(text)
            return self.kind.read(text)
        except ValueError as error:
            raise ConfigError(f"{self.name} is {given!r}; allowed: {self.kind.allowed}") from error


# -- phrases --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """How something is said: a head, then groups in any order, each at most once.

    ``flags``: group -> the parameter it makes true.
    """

    head: str
    groups: tuple[str, ...] = ()
    flags: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """The phrase as documentation shows it."""
        optional = [f"[{group}]" for group in (*self.groups, *(text for text, _ in self.flags))]
        return " ".join([self.head, *optional])

    def read(
        self, tokens: Sequence[Token], parameters: dict[str, Parameter], end_column: int
    ) -> Values:
        """The values that the tokens say; Misread when they are not this phrase."""
        reading = _Reading(tokens, parameters, end_column)
        reading.take(self.head)
        groups = {text.split(" ", 1)[0]: (text, "") for text in self.groups}
        groups |= {text.split(" ", 1)[0]: (text, name) for text, name in self.flags}
        while not reading.at_end:
            token = tokens[reading.at]
            word = "" if token.quoted else token.text.lower()
            if word not in groups:
                allowed = ", ".join(f"`{text}`" for text, _ in groups.values())
                raise reading.misread(allowed or "nothing more")
            text, flag = groups.pop(word)
            reading.take(text)
            if flag:
                reading.values[flag] = True
        return reading.values


class _Reading:
    """A place in the tokens, and the values found so far."""

    def __init__(
        self, tokens: Sequence[Token], parameters: dict[str, Parameter], end_column: int
    ) -> None:
        self.tokens, self.parameters, self.end_column = tokens, parameters, end_column
        self.at = 0
        self.values: Values = {}

    @property
    def at_end(self) -> bool:
        """Whether every token was taken."""
        return self.at >= len(self.tokens)

    @property
    def column(self) -> int:
        """Where the next token stands, or would."""
        return self.end_column if self.at_end else self.tokens[self.at].column

    def misread(self, expected: str) -> Misread:
        """The error for the next token."""
        found = "the end" if self.at_end else repr(self.tokens[self.at].text)
        return Misread(f"found {found}, expected {expected}", self.column)

    def take(self, pattern: str) -> None:
        """Take the words and slots of a pattern."""
        for part in pattern.split(" "):
            slot = _SLOT.fullmatch(part)
            if slot is not None:
                self._fill(self.parameters[slot[1]])
            elif self.at_end or not self.tokens[self.at].is_word(part):
                raise self.misread(f"`{part}`")
            else:
                self.at += 1

    def _fill(self, parameter: Parameter) -> None:
        if self.at_end:
            raise self.misread(f"{parameter.kind.name} ({parameter.kind.allowed})")
        token = self.tokens[self.at]
        try:
            self.values[parameter.name] = parameter.value(token.text)
        except ConfigError as error:
            raise Misread(str(error), token.column) from error
        self.at += 1
