"""Parameters of a config.json are those of the class that Transformers makes of it: run where that is installed."""

from typing import Any

import pytest
from configs import PUBLISHED, build

from odcsim.catalog.hf_families import FAMILIES

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
SMALL |= {"intermediate_size": 96, "head_dim": 16, "pad_token_id": 0}
MOE = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "qwen3_moe": ("Qwen3Moe", MOE),
    "gemma2": ("Gemma2", {}),
    "glm4": ("Glm4", {}),
    "phi3": ("Phi3", {}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", {}),
    "smollm3": ("SmolLM3", {}),
    "seed_oss": ("SeedOss", {}),
    "cohere2": ("Cohere2", {}),
    "llama4_text": ("Llama4", {"num_local_experts": 4, "intermediate_size_mlp": 160, "interleave_moe_layer_step": 2}),
    "gpt_oss": ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


def made(kind: str, **more: Any) -> tuple[int, Any]:
    """The parameters of Transformers' model, and our model of the config that it writes."""
    import torch

    name, own = CLASSES[kind]
    config = getattr(transformers, name + ("TextConfig" if name == "Llama4" else "Config"))(**SMALL | own | more)
    with torch.device("meta"):
        model = getattr(transformers, name + "ForCausalLM")(config)
    return sum(p.numel() for p in model.parameters()), build(config.to_dict())


@pytest.mark.parametrize("kind", CLASSES)
def test_parameters_are_those_of_the_class(kind: str) -> None:
    assert kind in FAMILIES
    count, ours = made(kind)
    assert ours.parameters == pytest.approx(count, abs=ours.layers + 1)  # a layer's are rounded


@pytest.mark.parametrize("kind", ["llama", "gemma2", "olmo3", "cohere2", "smollm3", "llama4_text"])
def test_which_layers_attend_how_is_the_same_without_layer_types(kind: str) -> None:
    """Files that were written before there was such a key."""
    name, own = CLASSES[kind]
    written = getattr(transformers, name + ("TextConfig" if name == "Llama4" else "Config"))(**SMALL | own).to_dict()
    assert build({k: v for k, v in written.items() if k != "layer_types"}) == build(written)


@pytest.mark.parametrize(
    ("kind", "tied"), [(k, t) for k in ("llama", "phi3", "olmo2", "gemma2") for t in (True, False)]
)
def test_a_tied_head_is_counted_once(kind: str, tied: bool) -> None:
    count, ours = made(kind, tie_word_embeddings=tied)
    assert ours.parameters == pytest.approx(count, abs=ours.layers + 1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_without_a_gate_are_their_classes(name: str) -> None:
    """By the file as it is published, and as the library writes it again with all of its defaults."""
    import torch

    config, published = PUBLISHED[name]
    kind = config["model_type"]
    full = transformers.AutoConfig.for_model(kind, **{k: v for k, v in config.items() if k != "model_type"})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(full)
    assert sum(p.numel() for p in model.parameters()) == published
    assert build(config).parameters == build(full.to_dict()).parameters == published


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("opt-125m", {"enable_bias": False}),
        ("opt-125m", {"layer_norm_elementwise_affine": False}),
        ("opt-125m", {"_remove_final_layer_norm": True}),
        ("opt-350m", {"tie_word_embeddings": False}),
        ("starcoder2-3b", {"use_bias": False}),
        ("pythia-70m", {"attention_bias": False}),
        ("phi-2", {"qk_layernorm": True, "num_key_value_heads": 8}),
        ("starcoder", {"multi_query": False, "n_inner": None}),
        ("falcon-40b", {"num_ln_in_parallel_attn": 1, "bias": True}),
        ("falcon-rw-1b", {"ffn_hidden_size": 1024, "multi_query": True}),
        ("gpt2", {"tie_word_embeddings": False, "n_inner": 512}),
        ("bloom-560m", {"tie_word_embeddings": False}),
        ("llama", {"mlp_bias": True, "attention_bias": True}),
    ],
)
def test_switches_of_biases_norms_and_heads_are_theirs(name: str, change: dict[str, Any]) -> None:
    import torch

    config = (PUBLISHED[name][0] if name in PUBLISHED else SMALL | {"model_type": name}) | change
    full = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(full)
    assert build(config).parameters == sum(p.numel() for p in model.parameters())
