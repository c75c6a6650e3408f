"""Ctrl-C that does not get lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. Inside a finalizer or a
callback of a foreign library nobody is there to take it: it is printed and forgotten, and who
pressed the keys waits for ever. So the interrupt is noted as well as raised, and the main thread
asks for it whenever it looks at what else could have happened.

Imports: nothing of ours.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType, TracebackType


class Interrupts:
    """Notes SIGINT between enter and exit; on a thread that cannot, it changes nothing."""

    def __init__(self) -> None:
        """Note nothing yet."""
        self._noted = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        """Begin to note."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let things be as they were."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._noted = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise the interrupt that was noted, if `taken` was not called since."""
        if self._noted:
            raise KeyboardInterrupt

    def taken(self) -> None:
        """The interrupt was obeyed; the next one is another."""
        self._noted = False
