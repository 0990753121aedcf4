"""Balancers of other trainers: what each says that it does, and what every plan has to keep."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.balance import FIELD, NAMES, runs_with
from odcsim.cli import main
from odcsim.decide.asking import ask
from odcsim.decide.comparison import pairs
from odcsim.heuristics.balancer import Work, assigned
from odcsim.neighbours import nemo_rl, torchtitan, trl, verl

WORKS = st.builds(
    lambda lengths, devices, more: Work(np.array(lengths), np.array(lengths, float), devices, max(lengths) + more),
    st.lists(st.integers(1, 500), min_size=1, max_size=40),
    st.integers(1, 6),
    st.integers(0, 800),
)


def work(lengths, devices, limit):
    return Work(np.array(lengths), np.array(lengths, float), devices, limit)


@pytest.mark.parametrize("balancer", FIELD, ids=lambda b: b.name)
@given(given_work=WORKS)
@settings(max_examples=60, deadline=None)
def test_every_sample_once_under_the_limit_in_equal_counts(balancer, given_work):
    devices = assigned(balancer, given_work).devices
    assert len(devices) == given_work.devices
    assert sorted(i for device in devices for row in device for i in row) == list(range(len(given_work.tokens)))
    assert max(sum(given_work.tokens[i] for i in row) for device in devices for row in device) <= given_work.max_tokens
    assert len({len(device) for device in devices}) == 1


@given(WORKS)
@settings(max_examples=60, deadline=None)
def test_verl_gives_each_device_as_many_samples(given_work):
    counts = [sum(map(len, device)) for device in verl.deal(given_work).slots]
    assert max(counts) - min(counts) <= 1


def test_verl_weighs_by_its_constants():
    """By tokens 3 + 1 against 2 + 2 are even; by its constants the long one is heavier than both others."""
    long = 3 * 24_576
    [one, other] = verl.deal(work([long, 24_576, 2 * 24_576, 2 * 24_576], 2, 10**6)).slots
    assert sorted(map(sorted, [one[0], other[0]])) == [[0, 1], [2, 3]]


def test_trl_fills_rows_in_order_of_arrival():
    [one, other] = trl.deal(work([5, 3, 3, 4, 6], 2, 10)).slots
    assert (one, other) == ([[0], [4]], [[1, 2, 3], []])


@given(WORKS)
@settings(max_examples=60, deadline=None)
def test_nemo_rl_runs_its_largest_first(given_work):
    for device in nemo_rl.deal(given_work).slots:
        tokens = [sum(given_work.tokens[i] for i in row) for row in device]
        assert tokens == sorted(tokens, reverse=True)


@given(WORKS)
@settings(max_examples=60, deadline=None)
def test_torchtitans_rows_of_like_squares_meet(given_work):
    slots = torchtitan.deal(given_work).slots
    squares = [[sum(int(given_work.tokens[i]) ** 2 for i in row) for row in device] for device in slots]
    steps = list(zip(*squares, strict=True))
    assert all(min(step) >= max(after) for step, after in pairwise(steps))


def test_they_are_rows_where_somebody_asks(capsys):
    setting = ask("azure-chat", "qwen2.5-1.5b", gpu="h100", devices=2, minibatch=4, minibatches=2, max_tokens=16384)
    more = set(pairs(replace(setting, field=True))) - set(pairs(setting))
    assert more == {(b.name, sync) for b in FIELD for sync in ("collective", "deferred", "on-demand")}
    assert all(runs_with(b.name, "collective") for b in FIELD)
    assert not {b.name for b in FIELD} & set(NAMES)
    args = "compare azure-chat --model qwen2.5-1.5b --gpu h100 --devices 2 --minibatch 4 --minibatches 2".split()
    assert main([*args, "--field"]) == 0
    printed = capsys.readouterr().out
    assert all(f" {b.name} " in printed for b in FIELD)
