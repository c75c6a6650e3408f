"""TokenSet: where a consumer stands in every vbucket of a bucket; and a file that keeps one.

A token set belongs to one bucket, known by name and uuid: a bucket that was deleted and made again
has the same name and another history. Every vbucket has its resume token and its boundaries (ends
of complete snapshots), which a rollback needs to land on.

Rules
- JSON with a format number; 64-bit numbers are strings, so that no reader rounds them. Equal sets
  give equal text.
- A set is a value; the application decides when to keep it: after it has done what it does with
  the changes the set covers, never before.
- `TokenFile` replaces the file in one step (write beside it, fsync, rename, fsync of the
  directory): after a crash it holds the old set or the new one.

Imports: client.positions, errors, history, protocol.talk.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.client.positions import Positions
from headrace.errors import ConfigError
from headrace.history import (
    ZERO,
    Boundaries,
    JsonObject,
    ResumeToken,
    Seqno,
    canonical_json,
)
from headrace.protocol.talk import Position

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT: Final = 1
KIND: Final = "headrace tokens"
FILE_SIZE_MAX: Final = 1 << 30
BEGINNING: Final = Position(ZERO, Boundaries())
_KEYS: Final = frozenset({"kind", "format", "bucket", "uuid", "vbuckets", "positions"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSet:
    """Positions by vbucket; one that is not listed stands at the beginning."""

    bucket: str
    uuid: str = ""
    vbuckets: int
    positions: Mapping[int, Position] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse positions of vbuckets that the bucket does not have."""
        positions = self.positions
        ends = (positions.least, positions.greatest) if isinstance(positions, Positions) else None
        named = positions if ends is None else (one for one in ends if one is not None)
        wrong = [vbucket for vbucket in named if not 0 <= vbucket < self.vbuckets]
        if wrong:
            raise ConfigError(
                f"tokens of vbucket {wrong[0]}, bucket {self.bucket!r} has 0..{self.vbuckets - 1}"
            )

    def position(self, vbucket: int) -> Position:
        """Where a vbucket stands."""
        return self.positions.get(vbucket, BEGINNING)

    def token(self, vbucket: int) -> ResumeToken:
        """The resume token of a vbucket."""
        return self.position(vbucket).token

    def seqno(self, vbucket: int) -> Seqno:
        """The last seqno held of a vbucket."""
        return self.position(vbucket).token.seqno

    def updated(self, positions: Mapping[int, Position]) -> TokenSet:
        """With these positions in the place of the old ones."""
        held = (
            self.positions if isinstance(self.positions, Positions) else Positions(self.positions)
        )
        return replace(self, positions=held.updated(positions))

    def check_bucket(self, *, bucket: str, uuid: str, vbuckets: int) -> None:
        """Refuse to be used on another bucket than the one the tokens were made on."""
        if self.bucket != bucket:
            raise ConfigError(f"tokens of bucket {self.bucket!r} used on bucket {bucket!r}")
        if self.uuid and uuid and self.uuid != uuid:
            raise ConfigError(
                f"tokens of bucket {bucket!r} with uuid {self.uuid}, the source has {uuid}: the "
                "bucket was made anew; start from the beginning"
            )
        if self.vbuckets != vbuckets:
            raise ConfigError(f"tokens of {self.vbuckets} vbuckets, the source has {vbuckets}")

    # -- as text --------------------------------------------------------------------------------

    def to_json(self) -> JsonObject:
        """The set as a JSON object."""
        return {
            "kind": KIND,
            "format": FORMAT,
            "bucket": self.bucket,
            "uuid": self.uuid,
            "vbuckets": self.vbuckets,
            "positions": {
                str(vbucket): {
                    "token": position.token.to_json(),
                    "boundaries": position.boundaries.to_json(),
                }
                for vbucket, position in sorted(self.positions.items())
            },
        }

    def to_text(self) -> str:
        """The set as canonical JSON."""
        return canonical_json(self.to_json())

    @classmethod
    def from_json(cls, value: object) -> TokenSet:
        """The set of an object written by ``to_json``; anything else is a ConfigError."""
        if not isinstance(value, dict) or value.get("kind") != KIND:
            raise ConfigError(f"these are no tokens: an object with kind {KIND!r} is wanted")
        if value.get("format") != FORMAT:
            raise ConfigError(
                f"tokens of format {value.get('format')!r}, this release reads {FORMAT}"
            )
        if value.keys() != _KEYS:
            raise ConfigError(f"tokens with keys {sorted(value)}, expected {sorted(_KEYS)}")
        bucket, uuid, vbuckets = value["bucket"], value["uuid"], value["vbuckets"]
        if not isinstance(bucket, str) or not isinstance(uuid, str):
            raise ConfigError("tokens whose bucket or uuid is no text")
        if isinstance(vbuckets, bool) or not isinstance(vbuckets, int) or vbuckets < 1:
            raise ConfigError(f"tokens of {vbuckets!r} vbuckets, at least 1")
        return cls(
            bucket=bucket, uuid=uuid, vbuckets=vbuckets, positions=_positions(value["positions"])
        )

    @classmethod
    def from_text(cls, text: str | bytes) -> TokenSet:
        """The set of a text written by ``to_text``; anything else is a ConfigError."""
        try:
            return cls.from_json(json.loads(text))
        except ValueError as error:
            raise ConfigError(f"tokens that are no JSON: {error}") from error


def _positions(value: object) -> dict[int, Position]:
    if not isinstance(value, dict):
        raise ConfigError("tokens whose positions are no object")
    found = {}
    for name, entry in value.items():
        if not name.isdecimal() or not isinstance(entry, dict):
            raise ConfigError(f"tokens with a position named {name!r}, expected vbucket numbers")
        try:
            found[int(name)] = Position(
                ResumeToken.from_json(entry.get("token")),
                Boundaries.from_json(entry.get("boundaries")),
            )
        except ValueError as error:
            raise ConfigError(f"tokens of vbucket {name}: {error}") from error
    return found


class TokenFile:
    """A file that holds one token set; one writer at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the file; nothing is opened."""
        self.path = Path(path)

    def load(self) -> TokenSet | None:
        """The set the file holds, None when there is no file yet."""
        try:
            with self.path.open("rb") as stream:
                data = stream.read(FILE_SIZE_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"tokens in {self.path} cannot be read: {error.strerror}") from error
        if len(data) > FILE_SIZE_MAX:
            raise ConfigError(f"tokens in {self.path} take more than {FILE_SIZE_MAX} bytes")
        try:
            return TokenSet.from_text(data)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from error

    def save(self, tokens: TokenSet) -> None:
        """Put the set in the place of what the file holds, in one step that survives a crash."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        try:
            with beside.open("w", encoding="utf-8") as stream:
                stream.write(tokens.to_text() + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            beside.replace(self.path)
            self._sync_directory()
        except OSError as error:
            raise ConfigError(
                f"tokens in {self.path} cannot be written: {error.strerror}"
            ) from error
        finally:
            with suppress(OSError):
                beside.unlink()

    def _sync_directory(self) -> None:
        """Make the rename itself durable."""
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
