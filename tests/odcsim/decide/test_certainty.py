"""What answers say of one minibatch, of equal lengths in a queue, of a smaller loss, and of few far minibatches."""

from dataclasses import replace

import numpy as np

import odcsim
from odcsim.catalog import fits
from odcsim.decide import answer_words, remedies
from odcsim.decide.evaluate import least_trusted
from odcsim.profile import Timing
from odcsim.results.intervals import apart, interval

ALIKE = {"model": "r1-distill-qwen-1.5b", "gpu": "a100", "devices": 8, "minibatch": 4, "minibatches": 2}


def test_a_queue_of_equal_lengths_is_none():
    asked = odcsim.ask("fixed:length=4096", max_tokens=16_384, **ALIKE)
    idle = {row.balancer: row.idle for row in odcsim.compare(asked).rows if row.sync == "on-demand"}
    assert idle["pool"] < 1e-3


def test_one_minibatch_tells_no_interval():
    asked = odcsim.ask("longalign", max_tokens=65_536, **{**ALIKE, "minibatches": 1})
    row = odcsim.compare(asked).row("lb-mini", "on-demand")
    assert answer_words.interval(row) == "no interval from one minibatch"


def test_a_smaller_loss_is_a_way_out_where_logits_do_not_fit():
    asked = odcsim.ask("fixed:length=65536", "qwen3-8b", gpu="h100", devices=8, minibatch=1, loss="whole")
    assert any(words.startswith("--loss chunked") for words in remedies.remedies(asked))


def test_a_mean_is_not_further_off_than_twice_the_farthest_that_was_met():
    above, below = np.array([1.0, 3.0]), np.array([1.0, 1.0])
    low, high = interval(above, below, apart(2))
    assert 2 * np.exp(-1.0) <= low < 2 < high <= 2 * np.exp(1.0)  # each is half of the mean off


def test_rows_of_a_fit_and_of_the_catalogue_are_the_fits():
    assert least_trusted(["catalogue", "published fit"]) == "published fit"
    assert least_trusted(["catalogue", "catalogue"]) == "catalogue"
    assert least_trusted(["catalogue", "extrapolated"]) == "extrapolated"


def test_a_derived_profile_says_that_its_own_seconds_were_measured():
    asked = odcsim.ask("fixed:length=64", max_tokens=64, **ALIKE).cost.profile
    measured = odcsim.ask("fixed:length=64", "qwen3-0.6b", gpu="h100", devices=2, minibatch=1).cost.profile
    assert fits.own_origin(asked) == "none known"
    timed = replace(measured, fidelity="extrapolated", timings=(Timing("settle", 2, 1e-3, 0.0),))
    assert fits.own_origin(timed) == "measured with the profile"
    assert fits.own_origin(replace(measured, fidelity="calibrated", publish=0.02)) == "given in the profile"
