"""What each Hugging Face `model_type` means where its `config.json` is silent.

Above all: whether the head reuses the embedding (`tie_word_embeddings` is true in the library's base class and false in
most language models), and which layers attend how when no `layer_types` says so. The values repeat the defaults of the
`configuration_*.py` of each family in https://github.com/huggingface/transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
)

# What mixes or replaces attention by a state that is carried along: no estimate here knows its work, and a family that
# is spelled like one would be costed wrong.
STATES = (
    "bamba falcon_h1 falcon_mamba granitemoehybrid jamba jet_nemotron kimi_linear lfm2 lfm2_moe mamba mamba2 minimax "
    "nemotron_h olmo_hybrid plamo2 recurrent_gemma rwkv xlstm zamba zamba2"
).split()
