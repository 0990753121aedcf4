"""What is remembered is what would be found anew, for these lists alone, and no more of it than is small."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from odcsim import balance
from odcsim.balance.lb_micro import equal_counts
from odcsim.balance.lb_mini import free_counts
from odcsim.heuristics.remembered import LARGEST, MOST, remembered

WEIGHTS = st.lists(st.floats(0.1, 9.0), min_size=1, max_size=24).map(lambda weights: sorted(weights, reverse=True))


@given(WEIGHTS, st.integers(1, 8))
def test_a_remembered_split_is_the_one_found_anew(weights, devices):
    for split in (equal_counts, free_counts):
        assert split(list(weights), devices) == split(list(weights), devices) == split.__wrapped__(weights, devices)


@given(WEIGHTS, st.integers(1, 8))
def test_no_balancer_changes_what_others_are_given(weights, devices):
    lengths, seconds = np.full(len(weights), 10), np.array(weights)
    before = [split(list(weights), devices) for split in (equal_counts, free_counts)]
    kept = [[list(group) for group in groups] for groups in before]
    for each in balance.BALANCERS:
        if not each.queue and not each.gangs:
            balance.balance(each.name, lengths, seconds, devices, 30)
    balance.pooled(lengths, seconds, devices, 30)
    assert kept == [split(list(weights), devices) for split in (equal_counts, free_counts)] == before


def test_other_lists_and_other_numbers_are_found_by_themselves():
    asked = []
    split = remembered(lambda *given: asked.append(given) or [given])
    for weights, devices in (([2.0, 1.0], 1), ([2.0, 1.0], 2), ([2.0, 1.5], 1), ([2.0, 1.0], 1)):
        assert split(weights, devices) == [(weights, devices)]
    assert asked == [([2.0, 1.0], 1), ([2.0, 1.0], 2), ([2.0, 1.5], 1)]


def test_a_large_minibatch_is_not_kept():
    asked = []
    split = remembered(lambda weights: asked.append(len(weights)) or [])
    for many in (LARGEST + 1, LARGEST + 1, LARGEST, LARGEST):
        split([1.0] * many)
    assert asked == [LARGEST + 1, LARGEST + 1, LARGEST]


def test_the_oldest_are_forgotten_and_what_was_just_asked_for_is_kept():
    asked = []
    split = remembered(lambda _, number: asked.append(number) or [number])
    room = MOST // LARGEST
    for number in (*range(room), 0, room, 0, 1):  # 0 was asked for again before there was no room for all
        assert split([1.0] * LARGEST, number) == [number]
    assert asked == [*range(room), room, 1]
