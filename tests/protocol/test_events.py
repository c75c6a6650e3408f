"""Every event is known to the union, and every end of a stream has an advice."""

from __future__ import annotations

import dataclasses
import typing

from headrace.protocol import events as e
from headrace.wire.opcodes import StreamEndReason


def test_every_event_class_is_in_the_union() -> None:
    told = set(typing.get_args(e.Event))
    parts = {e.StreamEvent, e.RefusedControl}
    classes = {
        cls for cls in vars(e).values() if isinstance(cls, type) and dataclasses.is_dataclass(cls)
    }
    assert classes - parts == told


def test_every_end_of_a_stream_has_an_advice() -> None:
    assert set(e.END_ADVICE) == set(StreamEndReason)


def test_state_change_and_rollback_mean_the_same_to_a_consumer() -> None:
    """Released servers send 2 where 6 is meant."""
    ask_again = e.Advice.ASK_AGAIN
    assert e.END_ADVICE[StreamEndReason.STATE_CHANGED] is ask_again
    assert e.END_ADVICE[StreamEndReason.ROLLBACK] is ask_again
