"""A config.json that cannot be right is refused in one line, whatever is in it."""

from pathlib import Path
from typing import Any

import pytest
from configs import DEEPSEEK, LLAMA, MIXTRAL, PUBLISHED, QWEN3_NEXT, build
from hypothesis import given
from hypothesis import strategies as st

from odcsim.catalog.hf_config import read_config
from odcsim.catalog.hf_families import FAMILIES
from odcsim.errors import InputError

MPT = PUBLISHED["mpt-7b"][0]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ([], "holds a list"),
        ({}, "has no 'model_type'"),
        ({"model_type": "mymodel"}, "unknown model_type 'mymodel', and the file lacks num_hidden_layers, hidden_size"),
        (
            {"model_type": "zamba2"},
            "model_type 'zamba2' has layers that carry a state, such as Mamba's, which no estimate here models",
        ),
        (LLAMA | {"model_type": "jamba"}, "measure it: 'odcsim fit --help'"),
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
        ({"model_type": "mpt", "vocab_size": 9}, "lacks n_layers, d_model, n_heads"),
        (MPT | {"n_heads": "32"}, "n_heads is '32'; expected a whole number"),
        (MPT | {"attn_config": [1]}, "attn_config is [1]; expected an object"),
        (
            MPT | {"attn_config": {"attn_type": "linear"}},
            "attn_type is 'linear'; one of multihead_attention, multiquery",
        ),
        (MPT | {"attn_config": {"attn_type": "grouped_query_attention"}}, "lacks kv_n_heads"),
        (MPT | {"expansion_ratio": 2.5}, "expansion_ratio is 2.5; expected a whole number"),
        (PUBLISHED["phi-2"][0] | {"intermediate_size": None}, "lacks intermediate_size"),
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
PLAIN = [PUBLISHED[name][0] for name in ("mpt-7b", "opt-350m", "falcon-40b", "starcoder", "bloom", "phi-2")]
MORE = {"layer_types", "sliding_window", "attention_bias", "sliding_window_pattern", "attn_config", "mlp_bias"}
KEYS = sorted({*LLAMA, *DEEPSEEK, *QWEN3_NEXT, *(key for config in PLAIN for key in config), *MORE})


@given(
    st.sampled_from([LLAMA, MIXTRAL, DEEPSEEK, QWEN3_NEXT, *PLAIN, {}]),
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


@pytest.mark.parametrize(
    "kind", ["zamba2", "mamba", "cohere", "glm4v", "granitemoe", "olmo", "gemma", "gpt_neo", "phi4"]
)
def test_no_family_is_proposed_that_would_be_costed_wrong(kind: str) -> None:
    with pytest.raises(InputError) as caught:
        build(LLAMA | {"model_type": kind})
    assert "did you mean" not in str(caught.value)
