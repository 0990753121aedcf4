"""A config.json becomes the model that it describes, with published totals."""

import json
from pathlib import Path
from typing import Any

import pytest
from configs import DEEPSEEK, LLAMA, MIXTRAL, QWEN3_NEXT, QWEN35_27B, build

from odcsim.catalog.hf_config import read_config


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
