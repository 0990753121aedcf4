"""Balancers and rows of other trainers: what each says that it does, and what every plan has to keep."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import plain_rows
from hypothesis import given
from hypothesis import strategies as st

from odcsim.balance import NAMES
from odcsim.balance.balancer import Work
from odcsim.decide import stock
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare, pairs
from odcsim.neighbours import FIELD, TRAINERS, nemo_rl, torchtitan, trl, verl
from odcsim.neighbours.axolotl import MOST
from odcsim.neighbours.packing import best_fit, first_fit, in_order, knapsacks
from odcsim.program import SYNC_TABLE
from odcsim.trace import Trace

LIMIT = 12  # of lengths that often fit exactly
LENGTHS = st.lists(st.integers(1, LIMIT), min_size=1, max_size=40)
LONGER = st.lists(st.integers(1, 500), min_size=1, max_size=40)


def work(lengths, devices, more):
    return Work(np.array(lengths), np.array(lengths, float), devices, max(lengths) + more)


WORKS = st.builds(work, LONGER, st.integers(1, 6), st.integers(0, 800))


@given(LENGTHS, st.integers(1, 4))
def test_rows_are_those_of_the_plain_rules(lengths, most):
    assert best_fit(lengths, LIMIT) == plain_rows.best_fit(lengths, LIMIT)
    assert first_fit(lengths, LIMIT, most) == plain_rows.first_fit(lengths, LIMIT, most)
    assert in_order(lengths, LIMIT) == plain_rows.in_turn(lengths, LIMIT)
    mine, theirs = (rule(lengths, LIMIT) for rule in (knapsacks, plain_rows.knapsacks))
    assert [[lengths[i] for i in row] for row in mine] == [[lengths[i] for i in row] for row in theirs]


def test_rows_are_packed_of_a_thousand_samples_at_once_and_have_no_more_than_they_allow():
    trace = stock.packed(Trace("t", np.arange(2500) + 1), TRAINERS["trl"].rules[0], 9000, 0, in_order=True)
    for bundle in np.unique(trace.bundle):
        assert len({(length - 1) // 1000 for length in trace.lengths[trace.bundle == bundle]}) == 1
    trace = stock.packed(Trace("t", np.ones(900, dtype=np.int64)), TRAINERS["axolotl"].rules[0], 4000, 0)
    assert np.bincount(trace.bundle).max() == MOST == 200


@given(WORKS)
def test_what_each_of_them_keeps(of):
    """verl gives devices as many samples, NeMo RL runs its largest first, torchtitan's rows of like squares meet."""
    for balancer in FIELD:
        devices = balancer.assign(of).devices
        assert len(devices) == of.devices, balancer.name
        assert sorted(i for device in devices for row in device for i in row) == list(range(len(of.tokens)))
        assert max(sum(of.tokens[i] for i in row) for device in devices for row in device) <= of.max_tokens
        assert len({len(device) for device in devices}) == 1, balancer.name
    counts = [sum(map(len, device)) for device in verl.deal(of).slots]
    assert max(counts) - min(counts) <= 1
    for device in nemo_rl.deal(of).slots:
        tokens = [sum(of.tokens[i] for i in row) for row in device]
        assert tokens == sorted(tokens, reverse=True)
    slots = torchtitan.deal(of).slots
    squares = [[sum(int(of.tokens[i]) ** 2 for i in row) for row in device] for device in slots]
    assert all(min(step) >= max(after) for step, after in pairwise(zip(*squares, strict=True)))


def test_verl_weighs_by_its_constants_and_trl_fills_rows_in_order_of_arrival():
    """By tokens 3 + 1 against 2 + 2 are even; by verl's constants the long one is heavier than both others."""
    long = 3 * 24_576
    [one, other] = verl.deal(work([long, 24_576, 2 * 24_576, 2 * 24_576], 2, 10**6)).slots
    assert sorted(map(sorted, [one[0], other[0]])) == [[0, 1], [2, 3]]
    assert trl.deal(work([5, 3, 3, 4, 6], 2, 4)).slots == [[[0], [4]], [[1, 2, 3], []]]


def test_they_are_rows_where_somebody_asks():
    setting = ask("azure-chat", "qwen2.5-1.5b", gpu="h100", devices=2, minibatch=4, minibatches=2, max_tokens=16384)
    more = set(pairs(replace(setting, field=True))) - set(pairs(setting))
    assert more == {(b.name, sync) for b in FIELD for sync in ("collective", "deferred", "on-demand")}
    assert all(b.suits(SYNC_TABLE["collective"]) for b in FIELD)
    assert not {b.name for b in FIELD} & set(NAMES)
    assert more <= {row.pair for row in compare(replace(setting, field=True)).rows}
