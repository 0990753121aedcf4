"""A config.json becomes the model that it describes, with published totals, or is refused whatever is in it."""

import json

import pytest
from configs import (
    DEEPSEEK,
    DEEPSEEK4,
    DEEPSEEK32,
    GEMMA4,
    GEMMA4_SMALL,
    KIMI_LINEAR,
    LLAMA,
    MINIMAX,
    MIXTRAL,
    NEMOTRON,
    PLAIN,
    QWEN3_NEXT,
    QWEN35_27B,
    build,
)
from hypothesis import given
from hypothesis import strategies as st

from odcsim.catalog.estimates.work import matmuls
from odcsim.catalog.families import families
from odcsim.catalog.hf_config import read_config
from odcsim.errors import InputError

MPT, OPT = PLAIN["mpt-7b"][0], PLAIN["opt-350m"][0]
GEMMA = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
         "sliding_window": 1024}  # fmt: skip
GEMMA4B = {"model_type": "gemma3", "text_config": GEMMA}  # all that its file holds of text
KIMI = DEEPSEEK | {"model_type": "kimi_k2", "n_routed_experts": 384, "first_k_dense_replace": 1, "vocab_size": 163840,
                   "num_attention_heads": 64, "num_key_value_heads": 64}  # fmt: skip
GLM = DEEPSEEK | {"model_type": "glm4_moe", "head_dim": 128, "num_key_value_heads": 8}
MOE = MIXTRAL | {"model_type": "qwen3_moe", "moe_intermediate_size": 768}


def bare(config, *names):
    return {name: value for name, value in config.items() if name not in names}


def windows(kind, **more):
    return LLAMA | {"model_type": kind, "sliding_window": 4096} | more


def attends(**more):
    return MPT | {"attn_config": more}


SHAPES = [  # a config, and what the model is to have
    (LLAMA, {"head_dim": 128, "tied": False, "parameters": 8_030_261_248}),
    (bare(LLAMA, "num_key_value_heads") | {"model_type": "gemma3_text"}, {"tied": True}),
    (LLAMA | {"model_type": "gemma3_text", "tie_word_embeddings": False}, {"tied": False}),
    (LLAMA | {"tie_word_embeddings": True}, {"tied": True}),
    ({"text_config": LLAMA, "tie_word_embeddings": True}, {"tied": True}),
    (DEEPSEEK, {"dense_layers": 3}),
    (QWEN3_NEXT, {"linear_layers": 36, "full_layers": 12, "gated": True}),
    (QWEN35_27B, {"linear_layers": 48, "vocab": 248320, "tied": False}),
    (GLM, {"latent_rank": 0, "dense_layers": 3, "shared_ffn": 2048, "dense_ffn": 18432}),
    (GEMMA4B, {"window": 1024, "window_layers": 29, "tied": True}),
    ({"model_type": "gemma3", "text_config": GEMMA | {"sliding_window_pattern": 2}}, {"window_layers": 17}),
    (windows("mistral", sliding_window=None), {"window_layers": 0}),
    (windows("mistral"), {"window_layers": 32}),
    (windows("qwen2", use_sliding_window=False), {"window_layers": 0}),
    (windows("qwen2", use_sliding_window=True, max_window_layers=28), {"window_layers": 4}),
    (windows("llama"), {"window_layers": 0}),
    (windows("llama", layer_types=["sliding_attention"] * 30 + ["full_attention"] * 2), {"window_layers": 30}),
    (PLAIN["starcoder2-7b"][0], {"window": 4096, "window_layers": 32}),
    (PLAIN["starcoder2-7b"][0] | {"sliding_window": None}, {"window_layers": 0}),
    (MOE, {"dense_layers": 0}),
    (MOE | {"mlp_only_layers": [0, 5]}, {"dense_layers": 2}),
    (MOE | {"decoder_sparse_step": 2}, {"dense_layers": 16}),
    (MOE | {"decoder_sparse_step": 3}, {"dense_layers": 22}),  # experts in layers 3, 6 .. 30, counted from one
    (MPT, {"kv_heads": 32}), (attends(), {"kv_heads": 32}), (attends(attn_type="multiquery_attention"),
    {"kv_heads": 1}), (attends(attn_type="grouped_query_attention", kv_n_heads=8), {"kv_heads": 8}),
    *[(PLAIN[name][0], {"kv_heads": heads}) for name, heads in
      (("starcoder", 1), ("falcon-7b", 1), ("falcon-40b", 8), ("starcoder2-15b", 4))],
    (MPT | {"expansion_ratio": 2}, {"ffn": 8192}), (PLAIN["gpt2"][0] | {"n_inner": 1000}, {"ffn": 1000}),
    (bare(PLAIN["falcon-7b"][0], "parallel_attn"), {"parameters": PLAIN["falcon-7b"][1]}),
    (PLAIN["falcon-7b"][0] | {"ffn_hidden_size": 1000}, {"ffn": 1000}), (OPT, {"embedding": 512}),
    (OPT | {"word_embed_proj_dim": 1024}, {"embedding": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "expected"), SHAPES)
def test_shapes(config, expected):
    m = build(config)
    assert {name: getattr(m, name) for name in expected} == expected


TOTALS = [  # published (arXiv 2412.19437 and model cards): parameters and active ones in 10^9, and how exactly
    (DEEPSEEK, 671, 37.5, 0.5), (KIMI, 1030, 32.8, 10), (QWEN3_NEXT, 79.7, 3, 1), (QWEN35_27B, 27, 27, 0.3),
    (GEMMA4B, 3.88, 3.88, 0.005),
]  # fmt: skip


def test_published_totals():
    for config, *billions, digits in TOTALS:
        m = build(config)
        assert [m.parameters / 1e9, m.active_parameters / 1e9] == pytest.approx(billions, abs=digits)
    assert build(QWEN35_27B).squares([1000]).tolist() == [250_000.0]  # a hybrid's quarter


@pytest.mark.parametrize("name", PLAIN)
def test_models_without_a_gate(name):
    """Parameters are the published ones; FLOPs those of two matrices, and of heads as they are shared."""
    m = build(PLAIN[name][0])
    assert (m.parameters, m.plain_mlp, m.ffn) == (PLAIN[name][1], True, 4 * m.hidden)
    attention = 2 * m.hidden * m.head_dim * (m.heads + m.kv_heads)
    assert m.layer_matmul_parameters == attention + 2 * m.hidden * m.ffn
    assert sum(matmul.flops for matmul in matmuls(m)) == pytest.approx(2 * m.layer_matmul_parameters)


def test_biases_positions_and_a_narrow_embedding_count_where_they_are():
    for name, more in (("attention_bias", (32 + 2 * 8) * 128 + 4096), ("mlp_bias", 2 * 14336 + 4096)):
        assert build(LLAMA | {name: True}).layer_parameters - build(LLAMA).layer_parameters == more
    longer, base = (build(PLAIN["opt-125m"][0] | {"max_position_embeddings": n}) for n in (4096, 2048))
    assert (longer.layer_parameters, longer.outside - base.outside) == (base.layer_parameters, 2048 * 768)
    narrow, wide = (build(OPT | {"word_embed_proj_dim": n}) for n in (512, 1024))
    assert narrow.head_forward(1.0) == 2 * (50_272 * 512 + 2 * 512 * 1024)
    assert wide.head_forward(1.0) == 2 * 50_272 * 1024


def test_reads_a_file_or_its_folder(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    with pytest.raises(InputError):
        read_config(folder)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    m = read_config(folder)
    assert m == read_config(folder / "config.json")
    assert m.name == "my-llama"


REFUSED = [  # beside what tests/approved/configs.txt has
    {"model_type": "zamba2"}, {"model_type": 3}, DEEPSEEK | {"kv_lora_rank": None},
    *[LLAMA | {"hidden_size": size} for size in (-1, 4096.5)], LLAMA | {"num_hidden_layers": 0},
    *[MPT | more for more in (
        {"n_heads": "32"}, {"attn_config": [1]}, {"attn_config": {"attn_type": "grouped_query_attention"}},
        {"expansion_ratio": 2.5})],
]  # fmt: skip
CONTENTS = [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"vocab_size": ' + b"9" * 5000 + b"}", b"null", b"\x00"]


@pytest.mark.parametrize("config", [*REFUSED, *CONTENTS])
def test_what_is_no_config_is_refused(tmp_path, config):
    (tmp_path / "config.json").write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
    with pytest.raises(InputError) as caught:
        read_config(tmp_path)
    assert caught.value.where == str(tmp_path / "config.json")
    assert caught.value.fix
    assert "\n" not in str(caught.value)


UNLIKE = ["zamba2", "mamba", "granitemoehybrid", "gemma3n", "olmo_hybrid", "gpt_neo", "phi4", "deepseek_v5"]


@pytest.mark.parametrize("kind", UNLIKE)
def test_no_family_is_proposed_that_would_be_costed_wrong(kind):
    with pytest.raises(InputError) as caught:
        build(LLAMA | {"model_type": kind})
    assert "did you mean" not in str(caught.value)


ODD = [None, True, False, -1, 0, 1, 2, 7, 64, 10**9, 10**40, 2.0, float("nan"), "8", [], [0], ["x"], {}]
BASES = [LLAMA, MIXTRAL, DEEPSEEK, QWEN3_NEXT, DEEPSEEK32, DEEPSEEK4, KIMI_LINEAR, MINIMAX, NEMOTRON, GEMMA4,
         GEMMA4_SMALL,
         *(PLAIN[name][0] for name in ("mpt-7b", "opt-350m", "falcon-40b", "starcoder", "bloom", "phi-2"))]  # fmt: skip
MORE = {"layer_types", "sliding_window", "attention_bias", "sliding_window_pattern", "attn_config", "mlp_bias",
        "mlp_layer_types", "indexer_types", "index_topk_freq", "compress_ratios", "compress_rates", "per_layer_config",
        "enable_moe_block", "num_experts", "linear_num_heads", "global_head_dim"}  # fmt: skip
KEYS = sorted({*MORE, *(key for config in BASES for key in config)})


@given(
    st.sampled_from([*BASES, {}]), st.dictionaries(st.sampled_from(KEYS), st.sampled_from(ODD), max_size=4),
    st.sampled_from([*families(), None]), st.booleans(),
)  # fmt: skip
def test_any_object_reads_or_is_an_input_error(base, change, kind, nested):
    config = base | ({"model_type": kind} if kind else {}) | change
    try:
        m = build({"text_config": config} if nested else config)
    except InputError:
        return
    assert m.layer_parameters > 0
    assert m.layer_matmul_parameters <= m.layer_parameters
    assert m.full_layers >= 0
    assert 0 <= m.dense_layers <= m.layers
    assert m.sparse_layers or float(m.squares([1000])[0]) <= 1e6
    assert 0 <= float(m.squares([1000])[0]) < float("inf")
