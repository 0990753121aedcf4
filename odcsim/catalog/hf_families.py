"""What each Hugging Face `model_type` means where its `config.json` is silent.

Above all: whether the head reuses the embedding (`tie_word_embeddings` is true in the library's base class and false in
most language models), and which layers attend how when no `layer_types` says so. The values repeat the defaults of the
`configuration_*.py` of each family in https://github.com/huggingface/transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Family:
    """What one `model_type` means where its config is silent."""

    tied: bool = False
    bias: bool = False  # queries, keys and values carry one
    out_bias: bool = False
    query_key_norm: bool = False
    wide_norms: bool = False  # those of queries and keys are as wide as all heads together
    norms: int = 2  # per layer, each as wide as the hidden state
    gated: bool = False
    latent: bool = False
    sinks: bool = False
    expert_bias: bool = False
    expert_size: str = ""  # the key that holds an expert's intermediate size; empty: a dense model
    layout: str = "full"  # which layers attend how: full, upper, all, alternate, pattern, chunks or linear
    defaults: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    plain: bool = False  # the MLP has two matrices and no gate
    widens: int = 0  # its width in hidden widths where no key says it; zero: a key has to
    mlp_bias: bool = False
    norm_bias: bool = False
    head_bias: bool = False
    embedding_norm: bool = False
    multi_query: bool = False  # one head of keys and values, unless `multi_query` is false
    positions: int | None = None  # learnt ones beyond `max_position_embeddings`; None: no position is learnt
    keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # its own names of keys


_MOE = "moe_intermediate_size"
_GEMMA3 = Family(
    tied=True,
    query_key_norm=True,
    norms=4,
    layout="pattern",
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "sliding_window": 4096,
    },
)
_DELTA = {"head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4}
_QWEN35 = Family(query_key_norm=True, gated=True, layout="linear", defaults=_DELTA)
_QWEN35_MOE = Family(query_key_norm=True, gated=True, layout="linear", expert_size=_MOE, defaults=_DELTA)
_DEEPSEEK = Family(latent=True, expert_size=_MOE)
_QWEN2 = Family(bias=True, layout="upper")
_QWEN3 = Family(query_key_norm=True, layout="upper", defaults={"head_dim": 128})
_QWEN3_MOE = Family(query_key_norm=True, layout="upper", expert_size=_MOE)
_EVERY_FOURTH = {"sliding_window": 4096, "sliding_window_pattern": 4}
_LLAMA4 = Family(
    layout="chunks",
    expert_size="intermediate_size",
    defaults={"attention_chunk_size": 8192, "no_rope_layer_interval": 4, "interleave_moe_layer_step": 1},
)

# Two matrices without a gate, LayerNorm with biases, biases in every linear layer, but where it says otherwise.
_PLAIN = Family(plain=True, norm_bias=True, bias=True, out_bias=True, mlp_bias=True)
_SHORT = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
_GPT2_KEYS = _SHORT | {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}
_GPT2 = replace(_PLAIN, tied=True, widens=4, positions=0, keys=_GPT2_KEYS)
_GPTJ = replace(_PLAIN, bias=False, out_bias=False, head_bias=True, norms=1, widens=4, keys=_GPT2_KEYS)
_MPT_KEYS = {"num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "hidden_size": "d_model"}
_BIASES = {"attention_bias": "use_bias", "mlp_bias": "use_bias"}
_OPT_KEYS = {"intermediate_size": "ffn_dim", "attention_bias": "enable_bias", "mlp_bias": "enable_bias"}
_FALCON_KEYS = {
    "num_key_value_heads": "num_kv_heads",
    "intermediate_size": "ffn_hidden_size",
    "attention_bias": "bias",
    "mlp_bias": "bias",
}
_PLAIN_FAMILIES = {
    "gpt2": _GPT2,
    "gpt_bigcode": replace(_GPT2, multi_query=True),
    "gptj": _GPTJ,
    "codegen": _GPTJ,
    "gpt_neox": _PLAIN,
    "phi": replace(_PLAIN, norms=1, head_bias=True),
    "opt": replace(_PLAIN, tied=True, positions=2, keys=_OPT_KEYS, defaults={"max_position_embeddings": 2048}),
    "starcoder2": replace(_PLAIN, tied=True, layout="all", keys=_BIASES),
    "bloom": replace(_PLAIN, tied=True, widens=4, embedding_norm=True, keys=_SHORT | {"hidden_size": "n_embed"}),
    "mpt": Family(tied=True, plain=True, widens=4, keys=_MPT_KEYS),
    "falcon": Family(tied=True, plain=True, norm_bias=True, widens=4, multi_query=True, keys=_FALCON_KEYS),
}

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(),
        "mistral": Family(layout="all"),
        "qwen2": _QWEN2,
        "qwen2_5_vl": _QWEN2,
        "qwen2_5_vl_text": _QWEN2,
        "qwen3": _QWEN3,
        "qwen3_vl": _QWEN3,
        "qwen3_vl_text": _QWEN3,
        "gemma2": Family(tied=True, norms=4, layout="alternate", defaults={"head_dim": 256, "sliding_window": 4096}),
        "gemma3": _GEMMA3,
        "gemma3_text": _GEMMA3,
        "mixtral": Family(layout="all", expert_size="intermediate_size"),
        "gpt_oss": Family(
            bias=True,
            out_bias=True,
            sinks=True,
            expert_bias=True,
            layout="alternate",
            expert_size="intermediate_size",
            defaults={"head_dim": 64},
        ),
        "qwen2_moe": Family(bias=True, layout="upper", expert_size=_MOE),
        "qwen3_moe": _QWEN3_MOE,
        "qwen3_vl_moe": _QWEN3_MOE,
        "qwen3_vl_moe_text": _QWEN3_MOE,
        "qwen3_next": _QWEN35_MOE,
        "qwen3_5": _QWEN35,
        "qwen3_5_text": _QWEN35,
        "qwen3_5_moe": _QWEN35_MOE,
        "qwen3_5_moe_text": _QWEN35_MOE,
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK,
        "kimi_k2": _DEEPSEEK,
        "glm4_moe": Family(expert_size=_MOE),
        "glm4": Family(bias=True, norms=4),
        "phi3": Family(layout="all"),
        "olmo2": Family(wide_norms=True),
        "olmo3": Family(wide_norms=True, layout="pattern", defaults=_EVERY_FOURTH),
        "smollm3": Family(tied=True),
        "seed_oss": Family(bias=True, defaults={"head_dim": 128}),
        "cohere2": Family(tied=True, norms=1, layout="pattern", defaults=_EVERY_FOURTH),
        "llama4": _LLAMA4,
        "llama4_text": _LLAMA4,
    }
    | _PLAIN_FAMILIES
)

# What mixes or replaces attention by a state that is carried along: no estimate here knows its work, and a family that
# is spelled like one would be costed wrong.
STATES = (
    "bamba falcon_h1 falcon_mamba granitemoehybrid jamba jet_nemotron kimi_linear lfm2 lfm2_moe mamba mamba2 minimax "
    "nemotron_h olmo_hybrid plamo2 recurrent_gemma rwkv xlstm zamba zamba2"
).split()
