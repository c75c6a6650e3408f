"""The wire against almost-right bytes.

- A FrameBuffer gives the same frames and the same error, whatever the split.
- decode either returns a message or raises RemoteProtocolError, in every dialect, strict or not.
- A message that was strictly decoded and can be encoded decodes again to itself.
- The codecs of values raise nothing but our errors, and inflate no more than they are told.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import Frame, FrameBuffer, one_frame
from headrace.wire.values import inflate, split_collection, split_xattrs
from tests.fuzz.mutations import mutated, pieces, resized, sound_frames

if TYPE_CHECKING:
    from random import Random

FRAMES_MAX: Final = 4
BODY_SIZE_MAX: Final = 4096
INFLATED_SIZE_MAX: Final = 1 << 16
DIALECTS: Final = tuple(Dialect)


def attempt(random: Random) -> None:
    """Make one almost-right conversation and try every road through the wire with it."""
    parts = []
    for _ in range(random.randint(1, FRAMES_MAX)):
        _, data = random.choice(sound_frames())
        changed = mutated(random, data)
        parts.append(resized(changed) if random.random() < 0.7 else changed)
    stream = b"".join(parts)

    whole, trouble = cut_frames([stream])
    again, same_trouble = cut_frames(pieces(random, stream))
    assert whole == again, "a split changes the frames"
    assert trouble == same_trouble, "a split changes the error"

    dialect = random.choice(DIALECTS)
    for frame in whole:
        try_decoding(frame, dialect)
        try_values(frame)


def cut_frames(data: list[bytes]) -> tuple[list[Frame], tuple[str, int | None] | None]:
    """Return the frames in the pieces, and the error that ended them with its place."""
    buffer = FrameBuffer(body_size_max=BODY_SIZE_MAX)
    frames: list[Frame] = []
    try:
        for piece in data:
            buffer.feed(piece)
            frames.extend(buffer)
    except RemoteProtocolError as error:
        return frames, (str(error), error.offset)
    return frames, None


def try_decoding(frame: Frame, dialect: Dialect) -> None:
    """Decode a frame strictly and tolerantly, and back when it was understood strictly."""
    with suppress(RemoteProtocolError):
        decode(frame, dialect, strict=False)
    message, offset = None, None
    try:
        message = decode(frame, dialect)
    except RemoteProtocolError as error:
        offset = error.offset
    assert offset is None or 0 <= offset <= frame.size, "the error points outside of the frame"
    if message is None:
        return
    try:
        data = encode(message, dialect, historic=True)
    except LocalProtocolError:
        return
    assert decode(one_frame(data), dialect) == message, "encoding changes the message"


def try_values(frame: Frame) -> None:
    """Read key and value as if their datatype and connection said so."""
    with suppress(RemoteProtocolError):
        split_collection(frame.key)
    with suppress(RemoteProtocolError):
        split_xattrs(frame.value)
    with suppress(RemoteProtocolError):
        assert len(inflate(frame.value, size_max=INFLATED_SIZE_MAX)) <= INFLATED_SIZE_MAX
