"""What families whose MLP has no gate say in keys of their own: shared heads, norms, and what is in no layer.

ALiBi, partial rotary embeddings, and attention beside the MLP instead of before it leave parameters and FLOPs as they
are. As its library does, `mpt` has no learnt positions and no biases, whatever its file says of them; which heads share
keys and values is told as llm-foundry tells it (https://github.com/mosaicml/llm-foundry, `attn_config`).
"""

from odcsim.catalog.hf_keys import Config

ATTENTION = ("multihead_attention", "multiquery_attention", "grouped_query_attention")


def shared_heads(config: Config, heads: int) -> int:
    """Heads of keys and values."""
    if config.kind == "mpt":
        inner = config.within("attn_config")
        kind = inner.one_of("attn_type", ATTENTION)
        return heads if kind == ATTENTION[0] else 1 if kind == ATTENTION[1] else inner.number("kv_n_heads")
    new = config.flag("new_decoder_architecture", False)  # Falcon's, which has groups
    if not new and config.family.multi_query and config.flag("multi_query", True):
        return 1
    return config.number("num_key_value_heads", heads)


def norms(config: Config) -> int:
    """Of one layer. Falcon has as many as attention and MLP that run side by side need."""
    if config.kind != "falcon" or not config.flag("parallel_attn", True):
        return config.family.norms
    return config.number("num_ln_in_parallel_attn", 2 if config.flag("new_decoder_architecture", False) else 1, most=2)


def norm_width(config: Config, width: int) -> int:
    """Parameters of one norm of this width."""
    return width * (1 + config.family.norm_bias) * config.flag("layer_norm_elementwise_affine", True)


def embedding_width(config: Config, hidden: int) -> int:
    """Of an embedding that is projected to the hidden state and back; zero where it is as wide."""
    width = config.number("word_embed_proj_dim", hidden)
    return 0 if width == hidden else width


def outside(config: Config, hidden: int, vocab: int) -> int:
    """Parameters in no layer beside embedding, head and a final norm without bias."""
    family = config.family
    final = config.flag("do_layer_norm_before", True) and not config.flag("_remove_final_layer_norm", False)
    found = norm_width(config, hidden) * (final + family.embedding_norm) - hidden
    if family.positions is not None:
        found += hidden * (config.number("max_position_embeddings") + family.positions)
    return found + vocab * family.head_bias
