"""Models whose MLP has no gate, by config.json: published totals, and what follows from their shape."""

from typing import Any

import pytest
from configs import LLAMA, PUBLISHED, build

from odcsim.catalog.estimates.work import matmuls

MPT = PUBLISHED["mpt-7b"][0]
GROUPS = {"attn_type": "grouped_query_attention", "kv_n_heads": 8}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    config, published = PUBLISHED[name]
    m = build(config)
    assert (m.parameters, m.plain_mlp) == (published, True)


@pytest.mark.parametrize("name", PUBLISHED)
def test_flops_are_those_of_two_matrices_and_of_heads_as_they_are_shared(name: str) -> None:
    m = build(PUBLISHED[name][0])
    attention = 2 * m.hidden * m.head_dim * (m.heads + m.kv_heads)
    assert m.layer_matmul_parameters == attention + 2 * m.hidden * m.ffn
    assert sum(matmul.flops for matmul in matmuls(m)) == pytest.approx(2 * m.layer_matmul_parameters)
    assert m.ffn == 4 * m.hidden


@pytest.mark.parametrize(
    ("name", "heads"), [("mpt-7b", 32), ("starcoder", 1), ("falcon-7b", 1), ("falcon-40b", 8), ("starcoder2-15b", 4)]
)
def test_heads_share_keys_and_values_as_each_family_says_it(name: str, heads: int) -> None:
    assert build(PUBLISHED[name][0]).kv_heads == heads


@pytest.mark.parametrize(("told", "heads"), [({"attn_type": "multiquery_attention"}, 1), (GROUPS, 8), ({}, 32)])
def test_the_nested_attention_of_mpt_says_which_heads_share(told: dict[str, Any], heads: int) -> None:
    assert build(MPT | {"attn_config": told}).kv_heads == heads


def test_the_width_of_an_mlp_is_a_multiple_where_no_key_says_it() -> None:
    assert build(MPT | {"expansion_ratio": 2}).ffn == 8192
    assert build(PUBLISHED["gpt2"][0] | {"n_inner": 1000}).ffn == 1000
    assert build(PUBLISHED["falcon-7b"][0] | {"ffn_hidden_size": 1000}).ffn == 1000


def test_a_narrow_embedding_is_projected_and_its_head_is_cheaper() -> None:
    narrow = build(PUBLISHED["opt-350m"][0])
    wide = build(PUBLISHED["opt-350m"][0] | {"word_embed_proj_dim": 1024})
    assert (narrow.embedding, wide.embedding) == (512, 0)
    assert narrow.head_forward(1.0) == 2 * (50_272 * 512 + 2 * 512 * 1024)
    assert wide.head_forward(1.0) == 2 * 50_272 * 1024


def test_learnt_positions_are_in_no_layer() -> None:
    longer = build(PUBLISHED["opt-125m"][0] | {"max_position_embeddings": 4096})
    base = build(PUBLISHED["opt-125m"][0])
    assert longer.layer_parameters == base.layer_parameters
    assert longer.outside - base.outside == 2048 * 768


def test_starcoder2_slides_where_its_file_has_a_window() -> None:
    config = PUBLISHED["starcoder2-7b"][0]
    assert (build(config).window, build(config).window_layers) == (4096, 32)
    assert build(config | {"sliding_window": None}).window_layers == 0


def test_biases_of_a_gated_mlp_count_where_the_file_has_them() -> None:
    more = build(LLAMA | {"mlp_bias": True}).layer_parameters - build(LLAMA).layer_parameters
    assert more == 2 * 14336 + 4096
