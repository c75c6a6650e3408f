"""The allocator of a node's own process."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from pathlib import Path
from threading import Thread
from headrace.node.heap import LARGE_BYTES, use_one_heap

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) * 1024

assert use_one_heap()
assert use_one_heap(), "twice is once"
before = resident()

def work():
    # Large blocks with small ones between them, as a commit's and a slice's are.
    small = []
    for turn in range(40):
        large = bytearray(b"x") * (2 * LARGE_BYTES)
        small.append(bytes(5000))
        del large

threads = [Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_large_blocks_go_back_to_the_system() -> None:
    source = Path(__file__).resolve().parent.parent.parent / "src"
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(source)},
    )
    assert int(done.stdout) < 4 * 1024 * 1024
