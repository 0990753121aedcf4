"""Attention that heads and ranks alone do not tell: by indexers, compressed, by states, or of layers that differ.

Each function adds its matmuls, what its layers see of a sample and its parameters outside matmuls (in all layers). The
classes of Transformers 5.24 are the source. What an indexer of sparse attention scores is counted, what it takes to
choose the highest scores is not; attention to the chosen tokens is counted in expanded heads, as it is before the
choice binds. Kernels that stay in the latent space compute up to 3.4 times as many FLOPs for each chosen token.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from odcsim.catalog.families import Config
from odcsim.model import Model

CHUNK = 64  # tokens that the gated delta rule takes at a time in Transformers and in flash-linear-attention
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
RATIOS = {0: SLIDING, 4: SPARSE, 128: HEAVY}  # as files of DeepSeek V4 write them
# What a layer of Nemotron-H is, in its files' letters and in names that Transformers has written.
BLOCKS = {"M": LINEAR, "mamba": LINEAR, "*": FULL, "attention": FULL, "E": "moe", "-": "mlp"}
BLOCKS |= {name: name for name in BLOCKS.values()}
Mixed = tuple[Model, float]


def delta_state(heads: int, keys: int, values: int) -> int:
    """Forward FLOPs of a token in the state of a gated delta rule with heads of these widths."""
    return heads * (6 * keys * values + CHUNK * (5 * keys + 3 * values))


def _indexed(config: Config, model: Model) -> Mixed:
    """DeepSeek's sparse attention: an indexer scores all earlier tokens in heads of its own, and attention sees those
    with the highest scores. A layer may take over what the one before it chose."""
    layers, hidden = model.layers, model.hidden
    heads, width = config.number("index_n_heads"), config.number("index_head_dim")
    if types := config.layer_types(("full", "shared"), layers, "indexer_types"):
        indexers = types.count("full")
    else:
        every = config.number("index_topk_freq", 1, least=0) or 1
        offset = config.number("index_skip_topk_offset", 2, least=0)
        indexers = sum(max(i - offset + 1, 0) % every == 0 for i in range(layers))
    scores = indexers * heads * width / model.attention_flops_per_square
    rank = model.query_rank or hidden
    rows = [(int(inner), int(outer), layers) for inner, outer, _ in model.attention_matmuls]
    rows += [(rank, heads * width, indexers), (hidden, width, indexers), (hidden, heads, indexers)]
    reaches = ((float(layers), config.number("index_topk")), (scores, 0))
    vectors = layers * (model.query_rank + model.latent_rank) + indexers * 2 * width
    return replace(model, sparse_layers=layers, reaches=reaches, mixers=tuple(rows)), vectors


def _channel(config: Config, model: Model) -> Mixed:
    """Kimi's delta attention, which forgets each channel by itself, beside latent attention without positions."""
    layers, hidden = model.layers, model.hidden
    inner = replace(config, data=config.given("linear_attn_config", {}).mapping())
    heads = inner.number("num_heads", config.number("linear_num_heads", 32))
    width = inner.number("head_dim", config.number("linear_head_dim", 128))
    kernel = inner.number("short_conv_kernel_size", config.number("linear_conv_kernel_dim", 4))
    if types := config.layer_types((FULL, LINEAR), layers):
        linear = types.count(LINEAR)
    elif (known := inner.given("kda_layers", [])).values():
        linear = len(known.wholes(1, layers))
        if linear > layers:
            known.refuse(f"num_hidden_layers is {layers}")
    else:
        linear = layers - (layers - 1) // 4
    wide = heads * width
    # Queries, keys, values and the way out; two gates by a rank as wide as a head; one scalar per head.
    parameters = 4 * hidden * wide + 2 * width * (hidden + wide) + hidden * heads
    state = delta_state(heads, width, width)
    softmax = (layers - linear) * (model.query_rank + model.latent_rank)
    vectors = softmax + linear * (3 * wide * kernel + wide + heads + width)
    return replace(model, linear_layers=linear, linear_parameters=parameters, linear_state=state), vectors


def _wide(config: Config, model: Model) -> Mixed:
    """Gemma 4: full layers have wider heads, and keys that are values; the last layers take keys and values of others;
    every layer may add an embedding of its own, and have experts beside an MLP."""
    layers, hidden, heads = model.layers, model.hidden, model.heads
    every = config.number("sliding_window_pattern", 6)
    types = config.layer_types((FULL, SLIDING), layers)
    types = types or [SLIDING if (i + 1) % every else FULL for i in range(layers)]
    types = [*types[:-1], FULL]
    same = config.flag("attention_k_eq_v", False)
    width = config.number("global_head_dim", 512)
    shared = config.number("num_global_key_value_heads", model.kv_heads) if same else model.kv_heads
    for layer in config.given("per_layer_config", {}).mapping().values():  # as the library writes it again
        own = replace(config, data=layer if isinstance(layer, dict) else {})
        width, shared = own.number("head_dim", width), own.number("num_key_value_heads", shared)
    taken = config.number("num_kv_shared_layers", 0, least=0, most=layers)
    rows, vectors = list[tuple[int, int, int]](), 0
    for kind in (SLIDING, FULL):
        count, own_keys = types.count(kind), types[: layers - taken].count(kind)
        head, keys = (width, shared) if kind == FULL else (model.head_dim, model.kv_heads)
        rows += [(hidden, heads * head, count), (heads * head, hidden, count)]
        rows.append((hidden, keys * head * (1 if same and kind == FULL else 2), own_keys))
        vectors += head * (count + own_keys)  # norms of queries and of keys
    window = config.number("sliding_window")
    model = replace(model, window=window, window_layers=types.count(SLIDING), sparse_layers=types.count(FULL))
    if taken and config.flag("use_double_wide_mlp", False):  # the other half of their MLPs
        rows += [(hidden, model.ffn, 2 * taken), (model.ffn, hidden, taken)]
    if beside := config.number("hidden_size_per_layer_input", least=0):
        # A gate and a way back in each layer, and its part of one projection before all of them.
        rows += [(hidden, beside, 2 * layers), (beside, hidden, layers)]
        vectors += layers * hidden
        words = config.number("vocab_size_per_layer_input", model.vocab)
        model = replace(model, outside=words * layers * beside + beside)
    if model.experts:
        vectors += layers * (4 * hidden + model.experts)  # three norms, and scales of the router
        model = replace(model, shared_ffn=config.number("intermediate_size"))
    rows = [row for row in rows if row[2]]
    return replace(model, reaches=((types.count(FULL) * width / model.head_dim, 0),), mixers=tuple(rows)), vectors


def _compressed(config: Config, model: Model) -> Mixed:
    """DeepSeek V4: every layer sees a window; most see entries of several tokens each as well, all of them, or those
    that an indexer chooses. Keys are values, one head of them; the way out is by groups; residual streams are mixed."""
    layers, hidden, heads, head = model.layers, model.hidden, model.heads, model.head_dim
    ratios = config.given("compress_ratios", []).values()[:layers]
    types = config.layer_types((SLIDING, SPARSE, HEAVY), layers)
    if not types and len(ratios) == layers and all(type(ratio) is int and ratio in RATIOS for ratio in ratios):
        types = [RATIOS[ratio] for ratio in ratios]
    types = types or [SPARSE if i > 2 and i % 2 else HEAVY for i in range(layers)]
    rates = replace(config, data=config.given("compress_rates", {}).mapping())
    every, seldom = (
        rates.number(SPARSE, config.number("compress_rate_csa", 4)),
        rates.number(HEAVY, config.number("compress_rate_hca", 128)),
    )
    sparse, heavy = types.count(SPARSE), types.count(HEAVY)
    rank, groups, inner = (config.number(key) for key in ("q_lora_rank", "o_groups", "o_lora_rank"))
    index, width, most = (config.number(key) for key in ("index_n_heads", "index_head_dim", "index_topk"))
    if heads * head % groups:
        config.given("o_groups").refuse(f"it must divide num_attention_heads x head_dim, {heads * head}")
    streams = config.number("hc_mult", 4)
    mixing = (2 + streams) * streams
    rows = [
        (hidden, rank, layers),
        (rank, heads * head, layers),
        (hidden, head, layers),
        (heads * head // groups, groups * inner, layers),
        (groups * inner, hidden, layers),
        (hidden, 4 * (head + width), sparse),  # keys and gates of compressors, of two windows at a time
        (rank, index * width, sparse),
        (hidden, index, sparse),
        (hidden, 2 * head, heavy),
        (streams * hidden, mixing, 2 * layers),
    ]
    scores = sparse * index * width / model.attention_flops_per_square
    reaches = (
        (float(sparse + heavy), config.number("sliding_window")),
        (sparse / every, every * most),
        (scores / every, 0),
        (heavy / seldom, 0),
    )
    vectors = layers * (rank + head + heads + 2 * (mixing + 3)) + heavy * head * (seldom + 1)
    vectors += sparse * (head + width) * (2 * every + 1)
    model = replace(
        model,
        window=config.number("sliding_window"),
        window_layers=layers - sparse - heavy,
        sparse_layers=sparse + heavy,
        reaches=tuple(row for row in reaches if row[0]),
        mixers=tuple(row for row in rows if row[2]),
        streams=streams - 1,
        outside=streams * (streams * hidden + 1) + 1,
    )
    return model, vectors


def _blocks(config: Config, model: Model) -> Mixed:
    """Nemotron-H: a layer is one thing, a state (Mamba-2), attention, experts or an MLP. Its state is multiplied in
    chunks, as in arXiv 2405.21060, section 6."""
    layers, hidden, wide = model.layers, model.hidden, model.heads * model.head_dim
    if config.given("moe_latent_size", 0).value:
        config.given("moe_latent_size").refuse("experts behind a narrower projection are not modelled here")
    names = config.layer_types(tuple(BLOCKS), layers, "layers_block_type")
    if not names:
        config.require(["hybrid_override_pattern"])
        pattern = config.given("hybrid_override_pattern")
        names = [*pattern.text()]
        if len(names) != layers or not set(names) <= set(BLOCKS):
            pattern.refuse(f"give M, *, E or - for each of num_hidden_layers, {layers}")
    kinds = [BLOCKS[name] for name in names]
    states, full, moe, mlp = (kinds.count(kind) for kind in (LINEAR, FULL, "moe", "mlp"))
    heads, width, size = (config.number(key) for key in ("mamba_num_heads", "mamba_head_dim", "ssm_state_size"))
    inner, both, chunk = heads * width, 2 * config.number("n_groups") * size, config.number("chunk_size", 128)
    rows = [
        (hidden, 2 * inner + both + heads, states),
        (inner, hidden, states),
        (hidden, wide + 2 * model.kv_heads * model.head_dim, full),
        (wide, hidden, full),
    ]
    if mlp:
        ffn = config.number("intermediate_size")
        rows += [(hidden, ffn, mlp), (ffn, hidden, mlp)]
    model = replace(model, dense_layers=layers - moe, dense_ffn=0)
    if not moe:  # dense_ffn is what memory needs in one layer; no parameter counts by it
        model = replace(model, experts=0, experts_active=0, shared_ffn=0, dense_layers=0, ffn=0)
        model = replace(model, dense_ffn=config.number("intermediate_size") if mlp else 0)
    state = inner * (4 * size + 2 * chunk) + chunk * both
    kernel = config.number("conv_kernel", 4) + config.flag("use_conv_bias", True)
    vectors = states * ((inner + both) * kernel + 3 * heads + inner)
    linear, rows = layers - full, [row for row in rows if row[2]]
    each = round(state * states / linear) if linear else 0
    return replace(model, linear_layers=linear, linear_state=each, mixers=tuple(rows)), vectors


MIXERS: Mapping[str, Callable[[Config, Model], Mixed]] = {
    "indexed": _indexed,
    "channel": _channel,
    "wide": _wide,
    "compressed": _compressed,
    "blocks": _blocks,
}
