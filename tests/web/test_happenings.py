"""What took place between two pictures."""

from __future__ import annotations

from headrace.web.happenings import KEPT_MAX, LOSSES_MAX, PER_LOOK_MAX, Chronicle, Losses
from headrace.web.picture import ConnectionView
from tests.web.pictures import picture


def kinds(chronicle: Chronicle) -> list[tuple[str, str]]:
    return [(one.kind, one.text) for one in chronicle.all()]


def test_a_new_branch_is_a_failover_with_what_it_lost() -> None:
    chronicle = Chronicle()
    old = picture(highs=(10, 500))
    new = picture(1.0, highs=(10, 480), branches=("aa", "bb"), began=(0, 480))
    (found,) = chronicle.compare(old, new)
    assert (found.kind, found.vbucket) == ("failover", 1)
    assert "vbucket 1 failed over at seqno 480: at least 20 seqnos lost" in found.text
    assert chronicle.losses.of(1) == {"bb": 500}


def test_what_the_lever_said_is_exact() -> None:
    chronicle = Chronicle()
    chronicle.losses.tell(1, "bb", 510)
    new = picture(1.0, highs=(10, 480), branches=("aa", "bb"), began=(0, 480))
    (found,) = chronicle.compare(picture(highs=(10, 500)), new)
    assert "480: 30 seqnos lost" in found.text
    assert chronicle.losses.of(1) == {"bb": 510}


def test_a_failover_without_a_loss_says_so() -> None:
    chronicle = Chronicle()
    new = picture(1.0, highs=(10,), branches=("bb",), began=(10,))
    (found,) = chronicle.compare(picture(highs=(10,)), new)
    assert "no loss was seen" in found.text


def test_a_vbucket_that_appears_did_not_fail_over() -> None:
    chronicle = Chronicle()
    old = picture(highs=(0,), branches=("",), state=(0,))
    found = chronicle.compare(old, picture(1.0, highs=(5,)))
    assert [one.kind for one in found] == ["state"]


def test_states_purges_and_connections_are_told() -> None:
    chronicle = Chronicle()
    one, two = ConnectionView(key="1", name="gone"), ConnectionView(key="2", name="come")
    old = picture(state=(1, 1, 1, 1), connections=(one,))
    new = picture(1.0, state=(1, 4, 1, 0), purge=(7, 0, 0, 0), connections=(two,))
    chronicle.compare(old, new)
    assert kinds(chronicle) == [
        ("state", "vbucket 1 is dead, was active"),
        ("state", "vbucket 3 is gone, was active"),
        ("purge", "vbucket 0 was purged up to seqno 7"),
        ("joined", "come connected"),
        ("left", "gone left"),
    ]


def test_many_at_once_are_counted() -> None:
    chronicle = Chronicle()
    size = PER_LOOK_MAX + 30
    old = picture(highs=(5,) * size)
    new = picture(1.0, highs=(5,) * size, branches=("bb",) * size)
    found = chronicle.compare(old, new)
    assert len(found) == PER_LOOK_MAX + 1
    assert found[-1].text == "30 more vbuckets failed over"


def test_no_more_is_kept_than_the_limit() -> None:
    chronicle = Chronicle()
    for number in range(KEPT_MAX + 10):
        chronicle.add(0.0, "lever", str(number))
    assert len(chronicle.all()) == KEPT_MAX
    assert chronicle.all()[-1].number == KEPT_MAX + 10
    losses = Losses()
    for number in range(LOSSES_MAX + 10):
        losses.note(0, str(number), 1)
        losses.tell(0, str(number), 1)
    assert len(losses.of(0)) == LOSSES_MAX
    assert losses.told(0, "0") is None
