"""A fit that passes into the catalogue's seconds: the same at every door that takes its profile on."""

from dataclasses import replace

import numpy as np
import pytest

from odcsim import catalog, profile
from odcsim.catalog import fits
from odcsim.catalog.estimates.scaling import scaled
from odcsim.decide.rollouts.whole import forward
from odcsim.decide.setting import cost_of
from odcsim.executors import quick
from odcsim.executors.simulation import Simulation, fidelity, stretched, usage
from odcsim.profile import Polynomial
from odcsim.recipe import USUAL
from odcsim.schedule import Schedule

MODEL, GPU, DEVICES = "qwen2.5-1.5b", "a100", 8
LENGTHS = (300, 2000, 7000, 10_000, 15_000, 17_000, 40_000)
PLAN = tuple(((2 * d,), (2 * d + 1,)) for d in range(DEVICES))
SCHEDULES = [Schedule((n, n // 2) * DEVICES, PLAN) for n in LENGTHS]
BUSY = np.array(LENGTHS) >= 2000  # else a node's transfers take longer than what is computed beside them
JOINED = cost_of(MODEL, GPU, None, DEVICES)


def spent(cost, executor="analytic"):
    return usage(SCHEDULES, Simulation(cost, executor=executor)).makespan


@pytest.fixture
def saved(tmp_path):
    profile.write(JOINED.profile, tmp_path / "joined.profile")
    return str(tmp_path / "joined.profile")


def test_it_is_joined_and_says_so(saved):
    """A saved one is the same; what nobody knows below is extrapolated."""
    half, fewest = JOINED.profile.fewest // 2, 16_384
    assert (JOINED.profile.joined, half) == (True, fewest // 2)
    short = [Schedule((n, n // 2) * DEVICES, PLAN) for n in (half, half // 2)]
    assert (fidelity(JOINED, SCHEDULES), fidelity(JOINED, short)) == ("published fit", "catalogue")
    assert fidelity(JOINED, [*short, Schedule((half + 1,) * 16, PLAN)]) == "published fit"
    guess = fits.estimate(JOINED.model, catalog.gpu(GPU), DEVICES)
    assert (JOINED.profile.low, JOINED.profile.high) == (min(0.9, guess.low), max(1.1, guess.high))
    assert profile.read(saved) == JOINED.profile
    np.testing.assert_array_equal(spent(cost_of(MODEL, GPU, saved, DEVICES)), spent(JOINED))
    alone = replace(JOINED, profile=fits.published("r1-distill-qwen-1.5b", GPU))
    fewest = alone.profile.fewest
    for tokens, known in ((fewest, "published fit"), (fewest - 1, "extrapolated")):
        assert fidelity(alone, [Schedule((fewest, tokens), (((0,),), ((1,),)))]) == known


def test_executors_agree_and_the_interval_stretches_both_parts():
    usual = spent(JOINED)
    np.testing.assert_array_equal(spent(JOINED, "des"), usual)
    np.testing.assert_allclose(quick.seconds(JOINED, SCHEDULES), usual, rtol=0.02)
    low, high = stretched(SCHEDULES, Simulation(JOINED, executor="analytic"), (0.5, 2.0))
    assert ((low < usual) & (usual < high)).all()
    np.testing.assert_allclose(high[BUSY], 2 * usual[BUSY], rtol=0.05)


def test_without_recompute_the_catalogues_part_has_none_either(saved):
    """Derived by FLOPs from a saved one, and as the catalogue says where it is at hand."""
    costs = [cost_of(MODEL, GPU, path, DEVICES, recipe=USUAL.by(recompute="none")) for path in (saved, None)]
    derived, direct = map(spent, costs)
    np.testing.assert_allclose(derived, direct, rtol=0.06)
    assert all((one < 0.9 * spent(JOINED))[BUSY].all() for one in (derived, direct))


def test_another_model_has_both_parts_scaled(saved):
    """Twice the layers of a model: twice the seconds, wherever there is no head."""
    small = JOINED.model
    twice = replace(small, name="twice", layers=2 * small.layers)
    none = replace(JOINED.profile, head=Polynomial(), below=replace(JOINED.profile.below, head=Polynomial()))
    both = replace(JOINED, profile=none), replace(JOINED, model=twice, profile=scaled(none, small, twice))
    once, grown = (usage(SCHEDULES, Simulation(cost, executor="analytic")).compute for cost in both)
    np.testing.assert_allclose(grown, 2 * once, rtol=0.05)  # embeddings and roots stay
    assert cost_of("qwen2.5-3b", None, saved, DEVICES).profile.below != JOINED.profile.below


def test_a_pass_without_backward_passes_into_the_catalogue_too():
    guess = replace(JOINED, profile=fits.estimate(JOINED.model, catalog.gpu(GPU), DEVICES))
    for length in (300, 2000, 8000):
        schedules = [Schedule((length,) * DEVICES, tuple(((d,),) for d in range(DEVICES)))]
        mine, theirs = (forward(cost, "collective", schedules, 1)[0] for cost in (JOINED, guess))
        assert mine == pytest.approx(theirs, rel=0.15), length
