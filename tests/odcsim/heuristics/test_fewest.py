"""Packing under the token limit."""

from itertools import pairwise

import numpy as np
import pytest
from draws import cost, longalign, swe
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.heuristics.fewest import pack_all
from odcsim.heuristics.longest_first import longest_first
from odcsim.heuristics.packing import fewest, pack
from odcsim.heuristics.trades import hold

few, many = settings(max_examples=60, deadline=None), settings(max_examples=150, deadline=None)
LIMIT = 1000


@st.composite
def dealt(draw):
    """Lengths and weights, heaviest first, and the device of each sample; devices may have none."""
    length = st.one_of(st.integers(1, LIMIT), st.sampled_from([1, LIMIT // 2, LIMIT // 2 + 1, LIMIT]))
    lengths = np.array(draw(st.lists(length, min_size=1, max_size=40)))
    # Costs that do not follow lengths, too: then best fit is what most devices are left with.
    any_weight = st.lists(st.integers(1, 9), min_size=len(lengths), max_size=len(lengths)).map(np.array)
    weights = draw(st.one_of(st.just(cost(32.0 * lengths)), any_weight)).astype(float)
    order = np.lexsort((-lengths, -weights))
    devices = draw(st.integers(1, 6))
    owner = draw(st.lists(st.integers(0, devices - 1), min_size=len(lengths), max_size=len(lengths)))
    return lengths[order], weights[order], np.array(owner), devices


def packed(case):
    lengths, weights, owner, devices = case
    return in_lists(hold(owner, devices), weights, lengths, LIMIT)


def in_lists(*case):
    return [list(map(list, device)) for device in pack_all(*case).nested()]


@given(dealt())
@many
def test_every_device_packs_its_samples_under_the_limit(case):
    lengths, _, owner, _ = case
    for device, microbatches in enumerate(packed(case)):
        assert sorted(i for part in microbatches for i in part) == np.flatnonzero(owner == device).tolist()
        assert all(part and lengths[part].sum() <= LIMIT for part in microbatches)


@given(dealt())
@few
def test_microbatches_run_from_the_heaviest_down(case):
    _, weights, _, _ = case
    for microbatches in packed(case):
        assert all(weights[a].sum() >= weights[b].sum() * (1 - 1e-12) for a, b in pairwise(microbatches))


@given(dealt())
@few
def test_no_two_microbatches_fit_into_one(case):
    lengths, _, owner, _ = case
    for device, microbatches in enumerate(packed(case)):
        least = fewest(np.flatnonzero(owner == device).tolist(), lengths.tolist(), LIMIT)
        assert least <= len(microbatches) <= max(1, 2 * least - 1)


def exact(lengths, limit):
    """The least microbatches, by trying every place for every sample."""
    best = len(lengths)

    def place(i, used):
        nonlocal best
        if len(used) >= best:
            return
        if i == len(lengths):
            best = len(used)
            return
        for b in range(len(used)):
            if used[b] + lengths[i] <= limit:
                place(i + 1, [*used[:b], used[b] + lengths[i], *used[b + 1 :]])
        place(i + 1, [*used, lengths[i]])

    place(0, [])
    return best


@pytest.mark.parametrize("draw", [longalign, swe])
def test_hardly_any_device_needs_more_than_the_least_there_is(draw):
    limit, more = 65_536, 0
    for seed in range(200):
        lengths = np.sort(draw(seed, 8))[::-1]
        [microbatches] = in_lists(hold(np.zeros(8, dtype=int), 1), cost(lengths), lengths, limit)
        more += len(microbatches) - exact(lengths.tolist(), limit)
    assert 0 <= more <= 4


@pytest.mark.parametrize("draw", [longalign, swe])
def test_fewer_microbatches_than_a_balanced_split_takes_and_never_more(draw):
    limit, ours, split = 65_536, [], []
    lengths = np.sort(draw(0, 512 * 8))[::-1]
    weights = cost(lengths)
    held = hold(longest_first(weights, 512), 512)
    ours = [len(device) for device in in_lists(held, weights, lengths, limit)]
    for row in held.tolist():
        group = [i for i in row if i < len(lengths)]
        count = fewest(group, lengths.tolist(), limit)
        while pack(group, weights.tolist(), lengths.tolist(), limit, count) is None:
            count += 1
        split.append(count)
    assert all(a <= b for a, b in zip(ours, split, strict=True))
    assert sum(ours) < 0.98 * sum(split)


def test_inside_the_count_microbatches_are_evened_out():
    # Into the lightest with room they take four. Best fit makes 600 + 300, 800 + 200 and 300 + 500, at most 13.
    lengths, weights = np.array([600, 300, 800, 300, 200, 500]), np.array([7.0, 6.0, 5.0, 4.0, 3.0, 1.0])
    assert packed((lengths, weights, np.zeros(6, dtype=int), 1)) == [[[0, 3], [2, 4], [1, 5]]]
