"""Seconds of a profile go to the kind of GPU that they were measured on, and to no other."""

from dataclasses import replace

import numpy as np
import pytest

from odcsim import Trace, catalog
from odcsim import profile as profiles
from odcsim.catalog import fits
from odcsim.cli import main
from odcsim.decide import calibrate
from odcsim.decide.advice import reply
from odcsim.decide.advice.offers import advise
from odcsim.decide.advice.wish import Wish
from odcsim.decide.asking import setting_of
from odcsim.errors import InputError
from odcsim.profile import stretched
from odcsim.question import Question
from odcsim.recipe import RECOMPUTE, recipe_of

LENGTHS = np.minimum(np.random.default_rng(0).lognormal(7, 0.6, 900), 4096).astype(np.int64) + 1
ASKED = Question(trace=Trace("chat", LENGTHS), model="qwen2.5-1.5b", global_batch=32, minibatches=8)
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
    said = " ".join(reply.sentences(measured))
    assert f"a100: {theirs['a100'].chosen.way.cost.profile.origin}" in said
    assert f"h100: {mine['h100'].chosen.way.cost.profile.origin}" in said
    assert mine["h100"].chosen.way.cost.profile.origin.count("measured: ") == 1
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


@pytest.mark.parametrize(
    ("gpus", "words", "problem"),
    [
        ("a100,h200", [], "profile is for h100, and --gpus names a100, h200; add h100 to --gpus"),
        ("h100", ["--stack", "plain"], "--stack with a profile; its seconds already include what it was measured with"),
    ],
)
def test_a_profile_that_fits_nothing_asked_is_refused_in_one_line(path, gpus, words, problem, capsys):
    argv = ["advise", "longalign", "--model", "qwen2.5-1.5b", "--gpus", gpus, "--devices", "8", "--global-batch", "32"]
    assert main([*argv, *words, "--profile", path]) == 2
    err = capsys.readouterr().err
    assert problem in err
    assert err.count("\n") == 1


def test_seconds_of_one_gpu_are_not_told_of_another(path):
    with pytest.raises(InputError, match="profile is for h100, not a100; ask for h100, or measure a100"):
        setting_of(replace(ASKED, gpu="a100", devices=8, profile=path))


@pytest.mark.parametrize("name", ["compare", "break-even", "rl"])
def test_other_commands_take_it_too(path, name, capsys):
    batch = ["--prompts", "8", "--rollouts", "4", "--steps", "2"] if name == "rl" else ["--minibatch", "4"]
    argv = [name, "deepcoder-rl", "--truncate", "4k", "--model", "qwen2.5-1.5b", "--gpu", "h100", "--devices", "8"]
    argv += [*batch, "--max-tokens", "4096"]
    said = []
    for more in ([], ["--profile", path]):
        assert main([*argv, *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] != said[1]
    assert ("measured: " in said[1]) is (name != "break-even")  # which tells of leads alone


def test_a_sweep_takes_it_as_a_key(path, tmp_path):
    asked = {"trace": "uniform:min=20,max=900", "model": "qwen2.5-1.5b", "profile": path, "gpu": "h100"}
    text = "".join(f'{name} = "{value}"\n' for name, value in asked.items())
    (tmp_path / "grid.toml").write_text(f"{text}devices = 8\nminibatch = 2\nminibatches = 1\n")
    assert main(["sweep", str(tmp_path / "grid.toml"), "--jobs", "1", "-o", str(tmp_path / "o.csv")]) == 0
    assert "scaled" in (tmp_path / "o.csv").read_text()
