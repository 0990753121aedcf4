"""Rows that trainers pack, beside the same rules said in the plainest way: of lengths that often fit exactly."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from odcsim.decide import stock
from odcsim.neighbours import TRAINERS
from odcsim.neighbours.axolotl import MOST
from odcsim.neighbours.rows import best_fit, first_fit, in_order, knapsacks
from odcsim.trace import Trace

LIMIT = 12
LENGTHS = st.lists(st.integers(1, LIMIT), min_size=1, max_size=40)


@given(LENGTHS)
def test_best_fit_is_into_the_fullest_row_with_room_and_the_oldest_of_those(lengths):
    rows, left, since = [], [], []
    for at, i in enumerate(sorted(range(len(lengths)), key=lambda i: -lengths[i])):
        room = [(left[r], since[r], r) for r in range(len(rows)) if left[r] >= lengths[i]]
        row = min(room)[2] if room else len(rows)
        if not room:
            rows, left, since = [*rows, []], [*left, LIMIT], [*since, 0]
        rows[row].append(i)
        left[row] -= lengths[i]
        since[row] = at
    assert best_fit(lengths, LIMIT) == rows


@given(LENGTHS, st.integers(1, 4))
def test_first_fit_is_into_the_first_row_with_room_and_of_so_few_samples(lengths, most):
    rows = []
    for i, length in enumerate(lengths):
        held = next((row for row in rows if sum(lengths[j] for j in row) + length <= LIMIT and len(row) < most), None)
        if held is None:
            rows.append([i])
        else:
            held.append(i)
    assert first_fit(lengths, LIMIT, most) == rows


@given(LENGTHS)
def test_a_knapsack_takes_the_longest_that_still_fits(lengths):
    rows, waiting = [], list(range(len(lengths)))
    while waiting:
        row = []
        while fitting := [i for i in waiting if sum(lengths[j] for j in row) + lengths[i] <= LIMIT]:
            row.append(max(fitting, key=lambda i: (lengths[i], i)))
            waiting.remove(row[-1])
        rows.append(row)
    assert [[lengths[i] for i in row] for row in knapsacks(lengths, LIMIT)] == [
        [lengths[i] for i in row] for row in rows
    ]


@given(LENGTHS)
def test_a_row_in_order_is_closed_when_the_next_does_not_fit(lengths):
    rows = [[0]]
    for i, length in enumerate(lengths[1:], 1):
        if sum(lengths[j] for j in rows[-1]) + length > LIMIT:
            rows.append([])
        rows[-1].append(i)
    assert in_order(lengths, LIMIT) == rows


def test_rows_are_packed_of_a_thousand_samples_at_once():
    rule = TRAINERS["trl"].own[0]
    trace = stock.packed(Trace("t", np.arange(2500) + 1), rule, 9000, 0, in_order=True)
    assert rule.group == 1000
    parts = {
        bundle: {(length - 1) // 1000 for length in trace.lengths[trace.bundle == bundle]} for bundle in trace.bundle
    }
    assert all(len(thousands) == 1 for thousands in parts.values())


def test_a_row_of_axolotl_has_no_more_samples_than_it_allows():
    trace = stock.packed(Trace("t", np.ones(900, dtype=np.int64)), TRAINERS["axolotl"].own[0], 4000, 0)
    assert np.bincount(trace.bundle).max() == MOST == 200
