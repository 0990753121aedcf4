"""The start of the planners, and the bound that they are held against."""

from heapq import heapify, heapreplace
from itertools import product

import numpy as np
import pytest
from draws import chat, cost, longalign, swe
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.heuristics import lightest
from odcsim.heuristics.bound import lower_bound
from odcsim.heuristics.lightest import lightest_with_room
from odcsim.heuristics.longest_first import longest_first

LIMIT = 12
devices = st.integers(1, 9)
# Small whole numbers make ties common; with zeros among them devices stay empty.
weights = st.one_of(st.lists(st.integers(0, 12).map(float), min_size=1, max_size=60), st.lists(st.floats(0, 1e3)))
drawn = weights.filter(bool).map(lambda found: np.sort(found)[::-1])


def textbook(weights, devices):
    """The loads, sorted: each sample to the device with the least so far, one after the other."""
    heap = [0.0] * devices
    heapify(heap)
    for weight in weights:
        heapreplace(heap, heap[0] + weight)
    return sorted(heap)


def loads(owner, weights, devices):
    return sorted(np.bincount(owner, weights, minlength=devices))


@given(drawn, devices)
def test_loads_are_those_of_the_textbook(weights, devices):
    assert loads(longest_first(weights, devices), weights, devices) == pytest.approx(textbook(weights, devices))


@pytest.mark.parametrize("draw", [longalign, swe, chat])
@pytest.mark.parametrize(("devices", "samples"), [(8, 4), (64, 8), (512, 3)])
def test_so_they_are_on_real_shapes_of_samples(draw, devices, samples):
    weights = np.sort(cost(draw(0, devices * samples)))[::-1]
    assert loads(longest_first(weights, devices), weights, devices) == pytest.approx(textbook(weights, devices))


def optimum(weights, devices):
    return min(loads(np.array(owner), weights, devices)[-1] for owner in product(range(devices), repeat=len(weights)))


@given(st.lists(st.integers(1, 20).map(float), min_size=1, max_size=7), st.integers(1, 3))
def test_no_assignment_is_below_the_bound(weights, devices):
    weights = np.array(weights)
    assert lower_bound(weights, devices) <= optimum(weights, devices) * (1 + 1e-12)


def test_what_the_bound_rests_on():
    """The mean, the heaviest, two of the first three, three of the first five."""
    for weights, expected in (([3] * 4, 6), ([9, 1, 1, 1], 9), ([5, 5, 4], 9), ([4] * 5, 12)):
        assert lower_bound(np.array(weights, float), 2) == expected == optimum(weights, 2)


def looked_for(weights, tokens, limit, parts):
    loads, used, owner = [0.0] * parts, [0] * parts, []
    for weight, size in zip(weights, tokens, strict=True):
        room = [(loads[part], used[part], part) for part in range(parts) if used[part] + size <= limit]
        if not room:
            return None
        part = min(room)[2]
        owner.append(part)
        loads[part] += weight
        used[part] += size
    return owner, loads


SAMPLE = st.tuples(st.one_of(st.integers(0, 9).map(float), st.floats(0, 9)), st.integers(1, LIMIT))


@settings(max_examples=300)
@given(st.lists(SAMPLE, min_size=1, max_size=60), st.integers(1, 40), st.sampled_from([1, 64]))
def test_the_lightest_part_with_room_has_the_sample(samples, parts, arrays_from):
    samples.sort(reverse=True)
    weights, tokens = ([sample[k] for sample in samples] for k in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lightest, "MANY", arrays_from)
        found = lightest_with_room(np.array(weights), np.array(tokens), LIMIT, parts)
    assert (found and (found[0].tolist(), found[1].tolist())) == looked_for(weights, tokens, LIMIT, parts)
