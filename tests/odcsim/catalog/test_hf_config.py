import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.catalog.hf_config import from_config, read_config
from odcsim.catalog.hf_families import FAMILIES
from odcsim.errors import InputError
from odcsim.model import Model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
}
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "vocab_size": 151936,
}
QWEN35_27B = {
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "intermediate_size": 17408,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
        "vocab_size": 248320,
    },
    "vision_config": {"hidden_size": 1152},
}


def build(config: object) -> Model:
    return from_config(config, name="m", where="config.json")


def test_reads_a_file_or_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    m = read_config(folder)
    assert m == read_config(folder / "config.json")
    assert (m.name, m.head_dim, m.tied, m.parameters) == ("my-llama", 128, False, 8_030_261_248)


def test_a_tied_head_by_default_depends_on_the_family() -> None:
    gemma = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"} | {"model_type": "gemma3_text"}
    assert build(gemma).tied
    assert not build(gemma | {"tie_word_embeddings": False}).tied
    assert build(LLAMA | {"tie_word_embeddings": True}).tied
    assert build({"text_config": LLAMA, "tie_word_embeddings": True}).tied


def test_deepseek_v3_has_671_billion_parameters_of_which_37_work() -> None:
    """arXiv 2412.19437. Latent attention, shared expert, three dense layers."""
    m = build(DEEPSEEK)
    assert m.parameters / 1e9 == pytest.approx(671, abs=0.5)
    assert m.active_parameters / 1e9 == pytest.approx(37.5, abs=0.5)
    assert m.dense_layers == 3


def test_kimi_k2_has_a_trillion() -> None:
    kimi = DEEPSEEK | {
        "model_type": "kimi_k2",
        "n_routed_experts": 384,
        "first_k_dense_replace": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "vocab_size": 163840,
    }
    assert build(kimi).parameters / 1e12 == pytest.approx(1.03, abs=0.01)


def test_qwen3_next_has_80_billion_of_which_3_work() -> None:
    m = build(QWEN3_NEXT)
    assert m.parameters / 1e9 == pytest.approx(79.7, abs=0.3)
    assert (m.linear_layers, m.full_layers, m.gated) == (36, 12, True)


def test_a_hybrid_has_a_quarter_of_the_squares() -> None:
    m = build(QWEN35_27B)
    assert m.parameters / 1e9 == pytest.approx(27, abs=0.3)
    assert (m.linear_layers, m.vocab, m.tied) == (48, 248320, False)
    assert m.squares([1000]).tolist() == [250_000.0]


def test_glm_counts_dense_layers_and_shared_expert() -> None:
    glm = DEEPSEEK | {"model_type": "glm4_moe", "head_dim": 128, "num_key_value_heads": 8}
    m = build(glm)
    assert (m.latent_rank, m.dense_layers, m.shared_ffn, m.dense_ffn) == (0, 3, 2048, 18432)


def test_gemma_leaves_heads_and_vocabulary_to_the_library() -> None:
    """The published 4B config holds only these keys in its text part."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    m = build({"model_type": "gemma3", "text_config": text})
    assert m.parameters / 1e9 == pytest.approx(3.88, abs=0.005)
    assert (m.window, m.window_layers, m.tied) == (1024, 29, True)
    assert build({"model_type": "gemma3", "text_config": text | {"sliding_window_pattern": 2}}).window_layers == 17


@pytest.mark.parametrize(
    ("change", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "mistral", "sliding_window": 4096}, 32),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, 0),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}, 4),
        ({"model_type": "llama", "sliding_window": 4096}, 0),
        (
            {
                "model_type": "llama",
                "sliding_window": 64,
                "layer_types": ["sliding_attention"] * 30 + ["full_attention"] * 2,
            },
            30,
        ),
    ],
)
def test_windows(change: dict[str, Any], windows: int) -> None:
    assert build(LLAMA | change).window_layers == windows


def test_named_dense_layers_and_sparse_step() -> None:
    qwen = MIXTRAL | {"model_type": "qwen3_moe", "moe_intermediate_size": 768}
    assert build(qwen).dense_layers == 0
    assert build(qwen | {"mlp_only_layers": [0, 5]}).dense_layers == 2
    assert build(qwen | {"decoder_sparse_step": 2}).dense_layers == 16
    assert build(qwen | {"decoder_sparse_step": 3}).dense_layers == 22  # experts in layers 3, 6 .. 30, counted from one


def test_attention_bias_counts() -> None:
    more = build(LLAMA | {"attention_bias": True}).layer_parameters - build(LLAMA).layer_parameters
    assert more == (32 + 2 * 8) * 128 + 4096


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ([], "holds a list"),
        ({}, "has no 'model_type'"),
        ({"model_type": "mamba"}, "unknown model_type 'mamba', and the file lacks num_hidden_layers, hidden_size"),
        ({"model_type": "lama"}, "did you mean 'llama'"),
        ({"model_type": 3}, "unknown model_type 3"),
        ({"model_type": "llama"}, "lacks num_hidden_layers, hidden_size, num_attention_heads, vocab_size"),
        (LLAMA | {"hidden_size": "4096"}, "hidden_size is '4096'; expected a whole number from 1 to 100000000"),
        (LLAMA | {"hidden_size": -1}, "hidden_size is -1"),
        (LLAMA | {"hidden_size": True}, "hidden_size is True; expected a whole number"),
        (LLAMA | {"hidden_size": 4096.5}, "hidden_size is 4096.5"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        (LLAMA | {"vocab_size": 10**30}, "vocab_size is huge"),
        (
            LLAMA | {"num_attention_heads": 33, "num_key_value_heads": None},
            "hidden_size is 4096; it must be a multiple",
        ),
        (LLAMA | {"num_key_value_heads": 5}, "num_key_value_heads is 5; it must divide"),
        (LLAMA | {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; expected true or false"),
        (LLAMA | {"layer_types": ["full_attention"]}, "layer_types names 1 layers; num_hidden_layers is 32"),
        (LLAMA | {"layer_types": ["chunked_attention"] * 32}, "'chunked_attention' is none of"),
        (LLAMA | {"layer_types": "full"}, "layer_types is 'full'; expected a list"),
        (LLAMA | {"layer_types": ["sliding_attention"] * 32}, "lacks sliding_window"),
        (LLAMA | {"layer_types": ["linear_attention"] * 32}, "lacks linear_num_key_heads"),
        (LLAMA | {"num_experts": 8}, "num_experts is 8; model_type 'llama' has no experts"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "num_experts_per_tok is 9; expected a whole number from 1 to 8"),
        (MIXTRAL | {"num_local_experts": None}, "lacks num_experts or n_routed_experts"),
        (DEEPSEEK | {"kv_lora_rank": None}, "lacks kv_lora_rank"),
    ],
)
def test_a_bad_config_says_which_key_and_what_to_do(config: object, says: str) -> None:
    with pytest.raises(InputError) as caught:
        build(config)
    line = str(caught.value)
    assert says in line
    assert line.startswith("config.json: ")
    assert "; " in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"vocab_size": ' + b"9" * 5000 + b"}", b"null", b"\x00"]
)
def test_a_file_that_is_no_config(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json: "):
        read_config(file)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: no such file; give a config"):
        read_config(tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, -1, 0, 1, 2, 7, 64, 10**9, 10**40, 2.0, float("nan"), "8", [], [0], ["x"], {}]
)
KEYS = sorted(
    {*LLAMA, *DEEPSEEK, *QWEN3_NEXT, "layer_types", "sliding_window", "attention_bias", "sliding_window_pattern"}
)


@given(
    st.sampled_from([LLAMA, MIXTRAL, DEEPSEEK, QWEN3_NEXT, {}]),
    st.dictionaries(st.sampled_from(KEYS), ODD, max_size=4),
    st.sampled_from([*FAMILIES, None]),
    st.booleans(),
)
def test_any_object_reads_or_is_an_input_error(
    base: dict[str, Any], change: dict[str, Any], kind: str | None, nested: bool
) -> None:
    config: dict[str, Any] = base | ({"model_type": kind} if kind else {}) | change
    try:
        m = build({"text_config": config} if nested else config)
    except InputError:
        return
    assert m.layer_parameters > 0
    assert m.layer_matmul_parameters <= m.layer_parameters
    assert m.full_layers >= 0
    assert 0 <= m.dense_layers <= m.layers
    assert float(m.squares([1000])[0]) <= 1e6


@given(VALUES)
def test_any_json_value_is_handled(value: object) -> None:
    with pytest.raises(InputError):
        build(value)
