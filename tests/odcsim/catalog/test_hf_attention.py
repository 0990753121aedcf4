"""Sparse, compressed and linear attention: published totals, what layers see of a sample, and what follows of it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from configs import (
    DEEPSEEK,
    DEEPSEEK4,
    DEEPSEEK32,
    GEMMA4,
    GEMMA4_SMALL,
    GLM5,
    KIMI_LINEAR,
    MINIMAX,
    NEMOTRON,
    QWEN3_NEXT,
    build,
)
from hypothesis import given
from hypothesis import strategies as st

from odcsim import ask, catalog, compare
from odcsim.catalog.estimates import memory
from odcsim.catalog.estimates.work import matmuls
from odcsim.errors import InputError

# Parameters and active ones in 10^9, as publishers round them (model cards, arXiv 2602.15763 for GLM-5), and how
# exactly; of DeepSeek 3.2 with the indexers beside those of 3 (arXiv 2412.19437). Of Gemma's small one without its
# towers for images and sound, and active without embeddings of each layer.
PUBLISHED = {
    "deepseek_v32": (DEEPSEEK32, 671.9, 38.4, 0.1), "glm_moe_dsa": (GLM5, 744, 41, 1),
    "deepseek_v4": (DEEPSEEK4, 284, 13, 1), "kimi_linear": (KIMI_LINEAR, 48, 3, 1.2),
    "minimax_m2": (MINIMAX, 230, 10, 1.4), "qwen3_next": (QWEN3_NEXT, 79.7, 3, 1), "gemma4": (GEMMA4, 30.7, 30.7, 0.05),
    "nemotron_h": (NEMOTRON, 31.6, 3.6, 0.05),
}  # fmt: skip
SPARSE = [DEEPSEEK32, GLM5, GLM5 | {"index_topk_freq": 4}]


@pytest.mark.parametrize("kind", PUBLISHED)
def test_published_totals(kind):
    config, *billions, digits = PUBLISHED[kind]
    m = build(config)
    assert [m.parameters / 1e9, m.active_parameters / 1e9] == pytest.approx(billions, abs=digits)
    assert sum(row.flops for row in matmuls(m)) == pytest.approx(2 * m.layer_matmul_parameters)


def test_an_embedding_of_each_layer_costs_a_lookup_and_two_thin_matmuls():
    m = build(GEMMA4_SMALL)
    embedding = 262_144 * 35 * 256
    assert (m.parameters - embedding) / 1e9 == pytest.approx(2.3, abs=0.05)  # "effective" ones
    bare = build(GEMMA4_SMALL | {"hidden_size_per_layer_input": 0})
    assert m.layer_matmul_parameters - bare.layer_matmul_parameters == pytest.approx(3 * 1536 * 256)


def test_layers_that_take_over_keys_have_none_of_their_own():
    all_own = build(GEMMA4_SMALL | {"num_kv_shared_layers": 0, "use_double_wide_mlp": False})
    shared = build(GEMMA4_SMALL | {"use_double_wide_mlp": False})
    keys = 16 * 256 + 4 * 512  # of the last twenty, four of which are full
    assert all_own.parameters - shared.parameters == pytest.approx(keys * 2 * 1536 + keys, abs=70)  # and their norms
    assert all_own.squares([5000]).tolist() == shared.squares([5000]).tolist()


@given(st.sampled_from(SPARSE), st.integers(1, 100_000))
def test_a_sparse_layer_costs_what_a_full_one_does_until_the_choice_binds_and_then_a_line(config, length):
    """Apart from the indexer, whose scores grow with the square of the length."""
    m, most = build(config), config["index_topk"]
    dense = replace(m, sparse_layers=0, reaches=())
    (_, scores) = m.reaches
    indexer = scores[0] / m.layers * length**2
    chosen = float(m.squares([length])[0]) - indexer
    assert chosen == pytest.approx(float(dense.squares([min(length, most)])[0]) + 2 * most * max(0, length - most))
    layers = m.layers if "index_topk_freq" not in config else 21  # of 78: the first three, and every fourth
    heads = layers * config["index_n_heads"] * config["index_head_dim"]
    assert indexer * m.attention_flops_per_square * m.layers == pytest.approx(heads * length**2, rel=1e-9)


@pytest.mark.parametrize("length", [100, 513, 5000, 40_000])
def test_compressed_layers_count_the_entries_that_each_token_sees(length):
    m, seen = build(DEEPSEEK4), np.arange(1, length + 1)
    near = np.minimum(seen, 128).sum()
    chosen, scored, heavy = np.minimum(seen / 4, 512).sum(), (seen / 4).sum(), (seen / 128).sum()
    pairs = m.layers * near + 20 * (chosen + scored * 64 * 128 / (64 * 1024)) + 23 * heavy
    assert float(m.squares([length])[0]) == pytest.approx(2 * pairs / m.layers, rel=0.02)
    ratios = [0, 0, *([4, 128] * 21)]
    mixed = build(DEEPSEEK4 | {"compress_ratios": [*ratios[:43], 0]})  # the last: a layer that drafts
    assert (mixed.window_layers, mixed.sparse_layers) == (2, 41)


def test_a_state_costs_the_same_for_every_token_and_is_no_parameter():
    for config in (KIMI_LINEAR, QWEN3_NEXT):
        m = build(config)
        each = m.layer_forward(1.0, 0.0) - 2 * m.layer_matmul_parameters
        assert 0.01 < each / m.layer_forward(1.0, 0.0) < 0.1
        assert m.layer_forward(9.0, 0.0) == pytest.approx(9 * m.layer_forward(1.0, 0.0))
        assert each == pytest.approx(m.linear_layers / m.layers * 32 * (6 * 128 * 128 + 64 * 8 * 128))


def test_residual_streams_are_stored_and_context_is_not_priced():
    m = build(DEEPSEEK4)
    one = memory.activations(replace(m, streams=0), 1000, 1000, 8, memory.USUAL).stored
    assert memory.activations(m, 1000, 1000, 8, memory.USUAL).stored == 4 * one
    priced = [build(c).splits for c in (DEEPSEEK4, DEEPSEEK32, KIMI_LINEAR, NEMOTRON, GEMMA4, MINIMAX)]
    assert priced == [False] * 4 + [True] * 2


WRONG = [
    DEEPSEEK32 | {"indexer_types": ["full"]}, DEEPSEEK32 | {"index_topk": 0}, DEEPSEEK4 | {"o_groups": 7},
    DEEPSEEK4 | {"layer_types": ["full_attention"] * 43}, GEMMA4 | {"per_layer_config": [1]},
    NEMOTRON | {"hybrid_override_pattern": "ME*"}, NEMOTRON | {"moe_latent_size": 1024},
    KIMI_LINEAR | {"linear_attn_config": {"kda_layers": [0]}}, {k: v for k, v in DEEPSEEK4.items() if k != "o_groups"},
]  # fmt: skip


@pytest.mark.parametrize("config", WRONG)
def test_what_does_not_fit_is_refused(config):
    with pytest.raises(InputError) as caught:
        build(config)
    assert caught.value.fix


SMALL = {"num_hidden_layers": 8, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 32,
         "intermediate_size": 4096, "n_routed_experts": 8, "moe_intermediate_size": 1024, "num_experts_per_tok": 2,
         "first_k_dense_replace": 1, "q_lora_rank": 768}  # fmt: skip


def test_at_long_lengths_devices_wait_less_for_a_sparse_model(tmp_path):
    idle = {}
    for name, config in (("dense", DEEPSEEK), ("sparse", DEEPSEEK32 | {"index_n_heads": 8})):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(config | SMALL))
        asked = ask("longalign", str(file), gpu="h100", devices=8, minibatch=4, minibatches=12)
        (row,) = compare(asked, among=[("lb-micro", "collective")]).rows
        idle[name] = row.idle
    assert catalog.model(str(tmp_path / "sparse.json")).splits is False
    assert idle["sparse"] < 0.8 * idle["dense"]
