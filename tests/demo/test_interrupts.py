"""An interrupt is noted, raised, and raised again until it is obeyed."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import pytest

from headrace.demo.interrupts import Interrupts


def test_an_interrupt_that_somebody_swallowed_comes_again() -> None:
    with Interrupts() as interrupts:
        interrupts.check()
        with suppress(KeyboardInterrupt):  # as a finalizer would
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_one_that_was_obeyed_does_not() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        interrupts.taken()
        interrupts.check()


def test_afterwards_everything_is_as_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_thread_that_may_not_handle_signals_runs_without() -> None:
    failed = []

    def work() -> None:
        try:
            with Interrupts() as interrupts:
                interrupts.check()
        except ValueError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
