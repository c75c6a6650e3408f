"""The table of a stream's states: every state met with every cause."""

from __future__ import annotations

import pytest

from headrace.node.stream_states import TRANSITIONS, Cause, State

WAYS = {
    State.PENDING: "DISK>BACKFILLING MEMORY>IN_MEMORY TAKEOVER>TAKEOVER_SEND END>DEAD",
    State.BACKFILLING: "DISK>BACKFILLING MEMORY>IN_MEMORY TAKEOVER>TAKEOVER_SEND END>DEAD",
    State.IN_MEMORY: "DISK>BACKFILLING END>DEAD",
    State.TAKEOVER_SEND: "DISK>BACKFILLING ASKED>TAKEOVER_WAIT END>DEAD",
    State.TAKEOVER_WAIT: "ANSWERED>TAKEOVER_SEND END>DEAD",
    State.DEAD: "",
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("cause", Cause)
def test_every_state_goes_where_its_row_says_or_nowhere(state: State, cause: Cause) -> None:
    wanted = dict(way.split(">") for way in WAYS[state].split()).get(cause.name)
    found = TRANSITIONS.get((state, cause))
    assert (None if found is None else found.name) == wanted


def test_every_state_is_reached_and_all_but_dead_can_end() -> None:
    assert {State.PENDING, *TRANSITIONS.values()} == set(State)
    for state in State:
        assert ((state, Cause.END) in TRANSITIONS) == (state is not State.DEAD)


def test_a_takeover_waits_only_after_it_has_sent() -> None:
    before = [state for (state, _), after in TRANSITIONS.items() if after is State.TAKEOVER_WAIT]
    assert before == [State.TAKEOVER_SEND]
