"""What others count: Transformers the parameters of a config.json, trainers the FLOPs of a step."""

import pytest
from configs import LLAMA, PLAIN, build

from odcsim import catalog
from odcsim.catalog.estimates.compute import flops
from odcsim.catalog.hf_config import families
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
