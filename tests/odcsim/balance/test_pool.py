"""What pool leaves to its queue, and what it never does."""

from itertools import pairwise

import numpy as np
import pytest
from draws import cost, longalign
from hypothesis import given
from hypothesis import strategies as st

from odcsim.balance import balance, pooled
from odcsim.errors import InputError

LIMIT = 1000


@st.composite
def minibatches(draw):
    """Lengths up to the limit, weights, devices (there may be fewer samples) and a microbatch's constant."""
    lengths = np.array(draw(st.lists(st.sampled_from([1, 7, 40, 300, 500, 501, LIMIT]), min_size=1, max_size=60)))
    return lengths, cost(32 * lengths), draw(st.integers(1, 9)), draw(st.sampled_from([0.0, 0.01, 10.0]))


def everything(slots, queue):
    return [part for device in slots for part in device] + list(queue)


@given(minibatches())
def test_every_sample_runs_once_and_no_microbatch_is_over_the_limit_or_empty(case):
    lengths, weights, devices, constant = case
    slots, queue = pooled(lengths, weights, devices, LIMIT, constant)
    parts = everything(slots, queue)
    assert len(slots) == devices
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert all(part and lengths[list(part)].sum() <= LIMIT for part in parts)


@given(minibatches())
def test_the_queue_has_the_lightest_samples_and_as_many_as_hold_a_fifth_of_the_work(case):
    lengths, weights, devices, constant = case
    _, queue = pooled(lengths, weights, devices, LIMIT, constant)
    queued = [i for entry in queue for i in entry]
    planned = sorted(set(range(len(lengths))) - set(queued))
    fifth = 0.2 * weights.sum() * (1 + 1e-9)
    assert weights[queued].sum() <= fifth
    assert weights[queued].sum() + weights[planned].min() > fifth * (1 - 1e-8)
    assert max(weights[queued], default=0) <= weights[planned].min()


@given(minibatches())
def test_entries_come_heaviest_first_and_are_worth_their_microbatch(case):
    lengths, weights, devices, constant = case
    _, queue = pooled(lengths, weights, devices, LIMIT, constant)
    held = [weights[list(entry)].sum() for entry in queue]
    assert all(a >= b for a, b in pairwise(held))
    # In the order in which they were filled, an entry is closed only where the next sample would be too much.
    grain = max(0.01 * weights.sum() / devices, 4 * constant)
    filled = sorted(queue, key=lambda entry: (-weights[entry[0]], -lengths[entry[0]], entry[0]))
    left = sum(held) * (1 + 1e-9)
    for entry, after in pairwise([*filled, ()]):
        mine, size = weights[list(entry)].sum(), lengths[list(entry)].sum()
        most = max(left / (2 * devices), grain * (1 + 1e-9))
        assert len(entry) == 1 or mine <= most
        if after:
            assert mine + weights[after[0]] > grain * (1 - 1e-9) or size + lengths[after[0]] > LIMIT
        left -= mine


def test_large_entries_come_while_much_is_left_and_small_ones_at_the_end():
    lengths = longalign(0, 1024)
    weights = cost(lengths)
    _, queue = pooled(lengths, weights, 16, 65536)
    held = np.array([weights[list(entry)].sum() for entry in queue]) * 16 / weights.sum()
    assert 0.05 < held[0] <= 0.1
    assert held[-1] <= 0.03
    assert len(queue) < 16 * 8  # of 500 samples


def test_a_costly_microbatch_makes_entries_few():
    lengths = longalign(1, 512)
    weights = cost(lengths)
    load = weights.sum() / 8
    counts = [len(pooled(lengths, weights, 8, 65536, share * load)[1]) for share in (0.0, 0.01, 0.05)]
    assert counts[0] > counts[1] > counts[2] >= 8
    entries = pooled(lengths, weights, 8, 10**6, 0.02 * load)[1]
    assert all(weights[list(e)].sum() > 0.05 * load for e in entries[:-1])


@given(minibatches(), st.randoms(use_true_random=False))
def test_where_samples_stand_does_not_matter(case, random):
    lengths, weights, devices, constant = case
    order = random.sample(range(len(lengths)), len(lengths))
    here = pooled(lengths, weights, devices, LIMIT, constant)
    there = pooled(lengths[order], weights[order], devices, LIMIT, constant)
    moved = [tuple(sorted(int(lengths[order[i]]) for i in part)) for part in everything(*there)]
    assert moved == [tuple(sorted(int(lengths[i]) for i in part)) for part in everything(*here)]


def test_what_cannot_be_is_refused():
    lengths = np.array([5, 1001])
    with pytest.raises(InputError):
        pooled(lengths, cost(lengths), 2, LIMIT)
    with pytest.raises(InputError):
        balance("pool", lengths, cost(lengths), 2, 2000)
