"""FLOPs of a step as MFU counts them: by hand, and as trainers that others wrote count them."""

import numpy as np
import pytest
from configs import LLAMA, build
from hypothesis import given
from hypothesis import strategies as st

from odcsim import catalog
from odcsim.catalog.estimates.compute import flops
from odcsim.recipe import RECOMPUTE, USUAL, Recipe

NONE = Recipe(recompute="none")
# Qwen2.5-1.5B: 28 layers of 12 heads of 128 that share two of keys and values, and a head of 151,936 words.
LAYER = 1536 * (12 + 2 + 2) * 128 + 12 * 128 * 1536 + 3 * 1536 * 8960
MULTIPLY = 28 * LAYER + 151_936 * 1536


def step(model, lengths, recipe=NONE):
    return flops(model, recipe, sum(lengths), float(model.squares(lengths).sum()))


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=8))
def test_six_for_each_parameter_and_token_and_half_of_a_whole_attention(lengths):
    own, _ = step(catalog.model("qwen2.5-1.5b"), lengths)
    attention = 12 * 28 * 12 * 128 * sum(s * s for s in lengths) // 2
    assert own == pytest.approx(6 * MULTIPLY * sum(lengths) + attention, rel=1e-12)


def test_a_sample_of_32k_counts_none_of_what_a_kernel_computes_twice():
    own, again = step(catalog.model("qwen2.5-1.5b"), [32_768])
    forward = 28 * 2 * 12 * 128 * 32_768**2
    assert again == forward / 2
    assert own == 6 * MULTIPLY * 32_768 + 3 * forward
    assert again / own == pytest.approx(0.0795, abs=1e-3)


def test_with_recompute_all_that_a_gpu_does_is_four_forwards_and_the_scores_once_more():
    """What is the model's own does not depend on what is computed again."""
    model = catalog.model("qwen3-8b")
    own, again = step(model, [9000], Recipe())
    assert {step(model, [9000], USUAL.by(recompute=recompute))[0] for recompute in RECOMPUTE} == {own}
    linear, attention = model.layer_forward(9000, 0.0), model.layer_forward(0.0, 9000.0**2)
    assert own + again == pytest.approx(model.layers * (4 * linear + 4.5 * attention) + 3 * model.head_forward(9000))


@pytest.mark.slow
@pytest.mark.parametrize("length", [2048, 32_768])
def test_torchtitan_counts_the_same_but_for_the_causal_mask(length):
    """And but for norms, which it takes for matmuls."""
    torch = pytest.importorskip("torch")
    titan = pytest.importorskip("torchtitan.models.llama3")
    config = titan.llama3_configs["8B"]("flex")
    with torch.device("meta"):
        model = config.build()
    parameters, per_token = config.get_nparams_and_flops(model, length)
    ours = build(LLAMA)
    assert parameters == ours.parameters
    norms = 6 * (2 * 32 + 1) * 4096
    assert flops(ours, NONE, 1, 2 * length)[0] == pytest.approx(per_token - norms, rel=1e-12)


@pytest.mark.slow
def test_verl_counts_the_same_but_for_the_embedding(monkeypatch):
    """Which it takes for a matmul."""
    transformers, counter = pytest.importorskip("transformers"), pytest.importorskip("verl.utils.flops_counter")
    monkeypatch.setattr(counter, "get_device_flops", lambda: 1.0)  # it asks for a GPU
    sizes = {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151_936}
    lengths = [100, 5000, 32_768]
    theirs, _ = counter.FlopsCounter(transformers.Qwen2Config(**sizes)).estimate_flops(lengths, 1.0)
    embedding = 6 * 151_936 * 1536 * sum(lengths)
    own, _ = step(catalog.model("qwen2.5-1.5b"), lengths)
    assert np.isclose(theirs * 1e12 - embedding, own, rtol=1e-12)
