"""Scanning straight from a socket: the same rows and frames as from a buffer, whatever arrives."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columns.block import fresh_pages
from headrace.columns.gather import PIECE
from headrace.columns.scan import Scanner, can_receive
from headrace.columns.schema import SCHEMA
from tests.columns.makers import frame, marker, mutation
from tests.fuzz.conversations import drawn_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.columns.scan import ScanResult

MEMORY = 1 << 20
NOOP = frame(0x5C)


@dataclass(frozen=True)
class Found:
    """What became of a stream of bytes; frames handed back by their bytes."""

    rows: pa.Table
    others: list[tuple[bytes, int, int]]
    steps: list[tuple[int, ...]]
    counted: int
    error: tuple[str, int | None] | None


class _Gatherer:
    """A scanner and the memory it receives into, as a link holds them."""

    def __init__(self, scanner: Scanner, reader: socket.socket) -> None:
        self.scanner = scanner
        self.reader = reader
        self.memory = fresh_pages(MEMORY)
        self.at = self.filled = 0
        self.said: int | None = None

    def turn(self, limit: int) -> ScanResult:
        """Receive once; what is left moves to the front only after the frames were looked at."""
        before = self.scanner.offset
        self.scanner.begin(self.memory, self.at, self.filled)
        self.said = self.scanner.receive(self.reader.fileno(), limit)
        result, self.at, self.filled = self.scanner.finish()
        assert self.scanner.offset == before + result.consumed
        return result

    def make_room(self) -> None:
        rest = self.memory[self.at : self.filled].copy()
        self.memory[: rest.size] = rest
        self.at, self.filled = 0, int(rest.size)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    with reader, writer:
        yield reader, writer


def gathered(
    scanner: Scanner, pair: tuple[socket.socket, socket.socket], pieces: list[bytes], limit: int
) -> Found:
    """Send pieces and gather each to its end."""
    reader, writer = pair
    gatherer = _Gatherer(scanner, reader)
    found = _Collected()
    for piece in pieces:
        writer.sendall(piece)
        while found.error is None:
            result = gatherer.turn(limit)
            found.add(result, gatherer.memory)
            gatherer.make_room()
            if gatherer.said == errno.EAGAIN and not result.consumed:
                break
    return found.outcome()


def scanned(scanner: Scanner, data: bytes) -> Found:
    """The same bytes from a buffer."""
    found = _Collected()
    while found.error is None:
        result = scanner.scan(data)
        found.add(result, np.frombuffer(data, np.uint8))
        data = data[result.consumed :]
        if not result.consumed:
            break
    return found.outcome()


class _Collected:
    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._counted = 0
        self._others: list[tuple[bytes, int, int]] = []
        self._steps: list[tuple[int, ...]] = []
        self.error: tuple[str, int | None] | None = None

    def add(self, result: ScanResult, memory: np.ndarray[Any, Any]) -> None:
        for offset, size, reason, row in result.others.tolist():
            self._others.append((bytes(memory[offset : offset + size]), reason, self._rows + row))
        for _, start, stop, _, vbucket, first, last, *_ in result.steps:
            self._steps += [(vbucket, self._rows + row) for row in range(start, stop)]
            if start == stop:
                self._steps.append((vbucket, self._rows + start, first, last))
        result.batch.validate(full=True)
        self._batches.append(result.batch)
        self._rows += result.batch.num_rows
        self._counted += result.counted
        if result.error is not None:
            self.error = (str(result.error), result.error.offset)

    def outcome(self) -> Found:
        table = pa.Table.from_batches(self._batches, schema=SCHEMA).combine_chunks()
        return Found(table, self._others, self._steps, self._counted, self.error)


def stream_of(seed: int, frames: int, *, wild: bool = True) -> bytes:
    """Frames of all kinds, most of them rows, some larger than others.

    Wild ones break the order of seqnos, and where runs end then depends on where batches do.
    """
    random = Random(seed)
    said = [marker(1, 1 << 40)]
    for seqno in range(1, frames):
        chance = random.random()
        if chance < 0.9:
            said.append(mutation(seqno, value=random.randbytes(random.choice((0, 5, 300, 5000)))))
        else:
            said.append(drawn_frame(random) if wild and chance < 0.95 else NOOP)
    return b"".join(said)


def test_this_machine_can_receive() -> None:
    assert can_receive()


@pytest.mark.parametrize("limit", [1, 1000, PIECE, 3 * PIECE + 17])
@pytest.mark.parametrize("seed", range(4))
def test_a_socket_gives_what_a_buffer_gives(
    seed: int, limit: int, pair: tuple[socket.socket, socket.socket]
) -> None:
    wild = seed % 2 == 0
    data = stream_of(seed, 40 if limit == 1 else 400, wild=wild)
    random = Random(seed)
    places = sorted(random.randrange(len(data)) for _ in range(9))
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    expected = scanned(Scanner(steps=True), data)
    found = gathered(Scanner(steps=True), pair, pieces, limit)
    assert found.rows.num_rows > 20
    assert found.others == expected.others
    assert (found.counted, found.error) == (expected.counted, expected.error)
    assert wild or found.steps == expected.steps
    assert found.rows.equals(expected.rows)


def test_rows_alone_need_no_more_memory_than_a_piece(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The place of a piece is used again; a frame that is handed back stays where it is."""
    reader, writer = pair
    rows = marker(1, 10_000) + b"".join(mutation(n, value=bytes(900)) for n in range(1, 101))
    gatherer = _Gatherer(Scanner(), reader)
    writer.sendall(rows)
    result = gatherer.turn(len(rows))
    assert (result.batch.num_rows, gatherer.said) == (100, None)
    assert gatherer.at == gatherer.filled < 1000, "everything was moved to the front"
    writer.sendall(rows[len(marker(1, 10_000)) :] + NOOP)
    result = gatherer.turn(len(rows) + len(NOOP))
    assert result.others.tolist()[0][:2] == (gatherer.at - len(NOOP), len(NOOP))
    assert gatherer.at == gatherer.filled == len(rows) - len(marker(1, 10_000)) + len(NOOP)


def test_a_batch_is_of_no_more_bytes_than_the_window(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The block is made for so many: what is there already counts too."""
    reader, writer = pair
    one = mutation(1)
    gatherer = _Gatherer(Scanner(window=10 * len(one)), reader)
    writer.sendall(one * 100)
    rows = [gatherer.turn(1 << 20).batch.num_rows for _ in range(11)]
    assert rows == [10] * 10 + [0]
    assert gatherer.said == errno.EAGAIN


def test_a_full_batch_leaves_whole_frames(pair: tuple[socket.socket, socket.socket]) -> None:
    reader, writer = pair
    one = mutation(1)
    gatherer = _Gatherer(Scanner(rows_max=7), reader)
    writer.sendall(one * 20)
    found = [gatherer.turn(1 << 20).batch.num_rows for _ in range(3)]
    assert found == [7, 7, 6]


def test_a_header_that_cannot_be_right_is_told_at_its_place(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    data = marker(1, 99) + mutation(1) * 5 + b"\x47" + bytes(23) + mutation(2)
    expected = scanned(Scanner(), data)
    found = gathered(Scanner(), pair, [data[:100], data[100:]], 1 << 20)
    assert found.error == expected.error
    assert expected.error is not None
    assert found.rows.num_rows == 5


def test_more_named_streams_than_expected_are_found(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The table grows in the middle of a gathering."""
    said = b"".join(
        frame(0x56, bytes(20), magic=0x08, framing=b"\x22" + sid.to_bytes(2, "big"))
        for sid in range(1, 200)
    )
    scanner = Scanner()
    gathered(scanner, pair, [said], 1 << 20)
    assert scanner.stream(5, 199).marked


def test_an_end_and_an_error_are_told_once_the_rows_are(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    reader, writer = pair
    writer.sendall(mutation(1))
    writer.close()
    gatherer = _Gatherer(Scanner(), reader)
    assert gatherer.turn(1 << 20).batch.num_rows == 1
    assert gatherer.said == 0
    gatherer.scanner.begin(gatherer.memory, 0, 0)
    assert gatherer.scanner.receive(-1, 1 << 20) == errno.EBADF
