"""What an advice rests on: every way fits, the best is the best of those tried, and money follows from hours."""

import re
from dataclasses import replace

import numpy as np
import pytest

from odcsim import Trace, catalog
from odcsim import profile as profiles
from odcsim.catalog import fits
from odcsim.decide import calibrate, room, search
from odcsim.decide.advice import Wish, offer, searched
from odcsim.decide.asking import setting_of
from odcsim.question import FIELDS, Question
from odcsim.recipe import RECOMPUTE, recipe_of
from odcsim.results import capacity

LENGTHS = np.minimum(np.random.default_rng(0).lognormal(7.3, 0.9, 2000), 8192).astype(np.int64) + 1
ASKED = Question(trace=Trace("chat", LENGTHS), model="qwen2.5-1.5b", global_batch=32, epochs=3, minibatches=3)
WISH = Wish(ASKED, ("h100", "a100"), (4, 8), {"h100": 2.5, "a100": 1.3})


@pytest.fixture(scope="module")
def advice():
    return searched(WISH)


def wished(**change) -> Wish:
    """The same with something changed, of the question or beside it."""
    asked = {name: value for name, value in change.items() if name in FIELDS and name != "devices"}
    return replace(WISH, question=replace(ASKED, **asked), **{n: v for n, v in change.items() if n not in asked})


def test_the_cheapest_is_first(advice):
    """That hours and dollars are a comparison's is a law of all doors."""
    paid = [one.dollars for one in advice.offers]
    assert len(paid) == 4
    assert paid == sorted(paid)
    assert offer(WISH, "a100", 8).as_json() in [one.as_json() for one in advice.offers]


def test_of_several_batches_each_has_the_offers_that_it_has_alone():
    both = searched(replace(wished(minibatches=2), devices=(4, 6), batches=(16, 30)))
    assert [(one.devices, one.batch) for one in both.refused] == [(4, 30), (6, 16)] * 2
    for one in both.offers:
        alone = offer(wished(minibatches=2, global_batch=one.batch), one.gpu, one.devices)
        assert one.as_json() == alone.as_json()
    assert both.as_json()["inputs"]["global_batch"] == [16, 30]
    assert both.rent.dollars == min(one.dollars for one in both.offers)


def test_what_would_be_within_both_is(advice):
    """Each deadline and budget that is said to work finds something to rent."""
    fastest, cheapest = min(o.seconds for o in advice.offers), min(o.dollars for o in advice.offers)
    for limits in ({"deadline": fastest / 2}, {"budget": cheapest / 2}, {"deadline": fastest / 2, "budget": 1e6}):
        assert replace(advice, wish=replace(WISH, **limits)).rent is None
    for limits in ({"deadline": fastest}, {"budget": cheapest}):
        assert replace(advice, wish=replace(WISH, **limits)).rent


def test_prices_are_of_gpus_in_whatever_case():
    wish = replace(wished(minibatches=2), gpus=("H100", "a100"), prices={"h100": 2.5, "A100": 1.3})
    assert wish.prices == {"H100": 2.5, "a100": 1.3}
    assert offer(wish, "H100", 4).dollars


def test_a_cutoff_of_few_samples_that_makes_room_does_so():
    """With it, what memory forbade fits, and the run is so much faster."""
    lengths = np.append(LENGTHS, [60_000] * 2)
    outlier = replace(ASKED, trace=Trace("one long", lengths), model="llama-3.1-8b", minibatches=12)
    wish = replace(WISH, question=outlier, gpus=("h100",), devices=(8,), prices={})
    one = offer(wish, "h100", 8)
    cutoff = int(re.search(r"--truncate (\d+) \(", "\n".join(searched(wish).sentences()))[1])
    kept = one.kept_out
    assert capacity.level(kept.need) == capacity.OVER
    assert room.needed(kept.way.cost, cutoff, cutoff).total <= capacity.filled(kept.need.memory_limit)
    cut = replace(outlier, trace=Trace("cut", lengths.clip(0, cutoff)))
    assert offer(replace(wish, question=cut), "h100", 8).seconds * 1.02 <= one.seconds


def test_what_idles_is_counted():
    """One sample is half of a step: more than a few devices have nothing to do."""
    wish = wished(trace=Trace("one long", np.array([30_000, *[500] * 63])), global_batch=64, prices={})
    one = offer(wish, "h100", 64)
    assert one.as_json()["idle"] == one.row.idle > 0.8
    assert one.as_json()["mfu"] == one.row.mfu < 0.01
    site = search.site(wish.on("h100", 64))
    weights = site.plans.draw(one.chosen.way.setting)[0].weights
    assert one.row.busy == pytest.approx(weights.sum() / weights.max())


# Seconds of a profile go to the kind of GPU that they were measured on, and to no other.


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Half as fast as is said of an H100."""
    run = calibrate.Simulated(setting_of(replace(ASKED, gpu="h100", devices=8)), ("lb-micro", "collective"))
    file = tmp_path_factory.mktemp("profiles") / "h100.json"
    profiles.write(calibrate.by_rate(run, run.rate / 2).profile(), file)
    return str(file)


def test_its_own_kind_has_its_seconds_and_others_have_the_catalogs(path):
    wish = wished(gpus=("h100", "a100"), devices=(8,), prices={})
    measured, usual = (searched(replace(wish, question=replace(ASKED, profile=of))) for of in (path, None))
    mine, theirs = ({offer.gpu: offer for offer in of.offers} for of in (measured, usual))
    assert mine["h100"].seconds > 1.5 * theirs["h100"].seconds
    assert mine["a100"].as_json() == theirs["a100"].as_json()
    assert measured.as_json()["inputs"]["profile"] == path


@pytest.mark.parametrize("again", RECOMPUTE)
def test_other_recompute_is_the_factor_on_what_is_estimated(path, again):
    """So that an advice compares two kinds of GPUs by as many ways to run."""
    recipe, model, gpu = recipe_of({"recompute": again}), catalog.model("qwen2.5-1.5b"), catalog.gpu("h100")
    known, found = profiles.read(path), fits.profile_for(model, gpu, 8, path, recipe)
    wanted = fits.estimate(model, gpu, 8, recipe).stretched(known.factor)
    assert (found.forward, found.backward, found.head) == (wanted.forward, wanted.backward, wanted.head)
    assert found.fidelity == ("scaled" if again == "full" else "extrapolated")
    assert (found.low < known.low, found.high > known.high) == (again != "full",) * 2
