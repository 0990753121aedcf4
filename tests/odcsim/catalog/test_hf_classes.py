"""What others count: Transformers the parameters of a config.json, trainers the FLOPs of a step."""

import importlib

import pytest
from configs import LLAMA, PLAIN, build

from odcsim import catalog
from odcsim.catalog.estimates.compute import flops
from odcsim.catalog.families import families
from odcsim.catalog.hf_attention import delta_state
from odcsim.recipe import Recipe

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "intermediate_size": 96, "head_dim": 16, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {
    "qwen3_moe": {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2},
    "llama4_text": {"num_local_experts": 4, "intermediate_size_mlp": 160, "interleave_moe_layer_step": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
MIXTURE = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 16,
          "qk_nope_head_dim": 24, "v_head_dim": 12}  # fmt: skip
INDEXER = {"index_topk": 64, "index_head_dim": 16, "index_n_heads": 3}
SPARSE = LATENT | INDEXER | MIXTURE | {"n_routed_experts": 8}
COMPRESSED = INDEXER | MIXTURE | {"num_key_value_heads": 1, "n_routed_experts": 8, "q_lora_rank": 24, "o_groups": 2,
                                  "o_lora_rank": 12}  # fmt: skip
WIDE = {"global_head_dim": 32, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 512,
        "num_hidden_layers": 12}  # fmt: skip
DELTA = {"head_dim": 16, "num_heads": 3, "short_conv_kernel_size": 4, "kda_layers": [1, 2, 3, 5, 6, 7],
         "full_attn_layers": [4, 8]}  # fmt: skip
HYBRID = {"linear_key_head_dim": 16, "linear_num_key_heads": 2, "linear_value_head_dim": 8,
          "linear_num_value_heads": 4}  # fmt: skip
BLOCKS = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2, "moe_intermediate_size": 32,
          "moe_shared_expert_intermediate_size": 48}  # fmt: skip
NEWER = [  # by what the trainers' examples train, and what is special to each
    ("deepseek_v3", SPARSE),
    ("deepseek_v32", SPARSE),
    ("glm_moe_dsa", SPARSE | {"index_topk_freq": 4}),
    ("deepseek_v4", COMPRESSED),
    ("deepseek_v4", COMPRESSED | {"compress_ratios": [0, 0, 4, 128, 4, 128, 4, 0]}),
    ("kimi_linear", LATENT | MIXTURE | {"num_local_experts": 8, "q_lora_rank": None}),
    ("kimi_linear", LATENT | MIXTURE | {"num_local_experts": 8, "linear_attn_config": DELTA}),
    ("nemotron_h", BLOCKS | {"hybrid_override_pattern": "MEM*EM-E"}),
    ("nemotron_h", BLOCKS | {"hybrid_override_pattern": "MM*-M-M-"}),
    ("minimax_m2", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    ("gemma4_text", WIDE),
    ("gemma4_text", WIDE | {"num_kv_shared_layers": 4, "use_double_wide_mlp": True}),
    ("gemma4_text", WIDE | {"attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    (
        "gemma4_text",
        WIDE | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32},
    ),
    ("gemma4_unified_text", {"global_head_dim": 32, "attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    ("qwen3_5_text", HYBRID),
    ("glm4_moe_lite", LATENT | MIXTURE | {"n_routed_experts": 8}),
    ("youtu", LATENT),
    ("glm4_moe", MIXTURE | {"n_routed_experts": 8, "use_qk_norm": True}),
    ("glm", {}),
    ("solar_open", MIXTURE | {"n_routed_experts": 8}),
    ("gemma", {}),
    ("granite", {}),
    ("internlm3", {}),
    ("granitemoe", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    ("granitemoeshared", {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 48}),
    ("olmo", {}),
    ("olmoe", {"num_experts": 8, "num_experts_per_tok": 2}),
    ("cohere", {}),
    ("exaone4", {}),
    ("exaone_moe", MIXTURE | {"num_experts": 8}),
    ("ernie4_5", {}),
    ("ernie4_5_moe", {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32}),
    ("hunyuan_v1_dense", {}),
    ("hunyuan_v1_moe", {"num_experts": 8, "moe_topk": 2}),
    ("hy_v3", MIXTURE | {"num_experts": 8}),
    ("afmoe", MIXTURE | {"num_experts": 8}),
    ("apertus", {}),
    ("arcee", {}),
    ("nemotron", {}),
    ("ministral3", {}),
    ("phimoe", {"num_local_experts": 8, "num_experts_per_tok": 2}),
]
CLASSES = {
    "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe",
    "gemma2": "Gemma2", "glm4": "Glm4", "phi3": "Phi3", "olmo2": "Olmo2", "olmo3": "Olmo3", "smollm3": "SmolLM3",
    "seed_oss": "SeedOss", "cohere2": "Cohere2", "llama4_text": "Llama4", "gpt_oss": "GptOss",
}  # fmt: skip
CHANGES = [(kind, {}) for kind in CLASSES]
CHANGES += [
    (kind, {"tie_word_embeddings": tied}) for kind in ("llama", "phi3", "olmo2", "gemma2") for tied in (True, False)
]


def config_of(kind, **more):
    name = CLASSES[kind] + ("TextConfig" if kind == "llama4_text" else "Config")
    return getattr(transformers, name)(**SMALL | EXPERTS.get(kind, {}) | more)


def parameters(made, *of):
    import torch

    with torch.device("meta"):
        return sum(p.numel() for p in made(*of).parameters())


@pytest.mark.parametrize(("kind", "more"), CHANGES)
def test_parameters_are_those_of_the_class(kind, more):
    """A tied head is counted once."""
    config = config_of(kind, **more)
    count, ours = parameters(getattr(transformers, f"{CLASSES[kind]}ForCausalLM"), config), build(config.to_dict())
    assert kind in families()
    assert ours.parameters == pytest.approx(count, abs=ours.layers + 1)  # a layer's are rounded


@pytest.mark.parametrize(("kind", "more"), NEWER)
def test_parameters_of_newer_families_are_those_of_the_class(kind, more):
    config = transformers.AutoConfig.for_model(kind, **SMALL | {"bos_token_id": 0, "eos_token_id": 0} | more)
    count = parameters(transformers.AutoModelForCausalLM.from_config, config)
    ours = build({"num_hidden_layers": config.num_hidden_layers} | config.to_dict())
    assert ours.parameters == pytest.approx(count, abs=2 * ours.layers)  # a layer's are rounded, and two scalars of one
    assert families()[kind].tied == type(config)().tie_word_embeddings


def test_a_state_multiplies_what_its_function_does():
    """But for two triangular systems, which the counter does not know."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    function = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    heads, keys, values, tokens = 2, 32, 16, 256
    given = [torch.randn(1, tokens, heads, width) for width in (keys, keys, values)]
    with FlopCounterMode(display=False) as counter:
        function.torch_chunk_gated_delta_rule(
            *given, g=-torch.rand(1, tokens, heads), beta=torch.rand(1, tokens, heads)
        )
    systems = heads * 64 * (keys + values)
    assert counter.get_total_flops() / tokens + systems == delta_state(heads, keys, values)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "olmo3", "cohere2", "smollm3", "llama4_text"])
def test_which_layers_attend_how_is_the_same_without_layer_types(kind):
    """Files that were written before there was such a key."""
    written = config_of(kind).to_dict()
    assert build({key: value for key, value in written.items() if key != "layer_types"}) == build(written)


@pytest.mark.parametrize("name", PLAIN)
def test_published_models_without_a_gate_are_their_classes(name):
    """By the file as it is published, and as the library writes it again with all of its defaults."""
    config, published = PLAIN[name]
    kind = config["model_type"]
    full = transformers.AutoConfig.for_model(kind, **{k: v for k, v in config.items() if k != "model_type"})
    assert parameters(transformers.AutoModelForCausalLM.from_config, full) == published
    assert build(config).parameters == build(full.to_dict()).parameters == published


NONE = Recipe(recompute="none")


@pytest.mark.parametrize("length", [2048, 32_768])
def test_torchtitan_counts_the_same_but_for_the_causal_mask(length):
    """And but for norms, which it takes for matmuls."""
    torch, titan = pytest.importorskip("torch"), pytest.importorskip("torchtitan.models.llama3")
    config = titan.llama3_configs["8B"]("flex")
    with torch.device("meta"):
        parameters, per_token = config.get_nparams_and_flops(config.build(), length)
    ours, norms = build(LLAMA), 6 * (2 * 32 + 1) * 4096
    assert parameters == ours.parameters
    assert flops(ours, NONE, 1, 2 * length)[0] == pytest.approx(per_token - norms, rel=1e-12)


def test_verl_counts_the_same_but_for_the_embedding(monkeypatch):
    """Which it takes for a matmul."""
    counter = pytest.importorskip("verl.utils.flops_counter")
    monkeypatch.setattr(counter, "get_device_flops", lambda: 1.0)  # it asks for a GPU
    sizes = {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151_936}
    lengths, model = [100, 5000, 32_768], catalog.model("qwen2.5-1.5b")
    theirs, _ = counter.FlopsCounter(transformers.Qwen2Config(**sizes)).estimate_flops(lengths, 1.0)
    embedding = 6 * 151_936 * 1536 * sum(lengths)
    ours, _ = flops(model, NONE, sum(lengths), float(model.squares(lengths).sum()))
    assert theirs * 1e12 - embedding == pytest.approx(ours, rel=1e-12)
