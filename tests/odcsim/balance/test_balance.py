"""Laws of assignments: what every balancer keeps, and what each is for."""

from itertools import pairwise

import numpy as np
import pytest
from draws import cost
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.balance import BALANCERS, NAMES, balance, runs_with
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
    return [sum(sum(weights[i] for i in part) for part in device) for device in assignment]


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
def test_where_samples_divide_by_devices_no_microbatch_is_empty_and_counts_are_equal(name, case):
    lengths, devices = case
    found = run(name, lengths, devices)
    assert all(part for device in found for part in device)
    if name in ("native", "local-sort", "lb-micro"):
        assert {sum(map(len, device)) for device in found} == {len(lengths) // devices}


@few
@given(st.sampled_from(FREE), minibatches())
def test_samples_may_cost_nothing(name, case):
    lengths, devices = case
    for weights in (np.zeros(len(lengths)), np.where(lengths > LIMIT // 2, weigh(lengths), 0.0)):
        found = run(name, lengths, devices, weights)
        assert sorted(i for device in found for part in device for i in part) == list(range(len(lengths)))
        assert all(part and lengths[list(part)].sum() <= LIMIT for device in found for part in device)


@given(minibatches())
def test_sorted_slice_steps_never_overlap_in_cost(case):
    """But where lb-micro waits less."""
    lengths, devices = case
    dealt = run("sorted-slice", lengths, devices)
    steps = list(zip(*costs_of(dealt, weigh(lengths)), strict=True))
    assert dealt == run("lb-micro", lengths, devices) or all(
        min(early) >= max(late) * (1 - 1e-12) for early, late in pairwise(steps)
    )


@given(minibatches())
def test_lb_mini_never_spreads_or_peaks_more_than_lb_micro(case):
    lengths, devices = case
    free, equal = (loads(run(name, lengths, devices), weigh(lengths)) for name in ("lb-mini", "lb-micro"))
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


def test_native_deals_in_order_and_local_sort_keeps_samples_on_their_device():
    lengths = np.array([5, 9, 7, 3, 8, 6])
    assert run("native", lengths, 2) == (((0,), (2,), (4,)), ((1,), (3,), (5,)))
    assert run("local-sort", lengths, 2) == (((4,), (2,), (0,)), ((1,), (5,), (3,)))
    assert run("native", lengths[:3], 2) == (((0,), (2,)), ((1,), ()))


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [([LIMIT // 4] * 8, 1), ([LIMIT // 2] * 8, 2), ([501, 501, 501, 1], 2)],  # one device must hold two over a half
)
def test_lb_micro_splits_no_further_than_the_limit_asks(lengths, parts):
    assert {len(device) for device in run("lb-micro", np.array(lengths), 2)} == {parts}


WRONG = [(name, [5, 9, 1001, 3], 2, None) for name in NAMES]  # a sample over the limit
WRONG += [(name, [5], 1, None) for name in ("lbmini", "LB-Mini", "lb_mini")]
WRONG += [("native", [5], 0, None), ("lb-mini", [], 2, None)]
WRONG += [("lb-robust", [5, 9], 2, np.array([1.0, weight])) for weight in (np.nan, np.inf, -1.0)]


@pytest.mark.parametrize(("name", "lengths", "devices", "weights"), WRONG)
def test_what_cannot_be_dealt_is_refused(name, lengths, devices, weights):
    with pytest.raises(InputError):
        run(name, np.array(lengths, dtype=np.int64), devices, weights)
    if name not in NAMES:
        with pytest.raises(InputError):
            runs_with(name, "on-demand")
