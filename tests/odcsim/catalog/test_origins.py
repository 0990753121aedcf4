"""What answers say of where rates are from agrees with how the catalogue's files say that each of them is known."""

import tomllib
from pathlib import Path

import pytest

from odcsim import catalog
from odcsim.catalog import fits
from odcsim.catalog.rates import family_of
from odcsim.decide.answer_words import trust
from odcsim.recipe import Kernels, Recipe

RATES, GPUS = (
    tomllib.loads(Path(catalog.__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
    for name in ("rates", "gpus")
)
PUBLISHED = {"fitted", "measured", "datasheet"}
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
