"""Read a Hugging Face `config.json` into a Model.

What such a file leaves out, the library fills in by `model_type`, and so does `odcsim/catalog/families.toml`. Of a
nested `text_config` only the text model is read: vision towers and draft (multi-token prediction) layers are left out,
and so are shared-expert gates, which weigh less than a thousandth of a layer. ALiBi, partial rotary embeddings, and
attention beside the MLP instead of before it leave parameters and FLOPs as they are. As its library does, `mpt` has no
learnt positions and no biases, whatever its file says of them.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from odcsim.catalog.families import MOST_LAYERS, Config, Family, families, table
from odcsim.catalog.hf_attention import MIXERS, delta_state
from odcsim.errors import InputError, misspelled
from odcsim.model import Model
from odcsim.support.inputs import read_text, reading
from odcsim.support.values import Given, shown

EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
LINEAR = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
BASIC = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
KINDS = ("full_attention", "sliding_attention", "linear_attention")
CHUNKS = ("full_attention", "chunked_attention")
ATTENTION = ("multihead_attention", "multiquery_attention", "grouped_query_attention")


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
    thinker = data.get("thinker_config")  # of a model that hears and speaks as well
    text = (thinker if isinstance(thinker, dict) else data).get("text_config")
    inner = text if isinstance(text, dict) else data
    kind, family = _family(inner, data, where)
    config = Config(inner, family, kind, where)
    config.require(BASIC)
    tied = inner.get("tie_word_embeddings")
    if tied is None:
        tied = data.get("tie_word_embeddings")
    tied = config.family.tied if tied is None else Given("tie_word_embeddings", tied, where).flag()
    layers = config.number("num_hidden_layers", most=MOST_LAYERS)
    hidden, heads, vocab = (config.number(key) for key in BASIC[1:])
    model = Model(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=0,  # this and the MLP's width, and what not every model has, step by step
        ffn=0,
        vocab=vocab,
        tied=tied,
        plain_mlp=config.family.plain,
    )
    model = _add_heads(config, model)
    model = _add_mlp(config, model)
    if config.family.mixer:
        model, mixing = MIXERS[config.family.mixer](config, model)
    else:
        model = _add_layout(config, model)
        mixing = _mixing_vectors(config, model)
    model = _add_root(config, model)
    return _add_vectors(config, model, mixing)


def _family(inner: Mapping[str, Any], outer: Mapping[str, Any], where: str) -> tuple[str, Family]:
    """The `model_type` and what it means, or a refusal that says what to do instead."""
    kind, known = inner.get("model_type", outer.get("model_type")), families()
    names = ", ".join(table()["families"])
    fix = f"read as text models: {names}; for one whose layers are like theirs change model_type in a copy"
    if kind is None:
        raise InputError("has no 'model_type'", where=where, fix=fix)
    if kind in table()["states"]:
        fix = "measure it: 'odcsim fit --help', or pick a model of 'odcsim catalog list'"
        raise InputError(
            f"model_type '{kind}' has layers that carry a state, such as Mamba's, which no estimate here models",
            where=where,
            fix=fix,
        )
    if not isinstance(kind, str) or kind not in known:
        slip = misspelled(kind, list(known)) if isinstance(kind, str) else ""
        missing = [key for key in BASIC if key not in inner]
        lacks = f", and the file lacks {', '.join(missing)}" if missing else ""
        raise InputError(f"unknown model_type {shown(kind)}{lacks}", where=where, fix=f"{slip} {fix}".strip())
    return kind, known[kind]


def _add_heads(config: Config, model: Model) -> Model:
    """Attention's heads and their size; with latent attention its ranks."""
    if config.family.latent:
        config.require(LATENT)
        rotary = config.number("qk_rope_head_dim")
        return replace(
            model,
            head_dim=config.number("qk_nope_head_dim") + rotary,
            query_rank=config.number("q_lora_rank", 0, least=0),
            latent_rank=config.number("kv_lora_rank"),
            rotary_dim=rotary,
            value_dim=config.number("v_head_dim"),
        )
    heads = model.heads
    shared = _key_value_heads(config, heads)
    if heads % shared:
        config.given("num_key_value_heads").refuse(f"it must divide num_attention_heads, {heads}")
    if not config.has("head_dim") and model.hidden % heads:
        fix = f"it must be a multiple of num_attention_heads, {heads}, or head_dim be given"
        config.given("hidden_size").refuse(fix)
    gated = config.flag("attn_output_gate", config.family.gated)
    head_dim = config.number("head_dim", max(1, model.hidden // heads))
    return replace(model, kv_heads=shared, head_dim=head_dim, gated=gated)


def _key_value_heads(config: Config, heads: int) -> int:
    """Heads of keys and values. Those of MPT are as llm-foundry has them (https://github.com/mosaicml/llm-foundry,
    `attn_config`)."""
    if config.kind == "mpt":
        inner = replace(config, data=config.given("attn_config", {}).mapping())
        kind = inner.given("attn_type", ATTENTION[0]).one_of(ATTENTION)
        return heads if kind == ATTENTION[0] else 1 if kind == ATTENTION[1] else inner.number("kv_n_heads")
    new = config.flag("new_decoder_architecture", False)  # Falcon's, which has groups
    if not new and config.family.multi_query and config.flag("multi_query", True):
        return 1
    return config.number("num_key_value_heads", heads)


def _add_mlp(config: Config, model: Model) -> Model:
    """The MLP's width, and its experts."""
    key = next((key for key in EXPERTS if config.data.get(config.name_of(key)) is not None), "")
    experts = config.number(key, least=0) if key else 0
    size = config.family.expert_size
    if not size:
        if experts > 1:
            config.given(key).refuse(f"model_type '{config.kind}' has no experts: remove it or correct model_type")
        usual = config.number("expansion_ratio", config.family.widens, least=0) * model.hidden
        return replace(model, ffn=config.number("intermediate_size", usual or None))
    if config.family.some_dense and not (experts and config.flag("enable_moe_block", True)):
        return replace(model, ffn=config.number("intermediate_size"))
    if not experts:
        raise InputError(f"lacks {' or '.join(EXPERTS)}", where=config.where, fix=f"'{config.kind}' has experts")
    config.require([size, "num_experts_per_tok"])
    ffn, dense = config.number(size), _dense_layers(config, model.layers)
    interleaved = config.has("interleave_moe_layer_step")  # as Llama 4 does, which has a shared expert in each, too
    shared = ffn * config.number("n_shared_experts", int(interleaved), least=0)
    return replace(
        model,
        ffn=ffn,
        experts=experts,
        experts_active=config.number("num_experts_per_tok", most=experts),
        shared_ffn=config.number("shared_expert_intermediate_size", 0, least=0) or shared,
        dense_layers=dense,
        dense_ffn=config.number("intermediate_size_mlp" if interleaved else "intermediate_size") if dense else 0,
    )


def _dense_layers(config: Config, layers: int) -> int:
    """The first k and every n-th (DeepSeek), or a list and every n-th counted from one (Qwen, Llama 4)."""
    if kinds := config.given("mlp_layer_types", []).values():
        return min(layers, kinds.count("dense"))
    first = config.number("first_k_dense_replace", 0, least=0, most=layers)
    every = config.number("moe_layer_freq", 1)
    step = config.number("interleave_moe_layer_step", config.number("decoder_sparse_step", 1))
    dense = config.given("mlp_only_layers", [])
    if not all(isinstance(index, int) for index in dense.values()):
        dense.refuse("write a list of layer numbers")
    chosen = set(dense.values())
    return sum(i < first or i % every > 0 or (i + 1) % step > 0 or i in chosen for i in range(layers))


def _add_layout(config: Config, model: Model) -> Model:
    """How many layers attend in a window, and how many linearly: as they are listed, or by the family's layout."""
    layers, layout = model.layers, config.family.layout
    chunked = layout == "chunks"
    kinds = CHUNKS if chunked else KINDS
    windows = linear = 0
    if names := config.layer_types(kinds, layers):
        windows, linear = names.count(kinds[1]), names.count(KINDS[2])
    elif layout == "linear":
        linear = layers - layers // config.number("full_attention_interval")
    elif layout == "pattern":
        windows = layers - layers // config.number("sliding_window_pattern", 6)
    elif layout == "chunks":
        windows = layers - layers // config.number("no_rope_layer_interval")
    elif layout == "alternate":
        windows = (layers + 1) // 2
    elif layout == "all":
        windows = layers if config.has("sliding_window") else 0
    elif layout == "upper" and config.flag("use_sliding_window", False):
        windows = max(0, layers - config.number("max_window_layers", layers, least=0))
    if windows:
        size = config.number("attention_chunk_size" if chunked else "sliding_window")
        model = replace(model, window=size, window_layers=windows, chunked=chunked)
    if linear:
        config.require(LINEAR)
        keys, values, heads = _delta(config)
        # Gated delta rule: queries, keys, values, output gate, two scalars per head, and the way out.
        parameters = model.hidden * (2 * keys + 3 * values + 2 * heads)
        state = delta_state(heads, config.number("linear_key_head_dim"), values // heads)
        model = replace(model, linear_layers=linear, linear_parameters=parameters, linear_state=state)
    return model


def _delta(config: Config) -> tuple[int, int, int]:
    """Of a gated delta rule: widths of keys and of values, and heads of these."""
    keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
    heads = config.number("linear_num_value_heads")
    return keys, heads * config.number("linear_value_head_dim"), heads


def _add_root(config: Config, model: Model) -> Model:
    """What is in no layer: an embedding that is projected to the hidden state and back; and parameters beside
    embedding, head and a final norm without bias."""
    family, hidden = config.family, model.hidden
    width = config.number("word_embed_proj_dim", hidden)
    final = config.flag("do_layer_norm_before", True) and not config.flag("_remove_final_layer_norm", False)
    outside = _norm_width(config, hidden) * (final + family.embedding_norm) - hidden
    if family.positions is not None:
        outside += hidden * (config.number("max_position_embeddings") + family.positions)
    outside += model.vocab * family.head_bias
    return replace(model, embedding=0 if width == hidden else width, outside=model.outside + outside)


def _norm_width(config: Config, width: int) -> int:
    """Parameters of one norm of this width."""
    return width * (1 + config.family.norm_bias) * config.flag("layer_norm_elementwise_affine", not config.family.bare)


def _mixing_vectors(config: Config, model: Model) -> float:
    """Parameters of attention outside matmuls, in all layers: biases, norms within, attention sinks."""
    family, width = config.family, (model.heads + 2 * model.kv_heads) * model.head_dim
    softmax = model.query_rank + model.latent_rank
    if not model.latent_rank:
        bias = config.flag("attention_bias", family.bias)
        # A switch of its own in llama and qwen3 covers the output.
        out = family.out_bias if bias == family.bias else bias
        within = family.query_key_norm or config.flag("qk_layernorm", False)
        softmax += width * bias + model.hidden * out + 2 * _norm_width(config, model.head_dim) * within
        softmax += (model.heads + model.kv_heads) * model.head_dim * family.wide_norms
        softmax += model.heads * family.sinks
    linear = 0
    if model.linear_layers:
        keys, values, heads = _delta(config)
        kernel = config.number("linear_conv_kernel_dim", 4)
        linear = (2 * keys + values) * kernel + config.number("linear_value_head_dim") + 2 * heads
    return (model.layers - model.linear_layers) * softmax + model.linear_layers * linear


def _add_vectors(config: Config, model: Model, mixing: float) -> Model:
    """Parameters of one layer outside matmuls: those of attention, norms, biases."""
    family = config.family
    norms = family.norms
    if config.kind == "falcon" and config.flag("parallel_attn", True):
        # As many as attention and MLP that run side by side need.
        usual = 2 if config.flag("new_decoder_architecture", False) else 1
        norms = config.number("num_ln_in_parallel_attn", usual, most=2)
    mlp: float = model.experts * (2 * model.ffn + model.hidden + 1) * family.expert_bias
    mlp += (model.layers - model.dense_layers) / model.layers * model.experts * family.router_bias
    if not model.experts and config.flag("mlp_bias", family.mlp_bias):
        mlp += model.ffn * (1 if model.plain_mlp else 2) + model.hidden
    vectors = round(norms * _norm_width(config, model.hidden) + mixing / model.layers + mlp)
    return replace(model, vectors=vectors)
