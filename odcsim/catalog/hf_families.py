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
    norms: int = 2  # per layer, each as wide as the hidden state
    gated: bool = False
    latent: bool = False
    sinks: bool = False
    expert_bias: bool = False
    expert_size: str = ""  # the key that holds an expert's intermediate size; empty: a dense model
    layout: str = "full"  # which layers attend how: full, upper, all, alternate, pattern or linear
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

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(),
        "mistral": Family(layout="all"),
        "qwen2": Family(bias=True, layout="upper"),
        "qwen3": Family(query_key_norm=True, layout="upper", defaults={"head_dim": 128}),
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
        "qwen3_moe": Family(query_key_norm=True, layout="upper", expert_size=_MOE),
        "qwen3_next": _QWEN35_MOE,
        "qwen3_5": _QWEN35,
        "qwen3_5_text": _QWEN35,
        "qwen3_5_moe": _QWEN35_MOE,
        "qwen3_5_moe_text": _QWEN35_MOE,
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK,
        "kimi_k2": _DEEPSEEK,
        "glm4_moe": Family(expert_size=_MOE),
    }
)
