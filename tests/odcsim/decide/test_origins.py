"""What answers say of where rates are from agrees with how the catalogue's files say that each of them is known."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import odcsim
from odcsim import catalog
from odcsim.catalog import fits
from odcsim.catalog.rates import family_of
from odcsim.cli import main
from odcsim.decide.answer_words import trust
from odcsim.recipe import Kernels, Recipe

RATES, GPUS = (
    tomllib.loads(Path(catalog.__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
    for name in ("rates", "gpus")
)
PUBLISHED = {"fitted", "measured", "datasheet"}
TRACE = odcsim.Trace("drawn", np.random.default_rng(0).integers(100, 3000, 400))
CASES = [
    (gpu, kernel, precision)
    for gpu in catalog.gpu_names()
    for kernel, rows in RATES["attention"].items()
    if family_of(gpu) in rows
    for precision in ("bf16", "fp8")
    if precision == "bf16" or RATES["families"][family_of(gpu)]["fp8"][0]
]


def known(gpu: str, kernel: str, precision: str) -> set[str]:
    """By the files: kinds of all that these seconds are made from, whether any is of published runs or not."""
    row = RATES["families"][family_of(gpu)]
    used = [row[name][1] for name in ("matmul", "narrow", "moved", "copying")]
    used += [row["fp8"][1]] if precision == "fp8" else []
    used += [RATES["attention"][kernel][family_of(gpu)][4]]
    return {*used, *({"assumed"} if GPUS["gpus"][gpu]["matmul_tflops"][1] == "assumed" else ())}


def check(words: str, kinds: set[str]) -> None:
    assert ("in published runs" in words) == bool(kinds & PUBLISHED), words
    for kind in ("chosen", "assumed"):
        assert (kind in words) == (kind in kinds), words


@pytest.mark.parametrize(("gpu", "kernel", "precision"), CASES)
def test_words_about_rates_agree_with_their_kinds(gpu, kernel, precision):
    recipe = Recipe(kernels=Kernels(attention=kernel, precision=precision))
    profile = fits.estimate(catalog.model("qwen3-0.6b"), catalog.gpu(gpu), 8, recipe)
    kinds = known(gpu, kernel, precision)
    check(profile.origin, kinds)
    check(trust("catalogue", profile), kinds)
    for figure, kind in (
        (r"TFLOP/s( \(assumed\))?,", GPUS["gpus"][gpu]["matmul_tflops"][1]),
        (r"attention by \w+( \(\w+\))?,", RATES["attention"][kernel][family_of(gpu)][4]),
    ):
        marked = re.search(figure, profile.origin)
        assert marked is not None
        assert marked[1] == (f" ({kind})" if kind in ("chosen", "assumed") else None)


def test_a_gpu_of_ones_own_claims_no_runs_that_nobody_published(tmp_path):
    """Its family is the least known; what it takes over from a GPU that it is like stays assumed."""
    odd, like = tmp_path / "odd.toml", tmp_path / "like.toml"
    lines = [f"{name} = {row[0]}" for name, row in GPUS["gpus"]["h100"].items() if isinstance(row, list)]
    odd.write_text("\n".join(line.replace("989", "988") for line in lines))
    like.write_text('like = "gb300"\nmemory_gb = 200')
    model = catalog.model("qwen3-0.6b")
    check(fits.estimate(model, catalog.gpu(str(odd)), 8).origin, {"assumed"})
    assert "TFLOP/s (assumed)" in fits.estimate(model, catalog.gpu(str(like)), 8).origin


@pytest.mark.parametrize("gpu", ["l40s", "mi300x", "gb300", "h100"])
def test_the_kind_of_rates_comes_out_of_every_door(gpu, tmp_path, capsys):
    kernel = RATES["families"][family_of(gpu)]["usual"]
    kinds = known(gpu, kernel, "bf16")
    batch = {"devices": 2, "minibatch": 2, "minibatches": 2, "max_tokens": 4096}
    found = odcsim.compare(odcsim.ask(TRACE, "qwen3-0.6b", gpu=gpu, **batch))
    check(next(line for line in found.sentences() if line.startswith("Seconds")), kinds)
    check(found.as_json()["inputs"]["cost"], kinds)
    offer = odcsim.advise(TRACE, "qwen3-0.6b", gpus=[gpu], devices=[2], global_batch=4, minibatches=2, price=2.0)
    check(next(line for line in offer.sentences() if "Seconds: " in line).partition("Seconds: ")[2], kinds)
    lengths, page = tmp_path / "lengths.csv", tmp_path / "page.html"
    lengths.write_text("length\n" + "\n".join(map(str, TRACE.lengths)))
    asked = ["--model", "qwen3-0.6b", "--gpu", gpu, "--devices", "2", "--max-tokens", "4096"]
    assert main(["rl", str(lengths), *asked, "--prompts", "2", "--rollouts", "2", "--steps", "2"]) == 0
    check(next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Cost: ")), kinds)
    assert main(["compare", str(lengths), *asked, "--minibatch", "2", "--minibatches", "2", "--html", str(page)]) == 0
    told = re.findall(r"[\w ]*rates of [^<]+", page.read_text())
    assert told
    for words in told:
        check(words, kinds)
