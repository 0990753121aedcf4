"""No rank waits for what it does not use: gradients are those of one process, and a unit that is skipped moves no byte.
docs/missing-images.md has what stock FSDP2 does of it."""

import re

import pytest
import torch
from paths import EVERY
from paths.judged import judged
from paths.resumed import in_one_process, saved_and_resumed
from paths.stock import observed
from paths_page import row
from scripts import ROOT

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/missing-images.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (?!model|---)(.+?) \| .+ \| .+ \| .+ \|$", re.MULTILINE)
FIGURE = re.compile(r"\d+ %")


@pytest.fixture(scope="module")
def ended():
    return observed(EVERY)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
@pytest.mark.parametrize("name", EVERY)
def test_right_on_demand_without_a_byte_for_nothing_and_stock_as_the_page_says(pools, ended, name):
    verdict = judged(pools, EVERY[name], ended[name])
    assert verdict.wrong == ()
    assert _without_figures(row(name, EVERY[name], verdict)) in map(_without_figures, PAGE.splitlines())


def _without_figures(words: str) -> str:
    return FIGURE.sub("#", words)


def test_the_page_has_every_kind_once_and_no_other():
    assert ROW.findall(PAGE) == list(EVERY)


def test_clipped_saved_and_resumed_after_steps_without_images(pools, tmp_path):
    """Steps with images on one rank, on none, on both: AdamW decays no weight that nobody uses."""
    norms, weights = in_one_process()
    for found in pools(2).run(saved_and_resumed, str(tmp_path), timeout=300.0):
        assert found.norms == pytest.approx(norms, rel=1e-6)
        for name, value in weights.items():
            torch.testing.assert_close(found.weights[name], value, rtol=1e-5, atol=1e-7)
