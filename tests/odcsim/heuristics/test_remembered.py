"""What is remembered is what would be found anew, for these lists alone, and no more of it than is small."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from odcsim import balance
from odcsim.balance.lb_micro import equal_counts
from odcsim.balance.lb_mini import free_counts
from odcsim.heuristics.remembered import LARGEST, MOST, remembered

WEIGHTS = st.lists(st.floats(0.1, 9.0), min_size=1, max_size=24).map(lambda drawn: np.sort(drawn)[::-1])


@given(WEIGHTS, st.integers(1, 8))
def test_a_remembered_split_is_the_one_found_anew_and_no_balancer_changes_it(weights, devices):
    lengths, splits = np.full(len(weights), 10), (equal_counts, free_counts)
    before = [split(weights, devices) for split in splits]
    for each in balance.BALANCERS:
        if not each.queue:
            balance.balance(each.name, lengths, weights, devices, 30)
    balance.pooled(lengths, weights, devices, 30)
    for split, held in zip(splits, before, strict=True):
        assert split(weights.copy(), devices) is held
        assert np.array_equal(held, split.__wrapped__(weights, devices))


def test_other_arrays_and_other_numbers_are_found_by_themselves():
    asked = []
    split = remembered(lambda weights, devices: asked.append((weights.tolist(), devices)) or [asked[-1]])
    for weights, devices in (([2.0, 1.0], 1), ([2.0, 1.0], 2), ([2.0, 1.5], 1), ([2.0, 1.0], 1)):
        assert split(np.array(weights), devices) == [(weights, devices)]
    assert asked == [([2.0, 1.0], 1), ([2.0, 1.0], 2), ([2.0, 1.5], 1)]


def test_large_minibatches_are_not_kept_and_the_oldest_are_forgotten():
    asked = []
    split = remembered(lambda weights, number: asked.append((len(weights), number)) or [number])
    for _ in range(2):
        assert split(np.ones(LARGEST + 1), 0) == [0]
    assert asked == 2 * [(LARGEST + 1, 0)]
    asked.clear()
    room = MOST // LARGEST
    for number in (*range(room), 0, room, 0, 1):  # 0 was asked for again before there was no room for all
        assert split(np.ones(LARGEST), number) == [number]
    assert [number for _, number in asked] == [*range(room), room, 1]
