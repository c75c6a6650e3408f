"""The fuzz runner finds what is planted, names the seed, and repeats it."""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from tests.fuzz.__main__ import HERE, main, targets_of
from tests.fuzz.mutations import MUTATIONS, mutated, pieces, resized, sound_frames

if TYPE_CHECKING:
    from pathlib import Path

CALM: Final = "def attempt(random):\n    random.random()\n"
# Fails for about one seed in ten, and only depends on the seed.
BRITTLE: Final = (
    "def attempt(random):\n"
    "    number = random.randrange(10)\n"
    "    assert number != 3, f'drew {number}'\n"
)


def directory_of(tmp_path: Path, **targets: str) -> Path:
    for name, text in targets.items():
        (tmp_path / f"target_{name}.py").write_text(text, encoding="utf-8")
    return tmp_path


def run(directory: Path, *options: str) -> int:
    return main(["--directory", str(directory), *options])


def test_a_fault_is_found_with_its_seed_and_seen_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = directory_of(tmp_path, calm=CALM, brittle=BRITTLE)
    assert run(directory, "--seconds", "30") == 1
    shown = capsys.readouterr().out
    assert "drew 3" in shown
    found = re.search(r"make fuzz SEED=(\d+) ONLY=brittle", shown)
    assert found is not None
    for _ in range(2):
        assert run(directory, "--seed", found[1]) == 1
        assert "1 of 2 targets found a fault" in capsys.readouterr().out
    assert run(directory, "--seed", found[1], "--only", "calm") == 0


def test_a_calm_target_ends_with_the_number_of_attempts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(directory_of(tmp_path, calm=CALM), "--seconds", "0.01") == 0
    assert re.search(r"no fault: calm [\d,]+ attempts", capsys.readouterr().out)


def test_a_name_that_fits_no_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(directory_of(tmp_path, calm=CALM), "--only", "nothing")


@pytest.mark.parametrize("name", targets_of(HERE))
def test_every_target_survives_its_first_seeds(name: str) -> None:
    attempt = targets_of(HERE, name)[name]
    for seed in range(200):
        try:
            attempt(Random(seed))
        except Exception as error:
            error.add_note(f"target {name}, seed {seed}")
            raise


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: str(mutation.__name__))
def test_every_mutation_changes_something_for_some_seed(mutation: object) -> None:
    assert callable(mutation)
    _, sound = sound_frames()[0]
    changed = set()
    for seed in range(20):
        data = bytearray(sound)
        mutation(Random(seed), data)
        changed.add(bytes(data))
    assert len(changed - {sound}) > 1


def test_the_same_seed_gives_the_same_bytes() -> None:
    _, sound = sound_frames()[0]
    assert mutated(Random(7), sound) == mutated(Random(7), sound)


def test_pieces_lose_nothing() -> None:
    data = bytes(range(100))
    for seed in range(50):
        assert b"".join(pieces(Random(seed), data)) == data, f"seed {seed}"


def test_a_resized_frame_states_the_body_it_has() -> None:
    _, sound = sound_frames()[0]
    longer = resized(sound + b"more")
    assert int.from_bytes(longer[8:12]) == len(longer) - 24
    assert resized(b"short") == b"short"
