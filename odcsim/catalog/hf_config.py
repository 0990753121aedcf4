"""Read a Hugging Face `config.json` into a Model.

What such a file leaves out, the library fills in by `model_type`, and so does `odcsim.catalog.hf_families`. Of a nested
`text_config` only the text model is read: vision towers and draft (multi-token prediction) layers are left out, and so
are shared-expert gates, which weigh less than a thousandth of a layer.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from odcsim.catalog import hf_plain
from odcsim.catalog.hf_families import FAMILIES, STATES, Family
from odcsim.catalog.hf_keys import Config
from odcsim.errors import InputError, misspelled
from odcsim.model import Model
from odcsim.support.checked import Given, shown
from odcsim.support.files import reading
from odcsim.support.whole import read_text

MOST_LAYERS = 10_000

EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
SHARED = ("shared_expert_intermediate_size",)
LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
LINEAR = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
BASIC = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
KINDS = ("full_attention", "sliding_attention", "linear_attention")
CHUNKS = ("full_attention", "chunked_attention")


def read_config(path: str | Path) -> Model:
    """The model that a `config.json`, or the folder holding one, describes."""
    file = Path(path)
    with reading(file, missing="give a config.json", expected="a Hugging Face config.json"):
        file = file / "config.json" if file.is_dir() else file
    with reading(file, missing="give a config.json", expected="a Hugging Face config.json"):
        data = json.loads(read_text(file))
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return from_config(data, name=name or "config", where=str(file))


def from_config(data: object, *, name: str, where: str) -> Model:
    """The model that parsed JSON describes; `where` names its origin in errors."""
    if not isinstance(data, dict):
        raise InputError(f"holds a {type(data).__name__}, not an object", where=where, fix="give a config.json")
    text = data.get("text_config")
    inner = text if isinstance(text, dict) else data
    family, kind = _family(inner, data, where)
    config = Config(inner, family, kind, where)
    config.require(*BASIC)
    return _build(config, name, _tied(inner, data, family, where))


def _family(inner: Mapping[str, Any], outer: Mapping[str, Any], where: str) -> tuple[Family, str]:
    kind = inner.get("model_type", outer.get("model_type"))
    fix = (
        f"read as text models: {', '.join(FAMILIES)}; for one whose layers are like theirs change model_type in a copy"
    )
    if kind is None:
        raise InputError("has no 'model_type'", where=where, fix=fix)
    if kind in STATES:
        fix = "measure it: 'odcsim fit --help', or pick a model of 'odcsim catalog list'"
        raise InputError(
            f"model_type '{kind}' has layers that carry a state, such as Mamba's, which no estimate here models",
            where=where,
            fix=fix,
        )
    if not isinstance(kind, str) or kind not in FAMILIES:
        slip = misspelled(kind, list(FAMILIES)) if isinstance(kind, str) else ""
        missing = [key for key in BASIC if key not in inner]
        lacks = f", and the file lacks {', '.join(missing)}" if missing else ""
        raise InputError(f"unknown model_type {shown(kind)}{lacks}", where=where, fix=f"{slip} {fix}".strip())
    return FAMILIES[kind], kind


def _tied(inner: Mapping[str, Any], outer: Mapping[str, Any], family: Family, where: str) -> bool:
    for source in (inner, outer):
        if (value := source.get("tie_word_embeddings")) is not None:
            return Given("tie_word_embeddings", value, where).flag()
    return family.tied


def _build(config: Config, name: str, tied: bool) -> Model:
    layers = config.number("num_hidden_layers", most=MOST_LAYERS)
    hidden, heads, vocab = (config.number(key) for key in BASIC[1:])
    parts = _heads(config, hidden, heads) | _mlp(config, layers) | _layout(config, layers)
    model = Model(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocab=vocab,
        tied=tied,
        plain_mlp=config.family.plain,
        embedding=hf_plain.embedding_width(config, hidden),
        outside=hf_plain.outside(config, hidden, vocab),
        **parts,
    )
    return _with_vectors(config, model)


def _heads(config: Config, hidden: int, heads: int) -> dict[str, Any]:
    if config.family.latent:
        config.require(*LATENT)
        rotary = config.number("qk_rope_head_dim")
        return {
            "kv_heads": heads,
            "head_dim": config.number("qk_nope_head_dim") + rotary,
            "query_rank": config.number("q_lora_rank", 0, least=0),
            "latent_rank": config.number("kv_lora_rank"),
            "rotary_dim": rotary,
            "value_dim": config.number("v_head_dim"),
        }
    shared = hf_plain.shared_heads(config, heads)
    if heads % shared:
        config.refuse("num_key_value_heads", f"it must divide num_attention_heads, {heads}")
    if not config.has("head_dim") and hidden % heads:
        config.refuse("hidden_size", f"it must be a multiple of num_attention_heads, {heads}, or head_dim be given")
    gated = config.flag("attn_output_gate", config.family.gated)
    return {"kv_heads": shared, "head_dim": config.number("head_dim", max(1, hidden // heads)), "gated": gated}


def _mlp(config: Config, layers: int) -> dict[str, Any]:
    key = next((key for key in EXPERTS if config.data.get(key) is not None), "")
    experts = config.number(key, least=0) if key else 0
    size = config.family.expert_size
    if not size:
        if experts > 1:
            config.refuse(key, f"model_type '{config.kind}' has no experts: remove it or correct model_type")
        usual = config.number("expansion_ratio", config.family.widens, least=0) * config.number("hidden_size")
        return {"ffn": config.number("intermediate_size", usual or None)}
    if not experts:
        raise InputError(f"lacks {' or '.join(EXPERTS)}", where=config.where, fix=f"'{config.kind}' has experts")
    config.require(size, "num_experts_per_tok")
    ffn, dense = config.number(size), _dense_layers(config, layers)
    interleaved = config.has("interleave_moe_layer_step")  # as Llama 4 does, which has a shared expert in each, too
    shared = ffn * config.number("n_shared_experts", int(interleaved), least=0)
    return {
        "ffn": ffn,
        "experts": experts,
        "experts_active": config.number("num_experts_per_tok", most=experts),
        "shared_ffn": config.number(SHARED[0], 0, least=0) or shared,
        "dense_layers": dense,
        "dense_ffn": config.number("intermediate_size_mlp" if interleaved else "intermediate_size") if dense else 0,
    }


def _dense_layers(config: Config, layers: int) -> int:
    """The first k and every n-th (DeepSeek), or a list and every n-th counted from one (Qwen, Llama 4)."""
    first = config.number("first_k_dense_replace", 0, least=0, most=layers)
    every = config.number("moe_layer_freq", 1)
    step = config.number("interleave_moe_layer_step", config.number("decoder_sparse_step", 1))
    named = config.items("mlp_only_layers")
    if not all(isinstance(index, int) for index in named):
        config.refuse("mlp_only_layers", "write a list of layer numbers")
    chosen = set(named)
    return sum(i < first or i % every > 0 or (i + 1) % step > 0 or i in chosen for i in range(layers))


def _layout(config: Config, layers: int) -> dict[str, Any]:
    windows, linear = _layer_kinds(config, layers)
    parts: dict[str, Any] = {}
    chunks = config.family.layout == "chunks"
    if windows:
        size = config.number("attention_chunk_size" if chunks else "sliding_window")
        parts |= {"window": size, "window_layers": windows, "chunked": chunks}
    if linear:
        config.require(*LINEAR)
        parts |= {"linear_layers": linear, "linear_parameters": _linear_matmul(config)}
    return parts


def _layer_kinds(config: Config, layers: int) -> tuple[int, int]:
    """How many layers attend in a window, and how many linearly."""
    named, kinds = config.items("layer_types"), CHUNKS if config.family.layout == "chunks" else KINDS
    if named:
        unknown = next((kind for kind in named if kind not in kinds), None)
        if unknown is not None:
            config.refuse("layer_types", f"{shown(unknown)} is none of {', '.join(kinds)}")
        if len(named) != layers:
            fix = f"num_hidden_layers is {layers}: give as many"
            raise InputError(f"layer_types names {len(named)} layers", where=config.where, fix=fix)
        return named.count(kinds[1]), named.count(KINDS[2])
    return _default_kinds(config, layers)


def _default_kinds(config: Config, layers: int) -> tuple[int, int]:
    layout = config.family.layout
    if layout == "linear":
        return 0, layers - layers // config.number("full_attention_interval")
    if layout == "pattern":
        return layers - layers // config.number("sliding_window_pattern", 6), 0
    if layout == "chunks":
        return layers - layers // config.number("no_rope_layer_interval"), 0
    if layout == "alternate":
        return (layers + 1) // 2, 0
    if layout == "all":
        return (layers if config.has("sliding_window") else 0), 0
    if layout == "upper" and config.flag("use_sliding_window", False):
        return max(0, layers - config.number("max_window_layers", layers, least=0)), 0
    return 0, 0


def _delta(config: Config) -> tuple[int, int, int]:
    keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
    heads = config.number("linear_num_value_heads")
    return keys, heads * config.number("linear_value_head_dim"), heads


def _linear_matmul(config: Config) -> int:
    """Gated delta rule: queries, keys, values, output gate, two scalars per head, and the way out."""
    keys, values, heads = _delta(config)
    return config.number("hidden_size") * (2 * keys + 3 * values + 2 * heads)


def _with_vectors(config: Config, model: Model) -> Model:
    family, width = config.family, (model.heads + 2 * model.kv_heads) * model.head_dim
    softmax = model.query_rank + model.latent_rank
    if not model.latent_rank:
        bias = config.flag("attention_bias", family.bias)
        out = (
            family.out_bias if bias == family.bias else bias
        )  # a switch of its own in llama and qwen3 covers the output
        within = family.query_key_norm or config.flag("qk_layernorm", False)
        softmax += width * bias + model.hidden * out + 2 * hf_plain.norm_width(config, model.head_dim) * within
        softmax += (model.heads + model.kv_heads) * model.head_dim * family.wide_norms
        softmax += model.heads * family.sinks
    linear = 0
    if model.linear_layers:
        keys, values, heads = _delta(config)
        kernel = config.number("linear_conv_kernel_dim", 4)
        linear = (2 * keys + values) * kernel + config.number("linear_value_head_dim") + 2 * heads
    experts = model.experts * (2 * model.ffn + model.hidden + 1) * family.expert_bias
    mixers = (model.layers - model.linear_layers) * softmax + model.linear_layers * linear
    norms = hf_plain.norms(config) * hf_plain.norm_width(config, model.hidden)
    return replace(model, vectors=round(norms + mixers / model.layers + experts + _mlp_bias(config, model)))


def _mlp_bias(config: Config, model: Model) -> int:
    if model.experts or not config.flag("mlp_bias", config.family.mlp_bias):
        return 0
    return model.ffn * (1 if model.plain_mlp else 2) + model.hidden
