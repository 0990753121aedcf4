"""The token limit of drawn questions against every limit that there is, each planned and timed by itself."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from odcsim import Trace, ask, compare, plan
from odcsim.balance import standing_for
from odcsim.decide import limit, room
from odcsim.decide.decision import decide
from odcsim.executors.simulation import makespans
from odcsim.results import capacity
from odcsim.say.comparison_words import sentences

MODELS = ("qwen3-0.6b", "qwen2.5-1.5b", "qwen2.5-7b")
SIDES = ("collective", "on-demand")
CHAT = Trace("chat", np.minimum(np.random.default_rng(1).lognormal(7.3, 0.9, 4000), 8192).astype(np.int64) + 1)
H100 = {"gpu": "h100", "devices": 16, "minibatch": 4, "minibatches": 8}


def drawn(seed):
    """A question, on GPUs that have room for a drawn microbatch of one of the sides to the byte."""
    rng = np.random.default_rng(seed)
    devices, minibatch = int(rng.integers(2, 4)), int(rng.integers(2, 9))
    lengths = np.clip(rng.lognormal(rng.uniform(5, 8), 0.8, 24), 16, 9000).astype(np.int64)
    asked = {"gpu": "h100", "devices": devices, "minibatch": minibatch, "minibatches": 2, "max_tokens": 0}
    setting = ask(Trace("drawn", lengths), MODELS[seed % 3], **asked)
    held = int(rng.integers(int(0.9 * lengths.max()), int(2 * lengths.mean() * minibatch + lengths.max())))
    memory = needed(setting, SIDES[rng.integers(2)], held) / 0.92
    cluster = replace(setting.cost.cluster, memory_bytes=memory)
    return replace(setting, cost=replace(setting.cost, cluster=cluster))


def needed(setting, side, tokens):
    return room.needed(room.under(setting.cost, side), tokens, setting.trace.longest).total


@pytest.mark.parametrize("seed", range(40))
def test_the_fullest_microbatch_is_the_last_of_all_that_fit(seed):
    setting, most = drawn(seed), 200
    cost, longest = setting.cost, setting.trace.longest
    memory = room.needed(cost, 5 * seed, longest).total
    every = [tokens for tokens in range(1, most + 1) if room.needed(cost, tokens, longest).total <= memory]
    assert room.fullest(cost, longest, memory, most) == max(every, default=0)


@pytest.mark.parametrize("seed", range(60))
def test_limits_go_from_the_longest_sample_to_the_last_that_fits_both_sides(seed):
    setting = drawn(seed)
    longest, tried = setting.trace.longest, limit.limits(setting)

    def fits(side, tokens):
        return needed(setting, side, tokens) <= 0.92 * setting.cost.cluster.memory_bytes * (1 + 1e-12)

    sides = [side for side in SIDES if fits(side, longest)]
    if not sides:
        assert tried == ()
        return
    assert tried[0] == longest
    assert all(fits(side, tokens) for tokens in tried for side in sides)
    useful = max(longest, 1.5 * setting.trace.mean * setting.minibatch)  # half as much again as a device's samples
    further = tried[-1] + (1 if tried[-1] + 1 < 4096 else 1024)
    assert further > useful or not all(fits(side, further) for side in sides)
    assert all(after <= 1.4 * (before + (1 if before < 4096 else 1024)) for before, after in pairwise(tried))
    assert room.limits(longest, longest, 1e9) == (longest,)
    assert room.limits(longest, longest - 1, 1e9) == ()


@pytest.mark.parametrize("seed", range(12))
def test_neither_side_loses_more_than_it_has_to(seed):
    """Of what its best balancer takes at each limit."""
    setting = drawn(seed)
    tried = limit.limits(setting)
    every = limit.seconds(setting, tried) if tried else []
    for side, found in zip(SIDES, every, strict=False):
        cost = room.under(setting.cost, side)
        for at, seconds in zip(tried, found, strict=True):
            plans = [plan(replace(setting, max_tokens=at), name) for name in standing_for(side)]
            assert seconds == pytest.approx(min(makespans(one.schedules, cost.calm).sum() for one in plans))
    least_loss(setting, tried, every)


def least_loss(setting, tried, seconds):
    """The most that a side loses over its own best limit is the least there is; of limits as good, the smallest."""
    found = limit.choose(setting)
    if len(tried) < 2:
        assert found == setting
        return
    lost = {at: max(side[i] / min(side) for side in seconds) for i, at in enumerate(tried)}
    good = [at for at in tried if lost[at] <= 1.003 * min(lost.values())]
    assert (found.max_tokens, found.limits_tried) == (good[0], len(tried))


@pytest.mark.parametrize("seed", range(60))
def test_so_it_is_whatever_the_seconds_are(seed, monkeypatch):
    rng, setting = np.random.default_rng(seed), drawn(0)
    tried = tuple(range(100, 100 + int(rng.integers(1, 7))))
    seconds = [rng.choice([1, 1.001, 1.002, 1.01, 1.2], len(tried)).tolist() for _ in SIDES]
    monkeypatch.setattr(limit, "limits", lambda _: tried)
    monkeypatch.setattr(limit, "seconds", lambda *_, **__: seconds)
    least_loss(setting, tried, seconds)


def test_a_limit_that_was_given_stays_and_one_sample_that_fills_a_device_leaves_no_choice():
    for given in (0, 8193, 20_000):
        assert ask(CHAT, "qwen3-8b", **H100, max_tokens=given).max_tokens == given
    asked = ask(CHAT, "llama-3.1-70b", gpu="h100", devices=8, minibatch=4, minibatches=2)
    assert (asked.max_tokens, asked.limits_tried, asked.limit) == (0, 0, CHAT.longest)


def test_many_samples_of_a_device_are_searched_as_well_by_fewer_minibatches(monkeypatch):
    """Neither side loses anything to speak of by the quicker search, and each limit of a side is told once."""
    rough = ask(CHAT, "qwen3-0.6b", gpu="h100", devices=2, minibatch=4 * limit.MANY, minibatches=2, max_tokens=0)
    done = []
    quick = limit.choose(rough, advance=lambda: done.append(1))
    assert len(done) == len(SIDES) * quick.limits_tried > 4
    monkeypatch.setattr(limit, "MANY", 10**9)
    slow = limit.choose(rough)
    for ours, best in zip(*(limit.seconds(one, [one.max_tokens]) for one in (quick, slow)), strict=True):
        assert ours[0] <= 1.003 * best[0]


def test_a_longest_sample_that_was_not_drawn_is_told_of():
    """Each drawn row fits, and a way out is said all the same."""
    one_long = Trace("one long", np.append(CHAT.lengths, 60_000))
    found = compare(ask(one_long, "llama-3.1-8b", gpu="h100", devices=4, minibatch=4, minibatches=2))
    reply = decide(found)
    assert capacity.level(reply.chosen) == capacity.FITS
    assert any("--truncate" in said for said in sentences(found, reply))
