"""Packing under the token limit, the start of the planners, and the bound that they are held against."""

from functools import partial
from heapq import heapify, heapreplace
from itertools import pairwise, product

import numpy as np
import pytest
from draws import chat, cost, longalign, swe
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.balance import pack as packing
from odcsim.balance.pack import _in_rows, fewest, lightest_with_room, pack, pack_balanced, pack_fewest
from odcsim.balance.partition import longest_first, lower_bound, shares_of

many = settings(max_examples=150)
LIMIT = 1000


@st.composite
def held(draw):
    """What devices hold, heaviest first: with costs that follow lengths or not, are equal or not; some have nothing."""
    length = st.one_of(st.integers(1, LIMIT), st.sampled_from([1, LIMIT // 2, LIMIT // 2 + 1, LIMIT]))
    lengths = np.array(draw(st.lists(length, min_size=1, max_size=40)))
    size, devices = len(lengths), draw(st.integers(1, 6))
    few, own = (st.lists(of, min_size=size, max_size=size) for of in (st.integers(0, 5), st.floats(0.1, 9)))
    weights = np.array(draw(st.one_of(st.just(cost(32.0 * lengths)), few, own)), float)
    order = np.lexsort((-lengths, -weights))
    owner = draw(st.lists(st.integers(0, devices - 1), min_size=size, max_size=size))
    return shares_of(np.array(owner), devices), weights[order], lengths[order], LIMIT


def in_lists(*case):
    return [list(map(list, device)) for device in pack_fewest(*case).nested()]


@given(held())
@many
def test_every_device_packs_its_samples_into_few_microbatches_heaviest_first(case):
    """No two of them fit into one."""
    rows, weights, lengths, _ = case
    for row, microbatches in zip(rows.tolist(), in_lists(*case), strict=True):
        mine = [i for i in row if i < len(lengths)]
        assert sorted(i for part in microbatches for i in part) == mine
        assert all(part and lengths[part].sum() <= LIMIT for part in microbatches)
        assert all(weights[a].sum() >= weights[b].sum() * (1 - 1e-12) for a, b in pairwise(microbatches))
        least = fewest(mine, lengths.tolist(), LIMIT)
        assert least <= len(microbatches) <= max(1, 2 * least - 1)


def exact(lengths, limit, used=()):
    """The least microbatches, by trying every place for every sample."""
    if not lengths:
        return len(used)
    first, *rest = lengths
    places = [(*used[:b], size + first, *used[b + 1 :]) for b, size in enumerate(used) if size + first <= limit]
    return min(exact(rest, limit, place) for place in (*places, (*used, first)))


@pytest.mark.parametrize("draw", [longalign, swe])
def test_hardly_any_device_needs_more_than_the_least_there_is(draw):
    limit, more = 65_536, 0
    for seed in range(200):
        lengths = np.sort(draw(seed, 8))[::-1]
        [microbatches] = in_lists(shares_of(np.zeros(8, dtype=int), 1), cost(lengths), lengths, limit)
        more += len(microbatches) - exact(lengths.tolist(), limit)
    assert 0 <= more <= 4
    # Into the lightest with room they take four. Best fit makes 600 + 300, 800 + 200 and 300 + 500.
    lengths, weights = np.array([600, 300, 800, 300, 200, 500]), np.array([7.0, 6.0, 5.0, 4.0, 3.0, 1.0])
    assert in_lists(shares_of(np.zeros(6, dtype=int), 1), weights, lengths, LIMIT) == [[[0, 1], [2, 4], [3, 5]]]


@pytest.mark.parametrize("draw", [longalign, swe])
def test_fewer_microbatches_than_a_balanced_split_takes_and_never_more(draw):
    limit, ours, split = 65_536, [], []
    lengths = np.sort(draw(0, 512 * 8))[::-1]
    weights = cost(lengths)
    held = longest_first(weights, 512)
    ours = [len(device) for device in in_lists(held, weights, lengths, limit)]
    for row in held.tolist():
        group = [i for i in row if i < len(lengths)]
        count = fewest(group, lengths.tolist(), limit)
        while pack(group, weights.tolist(), lengths.tolist(), limit, count) is None:
            count += 1
        split.append(count)
    assert all(a <= b for a, b in zip(ours, split, strict=True))
    assert sum(ours) < 0.98 * sum(split)


@given(held())
@many
def test_arrays_pack_as_lists_do(case):
    plain = [pack_balanced(*case, alike=alike) for alike in (True, False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "FEW", 1)
        assert [pack_balanced(*case, alike=alike) for alike in (True, False)] == plain


@given(held())
@many
def test_every_device_has_the_fewest_microbatches_whose_balanced_split_fits(case):
    """Or all have the fewest by which it does on all."""
    rows, weights, lengths, _ = case
    groups = [[i for i in row if i < len(lengths)] for row in rows.tolist()]
    split = [partial(balanced, weights.tolist(), lengths.tolist(), group) for group in groups]
    each, alike = ([*map(list, pack_balanced(*case, alike=alike).nested())] for alike in (False, True))
    for group, mine, parts in zip(groups, each, split, strict=True):
        assert [list(part) for part in mine] == next((parts(n) for n in range(1, 99) if group and parts(n)), [])
    count = next(n for n in range(1, 99) if all(parts(n) is not None for parts in split))
    assert [[list(part) for part in device] for device in alike] == [parts(count) for parts in split]


def balanced(weights, lengths, group, count):
    return pack(group, weights, lengths, LIMIT, count)


@given(held(), st.integers(2, 5))
@many
def test_a_sure_row_is_the_plain_split(case, parts):
    """And rows of real lengths are sure."""
    rows, weights, _, _ = case
    if weights.min() > 0:
        where, sure = _in_rows(np.append(weights, 0.0)[rows], parts)
        for row, group, is_sure in zip(where, rows, sure, strict=True):
            samples = [i for i in group.tolist() if i < len(weights)]
            plain = pack(samples, weights.tolist(), [0] * len(weights), 1, parts)
            mine = [[i for i in group[row == at].tolist() if i < len(weights)] for at in range(parts)]
            assert not is_sure or mine == plain
    real = np.sort(cost(longalign(0, 64 * 8)) * (1 + 1e-9 * np.arange(64 * 8)))[::-1]
    assert _in_rows(real.reshape(8, 64).T, parts)[1].all()


ROOM = 12
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


def loads_held(held, weights):
    return sorted(np.append(weights, 0.0)[held].sum(axis=1))


@given(drawn, devices)
def test_loads_are_those_of_the_textbook(weights, devices):
    assert loads_held(longest_first(weights, devices), weights) == pytest.approx(textbook(weights, devices))


@pytest.mark.parametrize("draw", [longalign, swe, chat])
@pytest.mark.parametrize(("devices", "samples"), [(8, 4), (64, 8), (512, 3)])
def test_so_they_are_on_real_shapes_of_samples(draw, devices, samples):
    weights = np.sort(cost(draw(0, devices * samples)))[::-1]
    assert loads_held(longest_first(weights, devices), weights) == pytest.approx(textbook(weights, devices))


def optimum(weights, devices):
    return min(loads(np.array(owner), weights, devices)[-1] for owner in product(range(devices), repeat=len(weights)))


@given(st.lists(st.integers(1, 20).map(float), min_size=1, max_size=7), st.integers(1, 3))
def test_no_assignment_is_below_the_bound(weights, devices):
    """Which is met by the mean, the heaviest, two of the first three, three of the first five."""
    least = optimum(weights := np.array(weights), devices)
    assert lower_bound(weights, devices) <= least * (1 + 1e-12)
    for known, bound in (([3.0] * 4, 6), ([9.0, 1, 1, 1], 9), ([5.0, 5, 4], 9), ([4.0] * 5, 12)):
        assert lower_bound(np.array(known), 2) == bound == optimum(known, 2)


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


SAMPLE = st.tuples(st.one_of(st.integers(0, 9).map(float), st.floats(0, 9)), st.integers(1, ROOM))


@settings(max_examples=300)
@given(st.lists(SAMPLE, min_size=1, max_size=60), st.integers(1, 40), st.sampled_from([1e-9, 1 / 64, 2]))
def test_the_lightest_part_with_room_has_the_sample(samples, parts, least):
    samples.sort(reverse=True)
    weights, tokens = ([sample[k] for sample in samples] for k in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "LEAST", least)  # of a block: never one by one, as by default, always
        found = lightest_with_room(np.array(weights), np.array(tokens), ROOM, parts)
    assert (found and (found[0].tolist(), found[1].tolist())) == looked_for(weights, tokens, ROOM, parts)
