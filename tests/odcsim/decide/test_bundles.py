"""Samples that stay together: pairs, and rows that are packed before training."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import InputError, Trace, ask, balance, compare, plan
from odcsim.decide.evaluate import evaluate
from odcsim.decide.remedies import remedies
from odcsim.decide.setting import drawn
from odcsim.decide.whole_run import steps
from odcsim.reading import limits

WORDS = {"gpu": "h100", "devices": 4, "minibatch": 3, "minibatches": 4}


def paired(sizes: list[int], lengths: list[int]) -> Trace:
    bundle = np.repeat(np.arange(len(sizes)), sizes)
    return Trace("bundles", np.array(lengths[: len(bundle)]), bundle=bundle)


@st.composite
def traces(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=12, max_size=30))
    lengths = draw(st.lists(st.integers(1, 3000), min_size=sum(sizes), max_size=sum(sizes)))
    return paired(sizes, lengths)


@given(traces(), st.integers(0, 5))
def test_every_minibatch_has_whole_bundles(trace, seed):
    for ids in trace.minibatches(12, 3, seed=seed):
        starts = trace.starts(ids)
        assert len(starts) == 12
        numbers = trace.bundle[ids[starts]]
        assert np.array_equal(np.concatenate([np.flatnonzero(trace.bundle == n) for n in numbers]), ids)


@pytest.mark.parametrize("name", balance.ALL)
@given(trace=traces())
def test_what_stays_together_is_in_one_microbatch(name, trace):
    setting = ask(trace, "nano", max_tokens=trace.fullest + 500, **WORDS)
    for schedule in plan(setting, name).schedules:
        held = {i: number for number, mb in enumerate(schedule.contents()) for i in mb}
        assert sorted(held) == list(range(len(schedule.lengths)))
        bundles = trace.bundle[np.array(schedule.samples)]
        for bundle in np.unique(bundles):
            assert len({held[i] for i in np.flatnonzero(bundles == bundle)}) == 1
        assert schedule.fullest <= setting.limit


def test_units_of_one_are_samples():
    lengths = np.arange(1, 200) * 7 % 900 + 1
    alone, together = Trace("a", lengths), Trace("a", lengths, bundle=np.arange(199))
    found = [compare(ask(trace, "nano", **WORDS)).rows for trace in (alone, together)]
    assert found[0] == found[1]


def test_attention_is_that_of_each_sample_and_not_of_the_bundle():
    """Two samples of a bundle cost what they cost in a microbatch of a plan without bundles."""
    trace = paired([2] * 12, [4000] * 24)
    setting = ask(trace, "nano", max_tokens=8000, **WORDS)
    linear, quadratic = (of.sum() for of in setting.cost.sample_parts(trace.lengths[:2]))
    first = drawn(setting)[0]
    assert first.weights[0] == pytest.approx(linear + quadratic)
    row = evaluate(setting, [("native", "collective")]).rows[0]
    samples = replace(setting, trace=Trace("s", trace.lengths), minibatch=6)
    by_hand = evaluate(samples, [("lb-micro", "collective")]).rows[0]
    assert row.makespan_seconds == pytest.approx(by_hand.makespan_seconds)


def test_steps_count_bundles_and_dropping_leaves_no_half_of_one():
    assert steps(paired([2] * 24, [5] * 48), 3, 4) == 18
    assert limits.without(paired([2, 2, 2], [5, 9, 5, 5, 7, 1]), 6).lengths.tolist() == [5, 5]


def test_a_bundle_in_two_places_is_refused():
    for more in ({"bundle": np.array([1, 2, 1])}, {"bundle": np.array([1, 2, 2]), "counts": np.array([1, 2, 1])}):
        with pytest.raises(InputError):
            Trace("a", np.array([1, 2, 3]), **more)


def test_of_tokens_that_carry_loss_in_a_sample_far_too_long_a_cutoff_is_said():
    lengths = np.array([9, 1_000_000_000, 9, 12, 9, 30, 9, 12])
    trace = Trace("a", lengths, loss=lengths - 9, bundle=np.repeat(np.arange(4), 2))
    setting = ask(trace, "qwen3-8b", gpu="a100", devices=2, minibatch=1, minibatches=1)
    assert any("--truncate" in way for way in remedies(setting))
