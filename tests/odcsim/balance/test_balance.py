from itertools import pairwise

import numpy as np
import pytest
from draws import cost
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.balance import BALANCERS, NAMES, balance, runs_with
from odcsim.errors import InputError

# No deadline: a busy machine is no failure.
few, many = settings(max_examples=40, deadline=None), settings(max_examples=100, deadline=None)

LIMIT = 1000
BY_COST = tuple(b.name for b in BALANCERS if b.name in NAMES and b.by_cost)
FREE = tuple(b.name for b in BALANCERS if b.name in NAMES and b.free_counts)
free = st.sampled_from(FREE)
names = st.sampled_from(NAMES)


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


def loads(assignment, weights):
    return [sum(weights[i] for part in device for i in part) for device in assignment]


def microbatch_costs(assignment, weights):
    return [[sum(weights[i] for i in part) for part in device] for device in assignment]


@given(names, minibatches())
@many
def test_every_sample_runs_once_and_no_microbatch_is_over_the_limit(name, case):
    lengths, devices = case
    assignment = run(name, lengths, devices)
    assert len(assignment) == devices
    assert sorted(i for device in assignment for part in device for i in part) == list(range(len(lengths)))
    assert all(lengths[list(part)].sum() <= LIMIT for device in assignment for part in device)


@given(names.filter(lambda name: name not in FREE), minibatches())
@few
def test_devices_run_the_same_number_of_microbatches(name, case):
    assert len({len(device) for device in run(name, *case)}) == 1


@given(names, minibatches(divisible=True))
@few
def test_no_microbatch_is_empty_where_samples_divide_by_devices(name, case):
    assert all(part for device in run(name, *case) for part in device)


@given(st.sampled_from(["native", "local-sort", "lb-micro"]), minibatches(divisible=True))
@few
def test_devices_run_the_same_number_of_samples(name, case):
    lengths, devices = case
    for device in run(name, lengths, devices):
        assert sum(map(len, device)) == len(lengths) // devices


@given(free, minibatches())
@many
def test_free_counts_leave_no_empty_microbatch_and_no_idle_device_that_could_work(name, case):
    lengths, devices = case
    assignment = run(name, lengths, devices)
    assert all(part for device in assignment for part in device)
    assert sum(not device for device in assignment) == max(0, devices - len(lengths))


@given(st.sampled_from(["lb-micro", *FREE]), minibatches())
@few
def test_microbatches_run_from_the_heaviest_down(name, case):
    lengths, devices = case
    for costs in microbatch_costs(run(name, lengths, devices), weigh(lengths)):
        assert all(a >= b * (1 - 1e-12) for a, b in pairwise(costs))


@given(minibatches())
@few
def test_sorted_slice_steps_never_overlap_in_cost(case):
    """But where lb-micro waits less."""
    lengths, devices = case
    dealt = run("sorted-slice", lengths, devices)
    steps = list(zip(*microbatch_costs(dealt, weigh(lengths)), strict=True))
    assert dealt == run("lb-micro", lengths, devices) or all(
        min(early) >= max(late) * (1 - 1e-12) for early, late in pairwise(steps)
    )


@given(st.sampled_from(["lb-micro", "lb-mini"]), minibatches())
@few
def test_a_device_takes_no_more_microbatches_than_its_samples(name, case):
    lengths, devices = case
    assignment = run(name, lengths, devices)
    assert max(map(len, assignment)) <= max(1, max(sum(map(len, device)) for device in assignment))


@given(names, minibatches())
@few
def test_no_device_load_beats_the_lower_bound(name, case):
    lengths, devices = case
    weights = weigh(lengths)
    assert max(loads(run(name, lengths, devices), weights)) >= max(weights.max(), weights.sum() / devices) * (1 - 1e-12)


@given(minibatches())
@few
def test_lb_mini_never_spreads_or_peaks_more_than_lb_micro(case):
    lengths, devices = case
    weights = weigh(lengths)
    free, equal = (loads(run(name, lengths, devices), weights) for name in ("lb-mini", "lb-micro"))
    assert max(free) <= max(equal) * (1 + 1e-12)
    assert max(free) - min(free) <= (max(equal) - min(equal)) + 1e-12 * max(equal)


@given(names, minibatches(), st.sampled_from([0.5, 2.0, 1024.0]))
@few
def test_the_unit_of_weights_does_not_matter(name, case, factor):
    lengths, devices = case
    assert run(name, lengths, devices, factor * weigh(lengths)) == run(name, lengths, devices)


@given(st.sampled_from(BY_COST), minibatches(), st.randoms(use_true_random=False))
@few
def test_the_order_of_samples_does_not_matter_to_balancers_by_cost(name, case, random):
    lengths, devices = case
    shuffled = np.array(random.sample(lengths.tolist(), len(lengths)))

    def shape(drawn):
        return [[drawn[list(part)].tolist() for part in device] for device in run(name, drawn, devices)]

    assert shape(shuffled) == shape(lengths)


@given(names, minibatches())
@few
def test_the_same_minibatch_is_balanced_the_same_way(name, case):
    assert run(name, *case) == run(name, *case)


def test_native_deals_in_order_and_local_sort_keeps_samples_on_their_device():
    lengths = np.array([5, 9, 7, 3, 8, 6])
    assert run("native", lengths, 2) == (((0,), (2,), (4,)), ((1,), (3,), (5,)))
    assert run("local-sort", lengths, 2) == (((4,), (2,), (0,)), ((1,), (5,), (3,)))


def test_native_with_a_sample_too_few_ends_on_an_empty_microbatch():
    assert run("native", np.array([5, 9, 7]), 2) == (((0,), (2,)), ((1,), ()))


def test_lb_micro_splits_no_further_than_the_limit_asks():
    assert {len(device) for device in run("lb-micro", np.full(8, LIMIT // 4), 2)} == {1}
    assert {len(device) for device in run("lb-micro", np.full(8, LIMIT // 2), 2)} == {2}
    # One device must hold two samples over half the limit, so that all run two microbatches.
    assert {len(device) for device in run("lb-micro", np.array([501, 501, 501, 1]), 2)} == {2}


def test_positions_are_plain_integers():
    for name in NAMES:
        assignment = run(name, np.array([5, 9, 7, 3]), 2)
        assert {type(i) for device in assignment for part in device for i in part} == {int}


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_over_the_limit_is_named_with_the_way_out(name):
    with pytest.raises(InputError, match=r"^sample 2 of the minibatch: 1001 tokens.* 1000 .*--max-tokens to 1001"):
        run(name, np.array([5, 9, 1001, 3]), 2)


@pytest.mark.parametrize("wrong", ["lbmini", "LB-Mini", "lb_mini"])
def test_an_unknown_balancer_gets_the_nearest_name(wrong):
    for ask in (lambda: run(wrong, np.array([5]), 1), lambda: runs_with(wrong, "on-demand")):
        with pytest.raises(InputError, match=f"unknown balancer '{wrong}'; did you mean 'lb-mini'"):
            ask()


def test_no_devices_and_no_samples_are_errors():
    with pytest.raises(InputError, match="0 devices; give at least 1"):
        run("native", np.array([5]), 0)
    with pytest.raises(InputError, match="without samples"):
        run("lb-mini", np.array([], dtype=np.int64), 2)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_a_weight_that_is_no_cost_names_its_sample(wrong):
    with pytest.raises(InputError, match=f"^sample 1 of the minibatch: a weight of {wrong}; give seconds"):
        run("lb-robust", np.array([5, 9]), 2, np.array([1.0, wrong]))


@given(free, minibatches())
@few
def test_samples_may_cost_nothing(name, case):
    lengths, devices = case
    for weights in (np.zeros(len(lengths)), np.where(lengths > LIMIT // 2, weigh(lengths), 0.0)):
        assignment = run(name, lengths, devices, weights)
        assert sorted(i for device in assignment for part in device for i in part) == list(range(len(lengths)))
        assert all(part and lengths[list(part)].sum() <= LIMIT for device in assignment for part in device)


@given(minibatches(), st.randoms(use_true_random=False))
@few
def test_the_order_of_samples_does_not_matter_to_scenarios_either(case, random):
    """Samples may be alike in length and weight and differ in what they would cost if the model were wrong."""
    lengths, devices = case
    rows = np.array([[random.choice([0.5, 1.0, 2.0]) * w for w in weigh(lengths)] for _ in range(2)])
    turned = random.sample(range(len(lengths)), len(lengths))

    def shape(order):
        found = balance("lb-robust", lengths[order], weigh(lengths[order]), devices, LIMIT, scenarios=rows[:, order])
        return [[[rows[:, order[i]].tolist() for i in part] for part in device] for device in found]

    assert shape(turned) == shape(list(range(len(lengths))))
