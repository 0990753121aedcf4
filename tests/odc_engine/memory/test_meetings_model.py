"""In every order of what ranks do at the end of a minibatch, weights and sums are right, and nobody waits for ever."""

from dataclasses import replace
from itertools import product

import pytest
from meetings_model import Case, Minibatch, explore, wrong_in

ARENAS = {"one node": {}, "nodes": {"node": 1}, "nodes over a network": {"node": 1, "network": True}}
ENDS = ("settle", "look", "drop", "refuse", "close")
LAST = Minibatch()


def scripts(ends, passes=(1, 0)):
    return tuple((Minibatch(count, end), LAST) for end, count in zip(ends, passes, strict=True))


@pytest.mark.parametrize("ends", list(product(ENDS, ENDS)), ids="-".join)
@pytest.mark.parametrize("arena", ARENAS)
def test_two_ranks_are_in_step_or_told(arena, ends):
    assert not wrong_in(Case(scripts(ends), **ARENAS[arena]))


@pytest.mark.parametrize("end", ["settle", "drop"])
@pytest.mark.parametrize("arena", ARENAS)
def test_all_are_told_wherever_one_has_an_error(arena, end):
    for at in range(30):
        failing = (Minibatch(1, end, at), LAST)
        for other in ("settle", "drop"):
            assert not wrong_in(Case((failing, (Minibatch(1, other), LAST)), **ARENAS[arena]))


CLEARS = (Minibatch(1), Minibatch(1, clears=1), Minibatch(2, clears=1), Minibatch(0), Minibatch(1, "drop", clears=1))


@pytest.mark.parametrize("arena", ARENAS)
def test_what_zero_grad_drops_inside_a_minibatch_is_dropped_by_all_or_refused(arena):
    for first, second in product(CLEARS, CLEARS):
        assert not wrong_in(Case(((first, LAST), (second, LAST)), **ARENAS[arena]))


@pytest.mark.drawn(20)
@pytest.mark.slow
@pytest.mark.parametrize("ends", list(product(("settle", "look", "drop"), ENDS, ENDS)), ids="-".join)
def test_three_ranks_are_in_step_or_told(ends):
    assert not wrong_in(Case(scripts(ends, (1, 0, 1))))


@pytest.mark.slow
@pytest.mark.parametrize("network", [False, True])
def test_nodes_of_two_are_in_step_or_told(network):
    none = Minibatch(0)
    some = ((Minibatch(1, "drop"), none), (none, none), (none, LAST), (none, LAST))
    assert not wrong_in(Case(some, node=2, network=network))


SETTLE, DROP, CLEARED, NOTHING = Minibatch(), Minibatch(1, "drop"), Minibatch(2, clears=1), Minibatch(0, "look")
LEFT_OUT = {
    "agree": ("one node", SETTLE, SETTLE),
    "disagree": ("one node", SETTLE, DROP),
    "publish": ("one node", SETTLE, SETTLE),
    "fetch": ("nodes", SETTLE, SETTLE),
    "clear": ("one node", CLEARED, CLEARED),
    "look": ("one node", NOTHING, NOTHING),
}


@pytest.mark.parametrize("meeting", LEFT_OUT)
def test_a_meeting_that_is_left_out_is_seen(meeting):
    arena, *both = LEFT_OUT[meeting]
    case = Case(tuple((one, LAST) for one in both), **ARENAS[arena])
    assert not wrong_in(case)
    assert wrong_in(replace(case, without=frozenset([meeting])))


def test_settling_by_two_meetings_and_dropping_by_one_is_seen():
    """Hybrid arenas across machines did so: gradients were wrong for several minibatches, without a word."""
    case = Case(scripts(("settle", "drop")), node=1, network=True, twice=True)
    assert "has" in wrong_in(case) or "gathers" in wrong_in(case)
    assert explore(Case(scripts(("settle", "settle")), node=1, network=True, twice=True)) > 100
