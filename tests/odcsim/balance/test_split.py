"""split: gangs for outliers. What it promises of its plans, and what it buys on the shapes of draws.py."""

from math import log2

import numpy as np
import pytest
from draws import chat, cost, longalign
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.balance import NAMES, SPLIT, balance
from odcsim.balance.split import LARGEST, split_outliers
from odcsim.errors import InputError
from odcsim.schedule import Schedule, check, part

LIMIT = 1000
few, many = settings(max_examples=60, deadline=None), settings(max_examples=100, deadline=None)
overheads = st.sampled_from([0.0, 0.05, 0.15, 0.5])


@st.composite
def minibatches(draw, outliers=3):
    """Many short samples and a few of up to the limit, on a few devices."""
    devices = draw(st.integers(1, 20))
    short = draw(st.lists(st.integers(1, LIMIT // 5), min_size=1, max_size=40))
    long = draw(st.lists(st.integers(LIMIT // 2, LIMIT), max_size=outliers))
    return np.array(draw(st.permutations(short + long))), devices


def weigh(lengths):
    return cost(32 * lengths)


def run(lengths, devices, overhead, largest=LARGEST):
    assignment, gangs = split_outliers(lengths, weigh(lengths), devices, LIMIT, overhead, largest=largest)
    return Schedule(tuple(lengths.tolist()), assignment, gangs=gangs, split_overhead=overhead)


def loads(schedule, lengths):
    """What each device computes."""
    parts = weigh(lengths) * schedule.parts()
    return np.array([sum(parts[i] for microbatch in device for i in microbatch) for device in schedule.devices])


def members(schedule):
    """The devices of each gang."""
    return [
        [d for d, device in enumerate(schedule.devices) if device[:1] == ((i,),)]
        for i, gang in enumerate(schedule.gangs)
        if gang > 1
    ]


@given(minibatches(), overheads)
@many
def test_every_part_runs_once_alone_and_first_and_no_microbatch_is_over_the_limit(case, overhead):
    lengths, devices = case
    schedule = run(lengths, devices, overhead)
    check(schedule, LIMIT, "here")  # which is the reader's: parts, places and limit
    placed = [i for device in schedule.devices for microbatch in device for i in microbatch]
    assert np.array_equal(np.bincount(placed, minlength=len(lengths)), schedule.gangs)
    for device in schedule.devices:
        for microbatch in device:
            assert sum(-(-lengths[i] // schedule.gangs[i]) for i in microbatch) <= LIMIT


@given(minibatches(), overheads, st.sampled_from([2, 4, 8]))
@many
def test_gangs_are_neighbours_that_no_node_boundary_parts(case, overhead, largest):
    lengths, devices = case
    found = members(run(lengths, devices, overhead, largest))
    for gang in found:
        assert len(gang) in (2, 4, 8)
        assert len(gang) <= largest
        assert gang == list(range(gang[0], gang[0] + len(gang)))
        assert gang[0] % len(gang) == 0
    assert len({d for gang in found for d in gang}) == sum(map(len, found))  # nobody is of two


@given(minibatches(), overheads)
@many
def test_all_work_is_accounted_for(case, overhead):
    """A gang's work is its sample's and the overhead of each doubling; everybody else's is what it was."""
    lengths, devices = case
    schedule = run(lengths, devices, overhead)
    work = sum(w * (1 + overhead * log2(g)) for w, g in zip(weigh(lengths), schedule.gangs, strict=True))
    assert loads(schedule, lengths).sum() == pytest.approx(work)
    assert work >= weigh(lengths).sum() * (1 - 1e-12)


@given(minibatches(), overheads)
@many
def test_no_device_has_more_to_do_than_the_heaviest_under_lb_mini(case, overhead):
    lengths, devices = case
    plain = Schedule(tuple(lengths.tolist()), balance("lb-mini", lengths, weigh(lengths), devices, LIMIT))
    assert loads(run(lengths, devices, overhead), lengths).max() <= loads(plain, lengths).max() * (1 + 1e-12)


@given(minibatches())
@few
def test_without_a_gain_it_is_lb_mini(case):
    """Two devices on a sample do twice its work at an overhead of one, so each would do all of it."""
    lengths, devices = case
    schedule = run(lengths, devices, 1.0, largest=2)
    assert set(schedule.gangs) == {1}
    assert schedule.devices == balance("lb-mini", lengths, weigh(lengths), devices, LIMIT)


@given(st.integers(2, 20), st.integers(1, 4), st.integers(LIMIT // 2, LIMIT))
@few
def test_the_floor_of_the_longest_sample_falls(devices, each, longest):
    """One long sample among short ones: nothing else gets below it, and a gang does, by as much as it is large."""
    lengths = np.array([longest] + [10] * (devices * each))
    schedule = run(lengths, devices, 0.0)
    weights = weigh(lengths)
    floor = max(weights[0] / min(8, 2 ** int(log2(devices))), weights.sum() / devices)
    assert loads(schedule, lengths).max() < weights[0]
    assert loads(schedule, lengths).max() <= 1.2 * floor + weights[1]


@given(minibatches(), overheads, st.randoms(use_true_random=False))
@few
def test_it_depends_on_the_samples_and_not_on_where_they_stand(case, overhead, random):
    lengths, devices = case
    order = list(range(len(lengths)))
    random.shuffle(order)
    one, other = run(lengths, devices, overhead), run(lengths[order], devices, overhead)

    def seen(schedule):
        length, gangs = schedule.lengths, schedule.gangs
        return [[[(length[i], gangs[i]) for i in part] for part in device] for device in schedule.devices]

    assert seen(one) == seen(other)


@pytest.mark.parametrize(
    ("draw", "each", "overhead", "before", "after"),
    [
        (longalign, 4, 0.05, 0.15, 0.04),
        (longalign, 2, 0.05, 0.50, 0.10),
        (longalign, 1, 0.05, 0.65, 0.25),
        (chat, 4, 0.05, 0.60, 0.04),
        (chat, 8, 0.05, 0.35, 0.02),
        (longalign, 4, 0.15, 0.15, 0.05),
    ],
)
def test_what_it_buys_on_64_devices(draw, each, overhead, before, after):
    """Device time lost at the end, in compute alone, the extra work counted as lost: far more than `before` without."""
    lost = {"lb-mini": [], SPLIT: []}
    for seed in range(4):
        lengths = draw(seed, 64 * each)
        weights = cost(lengths)
        assignment, gangs = split_outliers(lengths, weights, 64, 65_536, overhead)
        sample = tuple(lengths.tolist())
        plans = {
            "lb-mini": Schedule(sample, balance("lb-mini", lengths, weights, 64, 65_536)),
            SPLIT: Schedule(sample, assignment, gangs=gangs, split_overhead=overhead),
        }
        for name, schedule in plans.items():
            parts = weights * schedule.parts()
            most = max(sum(parts[i] for microbatch in device for i in microbatch) for device in schedule.devices)
            lost[name].append(1 - weights.sum() / 64 / most)
    print(f"{draw.__name__}, {each} each, {overhead:.0%}: " + str({k: round(np.mean(v), 3) for k, v in lost.items()}))
    assert np.mean(lost["lb-mini"]) > before
    assert np.mean(lost[SPLIT]) < after


def test_a_part_is_an_equal_share_and_more_for_each_doubling():
    assert [part(g, 0.0) * g for g in (1, 2, 4, 8)] == [1, 1, 1, 1]
    assert [part(g, 0.05) * g for g in (1, 2, 4, 8)] == pytest.approx([1, 1.05, 1.1, 1.15])


def test_a_sample_over_the_limit_is_refused_also_where_its_parts_would_fit():
    lengths = np.array([LIMIT + 1, 10, 10, 10])
    with pytest.raises(InputError, match=f"{LIMIT + 1} tokens, over the limit of {LIMIT}"):
        split_outliers(lengths, weigh(lengths), 4, LIMIT, 0.05)


def test_it_is_not_one_of_those_that_run():
    assert SPLIT not in NAMES
