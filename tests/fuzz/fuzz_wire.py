"""Many frames through both decoders: `python tests/fuzz/fuzz_wire.py --frames 1000000 --seed 1`.

`make fuzz` takes short turns at every target; this makes long conversations of one, for a run that
is measured in frames. Each conversation goes through `FrameBuffer`, `decode` and `Builder`, and
through the kernel, whole and in pieces, and the outcomes must agree (`target_columns.py`).

Ends when the frames or the seconds are used up. A conversation that fails is written to a file and
told with its seed and first bytes in hex; the seed under way is in a file too, so that a crash of
the interpreter can be repeated: `--seed N --conversations 1`.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
import traceback
from pathlib import Path
from random import Random
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from headrace.wire.frame import FrameBuffer  # noqa: E402 - after the path of a plain script is set
from tests.fuzz.conversations import conversation  # noqa: E402
from tests.fuzz.target_columns import BODY_SIZE_MAX, check  # noqa: E402

FRAMES_DEFAULT: Final = 1_000_000
SECONDS_DEFAULT: Final = 100.0
CONVERSATION: Final = 300
HEX_MAX: Final = 2_000
REPORT_SECONDS: Final = 10.0


def say(text: str) -> None:
    """Write one line at once: a fuzz run may be killed at any time."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def frames_in(stream: bytes, consumed: int) -> int:
    """Return how many whole frames the first ``consumed`` bytes are."""
    buffer = FrameBuffer(body_size_max=BODY_SIZE_MAX)
    buffer.feed(stream[:consumed])
    return sum(1 for _ in buffer)


def try_seed(seed: int, directory: Path) -> int:
    """Make the conversation of a seed and take both roads; return its frames, or raise."""
    random = Random(seed)
    stream = conversation(random, CONVERSATION)
    try:
        return frames_in(stream, check(random, stream))
    except BaseException:
        path = directory / f"fuzz_wire_{seed}.bin"
        path.write_bytes(stream)
        say(traceback.format_exc())
        shown = stream[:HEX_MAX].hex() + ("..." if len(stream) > HEX_MAX else "")
        say(f"fault: seed {seed}, {len(stream)} bytes, written to {path}\n{shown}")
        raise


def main(arguments: list[str] | None = None) -> int:
    """Fuzz until frames or time are used up; return 1 at the first fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=FRAMES_DEFAULT)
    parser.add_argument("--seconds", type=float, default=SECONDS_DEFAULT)
    parser.add_argument("--seed", type=int, default=1, help="of the first conversation")
    parser.add_argument("--conversations", type=int, default=sys.maxsize)
    parser.add_argument("--directory", type=Path, default=ROOT / "build", help="for what fails")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    under_way = options.directory / "fuzz_wire.seed"
    if not faulthandler.is_enabled():
        faulthandler.enable()
    began = told = time.monotonic()
    frames = done = 0
    while frames < options.frames and done < options.conversations:
        under_way.write_text(f"{options.seed + done}\n", encoding="ascii")
        try:
            frames += try_seed(options.seed + done, options.directory)
        except Exception:  # noqa: BLE001 - whatever escapes is a fault, told by try_seed
            return 1
        done += 1
        now = time.monotonic()
        if now - told > REPORT_SECONDS:
            say(f"{frames:,} frames, seed {options.seed + done}")
            told = now
        if now - began > options.seconds:
            break
    under_way.unlink()
    spent = time.monotonic() - began
    say(f"no fault in {frames:,} frames of {done:,} conversations")
    say(f"seeds {options.seed} to {options.seed + done - 1}, {spent:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
