from __future__ import annotations

import io
from typing import TYPE_CHECKING

from headrace.capture import raw
from headrace.capture.conversation import Direction, RoleEvidence
from headrace.capture.raw import read_raw

if TYPE_CHECKING:
    import pytest


def test_a_small_file_is_one_piece_whose_boundary_is_known() -> None:
    (piece,) = read_raw(io.BytesIO(b"frames"), "x.bin")
    assert (piece.data, piece.offset, piece.whole) == (b"frames", 0, True)
    assert piece.direction is Direction.UNKNOWN
    assert piece.connection.evidence is RoleEvidence.NONE
    assert str(piece.connection) == "x.bin"


def test_an_empty_file_has_no_pieces() -> None:
    assert list(read_raw(io.BytesIO(b""), "x.bin")) == []


def test_a_large_file_comes_in_chunks_without_a_known_boundary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(raw, "WHOLE_SIZE_MAX", 10)
    monkeypatch.setattr(raw, "CHUNK_SIZE", 4)
    data = bytes(range(20))
    pieces = list(read_raw(io.BytesIO(data), "x.bin"))
    assert b"".join(piece.data for piece in pieces) == data
    assert [piece.offset for piece in pieces] == [0, 11, 15, 19]
    assert not any(piece.whole for piece in pieces)
