"""Kernels as object code: kept, found again, and never believed when it is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.columns import block, code
from headrace.columns.code import code_of, kept_in
from headrace.columns.scan import Scanner
from headrace.wire.dialect import Dialect
from headrace.wire.frame import Frame
from headrace.wire.opcodes import Magic, Opcode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAME = "inflate.measure"


@pytest.fixture
def compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """How often numba was asked, while code is kept in a directory of the test's own."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    asked = []
    compiled = code._compiled

    def counted(module: str, function: str, arguments: int) -> bytes:
        asked.append(function)
        return compiled(module, function, arguments)

    monkeypatch.setattr(code, "_compiled", counted)
    code_of.cache_clear()
    code._checksum.cache_clear()
    yield lambda: len(asked)
    code_of.cache_clear()
    code._checksum.cache_clear()


def rows_need() -> int:
    """What the kernel says of no rows: a call of the code, whatever brought it here."""
    code_of.cache_clear()
    code._checksum.cache_clear()
    return code_of("headrace.columns.inflate", "measure", 5)(0, 0, 0, 0, 0)


def test_code_is_compiled_once_and_found_by_the_next_process(compiles: Callable[[], int]) -> None:
    assert (rows_need(), compiles()) == (0, 1)
    assert (rows_need(), compiles()) == (0, 1)


def test_code_that_was_cut_short_or_changed_is_compiled_again(
    compiles: Callable[[], int],
) -> None:
    rows_need()
    place = kept_in()
    assert place is not None
    (kept,) = place.glob(f"{NAME}-*.o")
    whole = kept.read_bytes()
    for broken in (whole[:-1], whole[:100] + b"?" + whole[101:], b""):
        kept.write_bytes(broken)
        before = compiles()
        assert (rows_need(), compiles()) == (0, before + 1)
        assert (rows_need(), compiles()) == (0, before + 1), "and was kept again"


def test_a_changed_source_takes_the_place_of_the_old_code(
    compiles: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_need()
    more = tmp_path / "more"
    more.mkdir()
    (more / "constant.py").write_text("FACTOR = 2\n", encoding="utf-8")
    monkeypatch.setattr(code, "SOURCES", (*code.SOURCES, more))
    rows_need()
    assert compiles() == 2
    (more / "constant.py").write_text("FACTOR = 3\n", encoding="utf-8")
    rows_need()
    assert compiles() == 3
    place = kept_in()
    assert place is not None
    assert len(list(place.glob(f"{NAME}-*.o"))) == 1


def test_code_of_other_numbers_than_this_process_has_is_not_taken(
    compiles: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files may be newer than what was loaded from them."""
    rows_need()
    monkeypatch.setitem(block.PLACES, "seqno", block.PLACES["seqno"] + 64)
    rows_need()
    assert compiles() == 2


def test_where_nothing_can_be_kept_code_is_compiled_each_time(
    compiles: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocked / "kept"))
    assert kept_in() is None
    assert [rows_need(), rows_need()] == [0, 0]
    assert compiles() == 2


def test_without_a_chosen_directory_it_is_beside_the_sources_or_in_that_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [path.name for path in code._places()] == ["__pycache__", "headrace"]
    assert code._places()[1].parent == tmp_path


@pytest.mark.parametrize(
    "error",
    [ImportError("no compile_extra"), AttributeError("Flags"), TypeError("one argument more")],
    ids=lambda error: type(error).__name__,
)
def test_without_the_insides_it_knows_a_kernel_is_what_numba_compiles(
    compiles: Callable[[], int],
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(code, "_compiled", fail)
    assert rows_need() == 0
    assert f"inflate.measure is compiled in every process: {error}" in caplog.text
    assert compiles() == 0
    place = kept_in()
    assert place is not None
    assert not list(place.glob("*.o")), "there is nothing to keep"


def test_code_that_would_be_called_otherwise_is_not_called(
    compiles: Callable[[], int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another calling convention has another number of arguments; calling would be a crash."""
    monkeypatch.setattr(code, "_OWN_ARGUMENTS", 1)
    assert (rows_need(), compiles()) == (0, 1)
    assert "takes 7 arguments, known are 1 + 5" in caplog.text


def test_both_ways_to_a_kernel_lead_to_the_same_rows(compiles: Callable[[], int]) -> None:
    """A whole scan by numba's own function: the road of an unknown numba."""
    frame = Frame(
        magic=Magic.REQUEST, opcode=Opcode.MUTATION, extras=bytes(31), key=b"key", value=b"value"
    ).to_bytes()
    found = []
    for make in (code_of, code._plain):
        scanner = Scanner(Dialect.DCP_7)
        scanner._scan_frames = make("headrace.columns.gather", "scan_frames", 1)
        found.append(scanner.scan(frame * 3))
    assert found[0].batch.num_rows == 3
    assert found[0].batch.equals(found[1].batch)
    assert found[0].consumed == found[1].consumed == 3 * len(frame)
    assert compiles() == 1


def test_a_kernel_knows_its_arguments() -> None:
    with pytest.raises(TypeError):
        code_of("headrace.columns.inflate", "measure", 5)(0)
