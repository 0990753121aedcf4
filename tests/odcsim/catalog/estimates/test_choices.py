"""Choices of a recipe that estimates know: which seconds they lead to, and where they are refused."""

import pytest

from odcsim.catalog import fits
from odcsim.decide.asking import ask
from odcsim.decide.setting import cost_of
from odcsim.errors import InputError
from odcsim.profile import write
from odcsim.recipe import recipe_of

SMALL = "r1-distill-qwen-1.5b"
CHOICES = (
    {"attention": "fa2"},
    {"stack": "compiled"},
    {"loss": "whole"},
    {"optimizer": "8bit"},
    {"lora": 16},
    {"recompute": "layers"},
)


@pytest.mark.parametrize("chosen", CHOICES)
def test_a_published_fit_is_taken_for_what_it_was_made_of_alone(chosen):
    usual, other = (cost_of(SMALL, "a100", None, 8, recipe=recipe_of(words)).profile for words in ({}, chosen))
    assert (usual.fidelity, other.fidelity) == ("published fit", "catalogue")


@pytest.mark.parametrize("chosen", [*CHOICES, {"precision": "fp8"}, {"copies": "engines"}])
def test_what_was_measured_is_not_asked_for_otherwise(chosen, tmp_path):
    write(fits.published(SMALL, "a100"), tmp_path / "p.json")
    (name,) = chosen
    with pytest.raises(
        InputError, match=f"--{name} with a profile; its seconds already include what it was measured with"
    ):
        ask("longalign", SMALL, profile=str(tmp_path / "p.json"), gpu="a100", **chosen)


@pytest.mark.parametrize("pair", [("qwen2.5-7b", "r1-distill-qwen-7b"), ("qwen2.5-1.5b", "r1-distill-qwen-1.5b")])
def test_the_same_shape_takes_the_same_seconds_on_every_gpu(pair):
    """Where a fit ships for one of them, too. Both of 1.5B differ in whether the head is the embedding."""
    for gpu in ("a100", "h100", "mi300x"):
        one, other = (cost_of(name, gpu, None, 8).profile for name in pair)
        assert one.fidelity == other.fidelity
        assert (one.forward, one.backward, one.head) == (other.forward, other.backward, other.head)


def test_another_shape_takes_none_of_its_fit():
    assert cost_of("qwen2.5-3b", "a100", None, 8).profile.fidelity == "catalogue"
