"""Laws of assignments: what every balancer keeps, what each is for, and what pool leaves to its queue."""

from itertools import chain, pairwise

import numpy as np
import pytest
from draws import cost, longalign
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.balance import BALANCERS, NAMES, balance, pooled
from odcsim.errors import InputError

LIMIT = 1000
FREE = tuple(b.name for b in BALANCERS if b.name in NAMES and b.free_counts)
names = st.sampled_from(NAMES)
few = settings(max_examples=40)


@st.composite
def minibatches(draw, *, divisible=False):
    """Lengths up to the limit, often tied, and a number of devices; samples may be fewer than devices."""
    devices = draw(st.integers(1, 9))
    count = devices * draw(st.integers(1, 6)) if divisible else draw(st.integers(1, 40))
    length = st.one_of(st.integers(1, LIMIT), st.sampled_from([1, LIMIT // 2, LIMIT // 2 + 1, LIMIT]))
    return np.array(draw(st.lists(length, min_size=count, max_size=count))), devices


def weigh(lengths):
    return cost(32 * lengths)


def run(name, lengths, devices, weights=None):
    return balance(name, lengths, weigh(lengths) if weights is None else weights, devices, LIMIT)


def costs_of(assignment, weights):
    """Of each microbatch of each device."""
    return [[sum(weights[i] for i in part) for part in device] for device in assignment]


def loads(assignment, weights):
    return [*map(sum, costs_of(assignment, weights))]


@settings(max_examples=150)
@given(names, minibatches(), st.sampled_from([0.5, 2.0, 1024.0]))
def test_what_every_assignment_keeps(name, case, factor):
    """The same again, in whatever unit weights are."""
    lengths, devices = case
    weights = weigh(lengths)
    found = run(name, lengths, devices)
    assert len(found) == devices
    numbers = [i for device in found for part in device for i in part]
    assert sorted(numbers) == list(range(len(lengths)))
    assert {type(i) for i in numbers} == {int}
    assert all(lengths[list(part)].sum() <= LIMIT for device in found for part in device)
    if name in FREE:
        assert all(part for device in found for part in device)
        assert sum(not device for device in found) == max(0, devices - len(lengths))
    else:
        assert len({len(device) for device in found}) == 1
    if name in ("lb-micro", *FREE):  # microbatches run from the heaviest down
        assert all(a >= b * (1 - 1e-12) for costs in costs_of(found, weights) for a, b in pairwise(costs))
    if name in ("lb-micro", "lb-mini"):  # a device takes no more microbatches than its samples
        assert max(map(len, found)) <= max(1, max(sum(map(len, device)) for device in found))
    assert max(loads(found, weights)) >= max(weights.max(), weights.sum() / devices) * (1 - 1e-12)
    assert run(name, lengths, devices, factor * weights) == run(name, lengths, devices) == found


@given(names, minibatches(divisible=True))
def test_where_samples_divide_by_devices_counts_are_equal(name, case):
    """And no microbatch is empty."""
    lengths, devices = case
    found = run(name, lengths, devices)
    assert all(part for device in found for part in device)
    if name in ("native", "local-sort", "lb-micro"):
        assert {sum(map(len, device)) for device in found} == {len(lengths) // devices}


@given(minibatches())
def test_lb_mini_never_spreads_or_peaks_more_than_lb_micro(case):
    """Nor do steps of sorted-slice overlap in cost, but where lb-micro waits less."""
    lengths, devices = case
    weights = weigh(lengths)
    dealt, equal, free = (run(name, lengths, devices) for name in ("sorted-slice", "lb-micro", "lb-mini"))
    steps = list(zip(*costs_of(dealt, weights), strict=True))
    apart = all(min(early) >= max(late) * (1 - 1e-12) for early, late in pairwise(steps))
    assert apart or dealt == equal
    equal, free = loads(equal, weights), loads(free, weights)
    assert max(free) <= max(equal) * (1 + 1e-12)
    assert max(free) - min(free) <= (max(equal) - min(equal)) + 1e-12 * max(equal)


@few
@given(minibatches(), st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter_to_scenarios_either(case, random):
    """Samples may be alike in length and weight and differ in what they would cost if the model were wrong."""
    lengths, devices = case
    rows = np.array([[random.choice([0.5, 1.0, 2.0]) * w for w in weigh(lengths)] for _ in range(2)])
    turned = random.sample(range(len(lengths)), len(lengths))

    def shape(order):
        found = balance("lb-robust", lengths[order], weigh(lengths[order]), devices, LIMIT, scenarios=rows[:, order])
        return [[[rows[:, order[i]].tolist() for i in part] for part in device] for device in found]

    assert shape(turned) == shape(list(range(len(lengths))))


def test_lb_micro_splits_no_further_than_the_limit_asks():
    """native deals in order, and local-sort keeps samples on their device."""
    for lengths, parts in (([LIMIT // 4] * 8, 1), ([LIMIT // 2] * 8, 2), ([501, 501, 501, 1], 2)):
        assert {len(device) for device in run("lb-micro", np.array(lengths), 2)} == {parts}
    lengths = np.array([5, 9, 7, 3, 8, 6])
    assert run("native", lengths, 2) == (((0,), (2,), (4,)), ((1,), (3,), (5,)))
    assert run("local-sort", lengths, 2) == (((4,), (2,), (0,)), ((1,), (5,), (3,)))
    assert run("native", lengths[:3], 2) == (((0,), (2,)), ((1,), ()))


WRONG = [(name, [5, 9, 1001, 3], 2, None) for name in (*NAMES, "pool")]  # a sample over the limit
WRONG += [(name, [5], 1, None) for name in ("lbmini", "LB-Mini", "lb_mini", "pool")]  # whose queue has no place
WRONG += [("native", [5], 0, None), ("lb-mini", [], 2, None)]
WRONG += [("lb-robust", [5, 9], 2, np.array([1.0, weight])) for weight in (np.nan, np.inf, -1.0)]


@pytest.mark.parametrize(("name", "lengths", "devices", "weights"), WRONG)
def test_what_cannot_be_dealt_is_refused(name, lengths, devices, weights):
    with pytest.raises(InputError):
        run(name, np.array(lengths, dtype=np.int64), devices, weights)


# What pool leaves to its queue, and what it never does.
@st.composite
def pools(draw):
    """Lengths up to the limit, weights, devices (there may be fewer samples) and a microbatch's constant."""
    lengths = np.array(draw(st.lists(st.sampled_from([1, 7, 40, 300, 500, 501, LIMIT]), min_size=1, max_size=60)))
    return lengths, weigh(lengths), draw(st.integers(1, 9)), draw(st.sampled_from([0.0, 0.01, 10.0]))


@given(pools())
def test_the_queue_has_the_lightest_samples_and_as_many_as_hold_a_fifth_of_the_work(case):
    """Every sample runs once, no microbatch is over the limit or empty, and entries are worth theirs."""
    lengths, weights, devices, constant = case
    slots, queue = pooled(lengths, weights, devices, LIMIT, constant)
    planned = [part for device in slots for part in device]
    assert len(slots) == devices
    assert sorted(chain(*planned, *queue)) == list(range(len(lengths)))
    assert all(part and lengths[list(part)].sum() <= LIMIT for part in (*planned, *queue))
    queued, lightest = weights[list(chain(*queue))], weights[list(chain(*planned))].min()
    fifth = 0.2 * weights.sum() * (1 + 1e-9)
    assert queued.sum() <= fifth < queued.sum() + lightest + 1e-8 * fifth
    assert queued.max(initial=0) <= lightest
    held = [weights[list(entry)].sum() for entry in queue]
    assert held == sorted(held, reverse=True)
    # In the order in which they were filled, an entry is closed only where the next sample would be too much.
    grain = max(0.01 * weights.sum() / devices, 4 * constant)
    filled = sorted(queue, key=lambda entry: (-weights[entry[0]], -lengths[entry[0]], entry[0]))
    left = sum(held) * (1 + 1e-9)
    for entry, after in pairwise([*filled, ()]):
        mine, size = weights[list(entry)].sum(), lengths[list(entry)].sum()
        assert len(entry) == 1 or mine <= max(left / (2 * devices), grain * (1 + 1e-9))
        if after:
            assert mine + weights[after[0]] > grain * (1 - 1e-9) or size + lengths[after[0]] > LIMIT
        left -= mine


def test_large_entries_come_while_much_is_left_and_small_ones_at_the_end():
    """A costly microbatch makes them few."""
    lengths = longalign(0, 1024)
    weights = cost(lengths)
    _, queue = pooled(lengths, weights, 16, 65536)
    held = np.array([weights[list(entry)].sum() for entry in queue]) * 16 / weights.sum()
    assert 0.05 < held[0] <= 0.1
    assert held[-1] <= 0.03
    assert len(queue) < 16 * 8  # of 500 samples
    load = weights.sum() / 16
    counts = [len(pooled(lengths, weights, 16, 65536, share * load)[1]) for share in (0.0, 0.01, 0.05)]
    assert counts[0] > counts[1] > counts[2] >= 16
    entries = pooled(lengths, weights, 16, 10**6, 0.02 * load)[1]
    assert all(weights[list(e)].sum() > 0.05 * load for e in entries[:-1])


@given(pools(), st.randoms(use_true_random=False))
def test_where_samples_stand_does_not_matter_to_the_queue(case, random):
    lengths, weights, devices, constant = case
    order = random.sample(range(len(lengths)), len(lengths))
    here = pooled(lengths, weights, devices, LIMIT, constant)
    there = pooled(lengths[order], weights[order], devices, LIMIT, constant)
    both = zip(chain(*here[0], here[1]), chain(*there[0], there[1]), strict=True)
    assert all(sorted(lengths[list(a)]) == sorted(lengths[order][list(b)]) for a, b in both)
