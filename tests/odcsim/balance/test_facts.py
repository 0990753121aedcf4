"""What every balancer says of itself holds: whoever offers, runs or refuses balancers believes it unseen."""

from dataclasses import fields, replace
from operator import attrgetter

import numpy as np
import pytest
from draws import cost
from hypothesis import example, given, settings
from hypothesis import strategies as st

from odcsim.balance import ALL, BALANCERS, NAMES, POOL, advised, named, runs_with, standing_for
from odcsim.balance.balancer import Balancer, Work
from odcsim.errors import InputError
from odcsim.program import SYNCS, Sync
from odcsim.schedule import Schedule, check

LIMIT = 1000


# Minibatches in one of which each of the facts shows, of whoever says it.
LONG = Work(np.array([1000, 400, 300, 7, 7, 5, 3, 2, 1]), np.array([99.0, 9, 8, 7, 6, 3, 3, 2, 1]), 4, LIMIT)
SHORT = Work(np.arange(1, 31), np.arange(1, 31) ** 1.5, 3, LIMIT)
UNLIKE = Work(np.array([1000, *[600] * 6]), np.array([9.0, *[3.0] * 6]), 3, LIMIT)


@st.composite
def works(draw):
    """Few devices and often ties; often as many samples for each."""
    devices = draw(st.integers(1, 6))
    length = st.one_of(st.integers(1, LIMIT), st.sampled_from([1, LIMIT // 2, LIMIT // 2 + 1, LIMIT]))
    count = draw(st.one_of(st.integers(1, 6).map(devices.__mul__), st.integers(1, 30)))
    lengths = np.array(draw(st.lists(length, min_size=count, max_size=count)))
    return Work(lengths, cost(32 * lengths), devices, LIMIT)


def shape(found, work):
    """An assignment by lengths: who of equal samples is where does not matter."""
    return [[work.tokens[list(part)].tolist() for part in device] for device in (*found.devices, found.queue)]


OTHERWISE = {  # the same work where a balancer that does not say so sees no difference
    "by_cost": lambda work: replace(work, weights=work.weights[::-1]),
    "scenarios": lambda work: replace(work, scenarios=work.weights[None, :] ** 2),
    "speeds": lambda work: replace(work, speeds=np.linspace(0.5, 1, work.devices)),
    "weighs_transfers": lambda work: replace(work, constant=5.0, seconds=lambda weight: 5.0 + weight),
}


@pytest.mark.parametrize("balancer", BALANCERS, ids=lambda b: b.name)
@settings(max_examples=40)
@given(work=works())
@example(work=LONG)
@example(work=SHORT)
@example(work=UNLIKE)
def test_a_deal_is_what_the_balancer_says(balancer, work):
    """A schedule that the reader takes, and no look at what the balancer does not say that it looks at."""
    found = balancer.assign(work)
    assert len(found.devices) == work.devices
    if len(work.tokens) % work.devices == 0:
        check(Schedule.of(tuple(work.tokens.tolist()), found.devices, queue=found.queue), LIMIT, balancer.name)
    assert balancer.free_counts or len({len(device) for device in found.devices}) == 1
    assert balancer.queue or not found.queue
    for fact, other in OTHERWISE.items():
        if not getattr(balancer, fact):
            assert shape(balancer.assign(other(work)), work) == shape(found, work), fact
    if balancer.by_cost:  # nor at positions
        turned = np.random.default_rng(len(work.tokens)).permutation(len(work.tokens))
        other = replace(work, tokens=work.tokens[turned], weights=work.weights[turned])
        assert shape(balancer.assign(other), other) == shape(found, work)


def heaviest(found, work):
    """The load of the heaviest device."""
    return max(sum(work.weights[i] for part in device for i in part) for device in found.devices)


SHOWS = {
    "by_cost": lambda found, work: found(work) != found(replace(work, weights=work.weights[::-1])),
    "free_counts": lambda found, work: len({len(device) for device in found(work).devices}) > 1,
    "scenarios": lambda found, work: found(replace(work, scenarios=(work.weights**3)[None, :])) != found(work),
    "speeds": lambda found, work: found(replace(work, speeds=np.linspace(0.2, 1, work.devices))) != found(work),
    "weighs_transfers": lambda found, work: (
        found(replace(work, constant=50.0, seconds=lambda weight: 500 + weight)) != found(work)
        or found(replace(work, seconds=lambda weight: max(1e9, weight))) != found(work)
    ),
    "queue": lambda found, work: bool(found(work).queue),
    "even": lambda found, work: heaviest(found(work), work) < heaviest(named("native").assign(work), work),
}


@pytest.mark.parametrize("balancer", BALANCERS, ids=lambda b: b.name)
def test_what_a_balancer_says_of_itself_shows(balancer):
    for fact in (fact for fact in SHOWS if getattr(balancer, fact)):
        assert any(SHOWS[fact](balancer.assign, work) for work in (LONG, SHORT, UNLIKE)), fact


STANDS_FOR, ADVISED_FOR = attrgetter("stands_for"), attrgetter("advised_for")
STANDING = {"collective": ["sorted-slice", "lb-micro"], "deferred": ["sorted-slice"], "on-demand": ["lb-mini"]}


def test_lists_of_names_are_made_from_what_balancers_say():
    """And every fact can be seen, but those of whom to choose."""
    flags = {field.name for field in fields(Balancer) if field.type in (bool, "bool")}
    assert flags - set(SHOWS) == {"published"}
    assert [b.name for b in BALANCERS] == list(ALL)
    assert [name for name in ALL if name not in NAMES] == [POOL]
    assert len(set(ALL)) == len(ALL) == len(NAMES) + 1
    with pytest.raises(InputError):
        runs_with("lb_mini", "on-demand")
    for balancer in BALANCERS:
        syncs = ["on-demand"] if balancer.free_counts else list(SYNCS)
        assert [sync for sync in SYNCS if runs_with(balancer.name, sync)] == syncs
        assert balancer.help
        assert not set("\n%.;") & set(balancer.help)  # lines are joined by dots, and argparse takes `%` for its own
        assert balancer.function.__doc__
    # The advised one comes first where a quick search tries it.
    assert {sync: list(standing_for(sync)) for sync in SYNCS} == STANDING
    assert [advised(sync) for sync in SYNCS] == ["sorted-slice", "sorted-slice", "lb-robust"]


@pytest.mark.parametrize("meets", [True, False])
@pytest.mark.parametrize("every", [True, False])
def test_every_sync_that_can_be_has_balancers_to_take(meets, every):
    """One is advised, some stand for it, and these run with it, even out, and leave no plan open."""
    sync = Sync(meets, "gather", "push", push_every_microbatch=every, publishes=not meets)
    standing, taken = ([b for b in BALANCERS if asked(b)(sync)] for asked in (STANDS_FOR, ADVISED_FOR))
    assert standing
    assert len(taken) == 1
    assert all(b.suits(sync) and b.even and b.name in NAMES for b in (*standing, *taken))
