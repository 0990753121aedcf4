"""Seconds of a profile go to the kind of GPU that they were measured on, and to no other."""

from dataclasses import replace

import numpy as np
import pytest

from odcsim import Trace, catalog
from odcsim import profile as profiles
from odcsim.catalog import fits
from odcsim.decide import calibrate
from odcsim.decide.advice.offers import advise
from odcsim.decide.advice.wish import Wish
from odcsim.decide.asking import setting_of
from odcsim.profile import stretched
from odcsim.question import Question
from odcsim.recipe import RECOMPUTE, recipe_of

LENGTHS = np.minimum(np.random.default_rng(0).lognormal(7, 0.6, 900), 4096).astype(np.int64) + 1
ASKED = Question(trace=Trace("chat", LENGTHS), model="qwen2.5-1.5b", global_batch=32, minibatches=3)
WAY = ("lb-micro", "collective")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Half as fast as is said of an H100."""
    run = calibrate.Simulated(setting_of(replace(ASKED, gpu="h100", devices=8)), WAY)
    file = tmp_path_factory.mktemp("profiles") / "h100.json"
    profiles.write(calibrate.by_rate(run, run.rate / 2).profile(), file)
    return str(file)


def wish(path: str | None, *gpus: str) -> Wish:
    return Wish(replace(ASKED, profile=path), gpus, (8,))


def test_its_own_kind_has_its_seconds_and_others_have_the_catalogs(path):
    measured, usual = (advise(wish(of, "h100", "a100")) for of in (path, None))
    mine, theirs = ({offer.gpu: offer for offer in of.offers} for of in (measured, usual))
    assert mine["h100"].seconds > 1.5 * theirs["h100"].seconds
    assert mine["a100"].as_json() == theirs["a100"].as_json()
    assert measured.as_json()["inputs"]["profile"] == path


@pytest.mark.parametrize("again", RECOMPUTE)
def test_other_recompute_is_the_factor_on_what_is_estimated(path, again):
    """So that an advice compares two kinds of GPUs by as many ways to run."""
    recipe, model, gpu = recipe_of({"recompute": again}), catalog.model("qwen2.5-1.5b"), catalog.gpu("h100")
    known, found = profiles.read(path), fits.choose(model, gpu, 8, path, recipe)
    wanted = stretched(fits.estimate(model, gpu, 8, recipe), known.factor)
    assert (found.forward, found.backward, found.head) == (wanted.forward, wanted.backward, wanted.head)
    assert found.fidelity == ("scaled" if again == "full" else "extrapolated")
    assert (found.low < known.low, found.high > known.high) == (again != "full",) * 2
