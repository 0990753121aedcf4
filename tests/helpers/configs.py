"""What config.json says of some models, in short; and of published models without a gate in their MLP (PLAIN), with how
many parameters these have, each matrix once: as the class has them that Transformers makes of it."""

from typing import Any

from odcsim.catalog.hf_config import from_config
from odcsim.model import Model


def build(config: object) -> Model:
    return from_config(config, name="m", where="config.json")


def of(kind: str, layers: int, hidden: int, heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "vocab_size": vocab}
    return {"model_type": kind, **sizes, **more}


LLAMA = of("llama", 32, 4096, 32, 128_256, num_key_value_heads=8, intermediate_size=14336)
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = of(
    "deepseek_v3", 61, 7168, 128, 129_280, num_key_value_heads=128, intermediate_size=18432, moe_intermediate_size=2048,
    n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=3, moe_layer_freq=1,
    q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    tie_word_embeddings=False,
)  # fmt: skip
INDEXER = {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
DEEPSEEK32 = DEEPSEEK | INDEXER | {"model_type": "deepseek_v32"}
GLM5 = DEEPSEEK32 | of(
    "glm_moe_dsa", 78, 6144, 64, 154_880, num_key_value_heads=64, intermediate_size=12288, q_lora_rank=2048,
    qk_nope_head_dim=192, v_head_dim=256, index_n_heads=32,
)  # fmt: skip
DEEPSEEK4 = of(
    "deepseek_v4", 43, 4096, 64, 129_280, num_key_value_heads=1, head_dim=512, moe_intermediate_size=2048,
    n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=6, q_lora_rank=1024, o_groups=8, o_lora_rank=1024,
    sliding_window=128, hc_mult=4, **INDEXER | {"index_topk": 512},
)  # fmt: skip
KIMI_LINEAR = of(
    "kimi_linear", 27, 2304, 32, 163_840, num_key_value_heads=32, intermediate_size=9216, moe_intermediate_size=1024,
    num_experts=256, num_shared_experts=1, num_experts_per_token=8, first_k_dense_replace=1, q_lora_rank=None,
    kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    linear_attn_config={"head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
                        "kda_layers": [i + 1 for i in range(27) if not i or i % 4],
                        "full_attn_layers": [i + 1 for i in range(1, 27) if i % 4 == 0]},
)  # fmt: skip
MINIMAX = of(
    "minimax_m2", 62, 3072, 48, 200_064, num_key_value_heads=8, head_dim=128, intermediate_size=1536,
    num_local_experts=256, num_experts_per_tok=8,
)  # fmt: skip
NEMOTRON = of(
    "nemotron_h", 52, 2688, 32, 131_072, num_key_value_heads=2, head_dim=128, mamba_num_heads=64, mamba_head_dim=64,
    ssm_state_size=128, n_groups=8, n_routed_experts=128, num_experts_per_tok=6, moe_intermediate_size=1856,
    moe_shared_expert_intermediate_size=3712, hybrid_override_pattern="MEMEM*E" * 5 + "MEMEMEM*E" + "ME" * 4,
)  # fmt: skip
GEMMA4 = of(
    "gemma4_text", 60, 5376, 32, 262_144, num_key_value_heads=16, head_dim=256, intermediate_size=21_504,
    sliding_window=1024, attention_k_eq_v=True, num_global_key_value_heads=4, hidden_size_per_layer_input=0,
)  # fmt: skip
GEMMA4_SMALL = of(
    "gemma4_text", 35, 1536, 8, 262_144, num_key_value_heads=1, intermediate_size=6144, num_kv_shared_layers=20,
    use_double_wide_mlp=True, layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7,
)  # fmt: skip
LINEAR = {"linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_value_head_dim": 128}
QWEN3_NEXT = of(
    "qwen3_next", 48, 2048, 16, 151_936, num_key_value_heads=2, head_dim=256, intermediate_size=5120,
    moe_intermediate_size=512, shared_expert_intermediate_size=512, num_experts=512, num_experts_per_tok=10,
    decoder_sparse_step=1, mlp_only_layers=[], full_attention_interval=4, linear_conv_kernel_dim=4,
    linear_num_value_heads=32, **LINEAR,
)  # fmt: skip
QWEN35_27B = {
    "model_type": "qwen3_5", "tie_word_embeddings": False, "vision_config": {"hidden_size": 1152},
    "text_config": of(
        "qwen3_5_text", 64, 5120, 24, 248_320, num_key_value_heads=4, head_dim=256, intermediate_size=17408,
        linear_num_value_heads=48, layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 16, **LINEAR,
    ),
}  # fmt: skip


def _neox(hidden: int, layers: int, heads: int, vocab: int = 50_304) -> dict[str, Any]:
    rest = {"rotary_pct": 0.25, "use_parallel_residual": True, "tie_word_embeddings": False}
    sizes = {"intermediate_size": 4 * hidden, "max_position_embeddings": 2048}
    return of("gpt_neox", layers, hidden, heads, vocab, **sizes) | rest


def _opt(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    rest = {"max_position_embeddings": 2048, "word_embed_proj_dim": hidden, "do_layer_norm_before": True}
    return of("opt", layers, hidden, heads, 50_272, ffn_dim=4 * hidden) | rest | more


def _mpt(hidden: int, layers: int, heads: int, longest: int) -> dict[str, Any]:
    attention = {"alibi": True, "attn_type": "multihead_attention", "prefix_lm": False}
    sizes = {"d_model": hidden, "n_layers": layers, "n_heads": heads, "expansion_ratio": 4, "max_seq_len": longest}
    rest = {"vocab_size": 50_432, "no_bias": True, "learned_pos_emb": True, "attn_config": attention}
    return {"model_type": "mpt", **sizes, **rest}


def _phi(hidden: int, layers: int) -> dict[str, Any]:
    rest = {"num_key_value_heads": None, "partial_rotary_factor": 0.4, "tie_word_embeddings": False}
    return of("phi", layers, hidden, 32, 51_200, intermediate_size=4 * hidden) | rest


def _starcoder2(hidden: int, layers: int, heads: int, shared: int, **more: Any) -> dict[str, Any]:
    rest = {"num_key_value_heads": shared, "sliding_window": 4096, "use_bias": True}
    return of("starcoder2", layers, hidden, heads, 49_152, intermediate_size=4 * hidden) | rest | more


def _short(kind: str, hidden: int, layers: int, heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    """By the names of GPT-2."""
    return {"model_type": kind, "n_embd": hidden, "n_layer": layers, "n_head": heads, "vocab_size": vocab, **more}


def _bloom(hidden: int, layers: int, heads: int, key: str = "hidden_size") -> dict[str, Any]:
    return {"model_type": "bloom", key: hidden, "n_layer": layers, "n_head": heads, "vocab_size": 250_880}


def _falcon(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return of("falcon", layers, hidden, heads, 65_024, bias=False, multi_query=True, parallel_attn=True) | more


_GROUPS = {"new_decoder_architecture": True, "num_kv_heads": 8}
_RW = {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True, "vocab_size": 50_304}
_STARCODER = {"n_inner": 24_576, "n_positions": 8192, "multi_query": True}

PLAIN: dict[str, tuple[dict[str, Any], int]] = {
    "mpt-7b": (_mpt(4096, 32, 32, 2048), 6_649_286_656),
    "mpt-30b": (_mpt(7168, 48, 64, 8192), 29_957_200_896),
    "pythia-70m": (_neox(512, 6, 8), 70_426_624),
    "pythia-160m": (_neox(768, 12, 12), 162_322_944),
    "pythia-410m": (_neox(1024, 24, 16), 405_334_016),
    "pythia-1b": (_neox(2048, 16, 8), 1_011_781_632),
    "pythia-1.4b": (_neox(2048, 24, 16), 1_414_647_808),
    "pythia-2.8b": (_neox(2560, 32, 32), 2_775_208_960),
    "pythia-6.9b": (_neox(4096, 32, 32, 50_432), 6_857_302_016),
    "pythia-12b": (_neox(5120, 36, 40, 50_688), 11_846_072_320),
    "gpt-neox-20b": (_neox(6144, 44, 64, 50_432), 20_554_567_680),
    "opt-125m": (_opt(768, 12, 12), 125_239_296),
    "opt-350m": (_opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False), 331_196_416),
    "opt-1.3b": (_opt(2048, 24, 32), 1_315_758_080),
    "opt-2.7b": (_opt(2560, 32, 32), 2_651_596_800),
    "opt-6.7b": (_opt(4096, 32, 32), 6_658_473_984),
    "opt-13b": (_opt(5120, 40, 40), 12_853_473_280),
    "opt-30b": (_opt(7168, 48, 56), 29_974_540_288),
    "opt-66b": (_opt(9216, 64, 72), 65_719_701_504),
    "phi-1_5": (_phi(2048, 24), 1_418_270_720),
    "phi-2": (_phi(2560, 32), 2_779_683_840),
    "starcoder2-3b": (_starcoder2(3072, 30, 24, 2), 3_030_371_328),
    "starcoder2-7b": (_starcoder2(4608, 32, 36, 4), 7_173_923_840),
    "starcoder2-15b": (_starcoder2(6144, 40, 48, 4, tie_word_embeddings=False), 15_957_889_024),
    "gpt2": (_short("gpt2", 768, 12, 12, 50_257, n_positions=1024), 124_439_808),
    "gpt2-xl": (_short("gpt2", 1600, 48, 25, 50_257, n_positions=1024), 1_557_611_200),
    "starcoder": (_short("gpt_bigcode", 6144, 40, 48, 49_152, **_STARCODER), 15_517_456_384),
    "gpt-j-6b": (_short("gptj", 4096, 28, 16, 50_400, rotary_dim=64), 6_050_882_784),
    "codegen-350m": (_short("codegen", 1024, 20, 16, 51_200), 356_712_448),
    "bloom-560m": (_bloom(1024, 24, 16), 559_214_592),
    "bloom-7b1": (_bloom(4096, 30, 32), 7_069_016_064),
    "bloom": (_bloom(14_336, 70, 112, "n_embed"), 176_247_271_424),
    "falcon-7b": (_falcon(4544, 32, 71), 6_921_720_704),
    "falcon-40b": (_falcon(8192, 60, 128, **_GROUPS), 41_303_293_952),
    "falcon-rw-1b": (_falcon(2048, 24, 32, **_RW), 1_311_625_216),
}
