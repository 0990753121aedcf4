"""A profile for a model of another size: what follows what, and how far off the guess is where it can be checked."""

from dataclasses import replace

import numpy as np
import pytest

from odcsim import catalog
from odcsim.catalog import fits
from odcsim.catalog.estimates.scaling import WIDER, scaled
from odcsim.cost import Cost
from odcsim.decide.setting import cost_of
from odcsim.profile import Passes, Polynomial, Profile, Timing

SMALL, LARGE = (catalog.model(f"r1-distill-qwen-{size}") for size in ("1.5b", "7b"))
SOME = Profile(
    SMALL.name, "a100", "calibrated", "measured", low=0.9, high=1.1, overhead=0.5, optimizer=0.1, publish=0.05,
    forward=Polynomial(1e-3, 1e-6, 1e-10, 1e-4), backward=Polynomial(2e-3, 3e-6, 3e-10, 1e-4),
    head=Polynomial(1e-3, 1e-6), embed=Polynomial(1e-4, 1e-8),
    timings=(Timing("gather", 8, 1e-4, 1e-10), Timing("publish", 8, 0.2), Timing("meeting", 8, 1e-5)),
    kept=Passes(Polynomial(1e-3, 2e-6, 1e-10, 1e-4), Polynomial(2e-3, 3e-6, 2e-10, 3e-4)),
)  # fmt: skip


def seconds(model, profile, tokens):
    return Cost(model, profile, cost_of(model.name, "a100", None, 8).cluster).sample_seconds(np.array(tokens))


def test_a_scaled_published_fit_keeps_the_other_published_fit_in_its_range():
    """The only two models of one family, measured on one GPU by one code, whose fits are published."""
    tokens = [4096, 16384, 65536]
    for known, wanted in ((SMALL, LARGE), (LARGE, SMALL)):
        guess = scaled(fits.published(known.name, "a100"), known, wanted)
        ratio = seconds(wanted, guess, tokens) / seconds(wanted, fits.published(wanted.name, "a100"), tokens)
        assert np.all((ratio > 1 / WIDER) & (ratio < WIDER)), ratio
        assert np.abs(np.log(ratio)).max() > np.log(1.1), "the range would be wider than it need be"


def test_to_its_own_size_nothing_changes_but_the_trust_there_and_back_too():
    same, back = scaled(SOME, SMALL, SMALL), scaled(scaled(SOME, SMALL, LARGE), LARGE, SMALL)
    wider = {"low": SOME.low / WIDER, "high": SOME.high * WIDER}
    assert same == replace(SOME, fidelity="extrapolated", origin=same.origin, **wider)
    for name in ("forward", "backward", "head", "embed"):
        mine, wanted = getattr(back, name), getattr(SOME, name)
        assert (mine.linear, mine.quadratic) == pytest.approx((wanted.linear, wanted.quadratic))
    assert (back.overhead, back.optimizer, back.publish) == pytest.approx((0.5, 0.1, 0.05))


def test_what_follows_what():
    large = scaled(SOME, SMALL, LARGE)
    matmuls = LARGE.layer_matmul_parameters / SMALL.layer_matmul_parameters
    for mine, its in ((large, SOME), (large.kept, SOME.kept)):
        for fit, known in ((mine.forward, its.forward), (mine.backward, its.backward)):
            assert fit.linear / known.linear == pytest.approx(matmuls)
            assert fit.quadratic / known.quadratic == pytest.approx(LARGE.heads / SMALL.heads)
            assert (fit.constant, fit.sample) == (known.constant, known.sample)
    gather, publish, meeting = large.timings
    assert (gather, meeting) == (SOME.timings[0], SOME.timings[2])  # a byte takes what it took
    assert publish.constant == pytest.approx(0.2 * LARGE.parameters / SMALL.parameters)
