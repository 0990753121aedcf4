"""What one model's training step computes and moves: parameters, bytes and FLOPs, per layer.

Layers that differ (a few dense ones before the experts, windows beside full attention) are averaged: the simulator
knows one kind of layer. FLOPs count matmuls, attention and the state of linear attention; norms, activation functions,
rotary embeddings, and the choice of tokens after an indexer's scores are left out.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Flops = TypeVar("Flops", float, NDArray[np.float64])

BYTES_BF16 = 2
BYTES_FP32 = 4

# FlashAttention-2 (arXiv 2307.08691, section 4.1) counts two matmuls forward and five backward, because the backward
# computes the scores again. Every other matmul has two in its backward for one in its forward.
ATTENTION_BACKWARD = 2.5
LINEAR_BACKWARD = 2.0


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer. Zero means "has none" for everything below `tied`."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int  # of queries and keys; with latent attention the part without rotation plus the part with it
    ffn: int  # intermediate size of one dense MLP or of one expert
    vocab: int
    tied: bool  # the head reuses the embedding's weights
    experts: int = 0
    experts_active: int = 0  # routed experts that one token visits
    shared_ffn: int = 0  # intermediate size of the experts that every token visits, added up
    dense_layers: int = 0  # layers of a mixture of experts that hold one dense MLP instead
    dense_ffn: int = 0
    window: int = 0  # sliding window in tokens
    window_layers: int = 0
    chunked: bool = False  # the window does not slide: a sample is cut into parts that do not see each other
    linear_layers: int = 0  # layers of linear attention: no work that grows with the square
    linear_parameters: int = 0  # matmul parameters of one such layer's mixer
    linear_state: int = 0  # FLOPs of one token in the state of one such layer, forward
    sparse_layers: int = 0  # layers whose attention `reaches` describes
    # Of all sparse layers: FLOPs per square in those of one full layer, and how many tokens each sees at most (0: all).
    reaches: tuple[tuple[float, int], ...] = ()
    # Where heads and ranks do not tell them: matmuls of all layers but their MLP's (inner, outer, in how many layers).
    mixers: tuple[tuple[int, int, int], ...] = ()
    streams: int = 0  # residual streams beside the usual one, as wide as the hidden state
    gated: bool = False  # full attention multiplies its output by a gate as wide as the queries
    query_rank: int = 0  # multi-head latent attention: inner size of the query projection
    latent_rank: int = 0  # inner size of the shared key-value projection; this one switches latent attention on
    rotary_dim: int = 0  # the part of head_dim that is rotated
    value_dim: int = 0  # of values, where it differs from head_dim
    plain_mlp: bool = False  # the MLP has two matrices, and not a gate as a third
    vectors: int = 0  # parameters of one layer outside matmuls (norms, biases, attention sinks), averaged over layers
    embedding: int = 0  # width of an embedding that is projected to the hidden state and back
    outside: int = 0  # parameters in no layer beside embedding, head and one norm: learnt positions, biases

    @property
    def full_layers(self) -> int:
        return self.layers - self.window_layers - self.linear_layers - self.sparse_layers

    @property
    def splits(self) -> bool:
        """Whether GPUs can share a sequence as it is priced here: not a state, nor a choice of tokens."""
        return not self.linear_layers and not any(most for _, most in self.reaches)

    @property
    def attention_matmuls(self) -> tuple[tuple[float, float, float], ...]:
        """Of all layers but their MLP: inner and outer size, and how many layers have it."""
        if self.mixers:
            return self.mixers
        values, wide, softmax = self.value_dim or self.head_dim, self.heads * self.head_dim, self.layers
        softmax -= self.linear_layers
        rows: list[tuple[float, float, float]]
        if self.latent_rank:
            rows = [(self.hidden, self.query_rank, softmax)] if self.query_rank else []
            rows += [
                (self.query_rank or self.hidden, wide, softmax),
                (self.hidden, self.latent_rank + self.rotary_dim, softmax),
                (self.latent_rank, self.heads * (self.head_dim - self.rotary_dim + values), softmax),
            ]
        else:
            outer = (2 if self.gated else 1) * wide + self.kv_heads * (self.head_dim + values)
            rows = [(self.hidden, outer, softmax)]
        rows.append((self.heads * values, self.hidden, softmax))
        if self.linear_layers:
            rows.append((self.hidden, self.linear_parameters / self.hidden, self.linear_layers))
        return tuple(rows)

    @property
    def attention_parameters(self) -> float:
        """Matmul parameters of attention in one layer, averaged over layers."""
        return sum(inner * outer * layers for inner, outer, layers in self.attention_matmuls) / self.layers

    @property
    def state_flops(self) -> float:
        """Forward FLOPs of one token in the state of linear attention, averaged over layers."""
        return self.linear_layers * self.linear_state / self.layers

    def _mlp_parameters(self, experts: int) -> float:
        """Average over layers when each mixture layer counts `experts` of its routed experts."""
        matrices = 2 if self.plain_mlp else 3
        if not self.experts:
            return float(matrices * self.hidden * self.ffn)
        routed = matrices * (experts * self.ffn + self.shared_ffn)
        sparse = self.hidden * (routed + self.experts)  # the last: the router
        dense = matrices * self.hidden * self.dense_ffn
        return (self.dense_layers * dense + (self.layers - self.dense_layers) * sparse) / self.layers

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, averaged over layers: what one gather of a layer moves."""
        return round(self.attention_parameters + self._mlp_parameters(self.experts) + self.vectors)

    @property
    def layer_matmul_parameters(self) -> float:
        """Parameters that multiply one token in one layer: attention, router, shared and active experts."""
        return self.attention_parameters + self._mlp_parameters(self.experts_active)

    @property
    def head_parameters(self) -> int:
        return self.vocab * (self.embedding or self.hidden)

    @property
    def projection_parameters(self) -> int:
        """From an embedding of another width to the hidden state, and back."""
        return 2 * self.hidden * self.embedding

    @property
    def root_parameters(self) -> int:
        """What is in no layer: embedding, final norm, and the head unless it is the embedding itself."""
        matrices = self.head_parameters * (1 if self.tied else 2) + self.projection_parameters
        return matrices + self.hidden + self.outside

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.root_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters one token touches; all of them in a dense model."""
        return round(self.layers * (self.layer_matmul_parameters + self.vectors)) + self.root_parameters

    def squares(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """Attention work of each sample in squares of tokens, averaged over layers.

        A full causal layer costs s^2. In a window of w a token sees w others at most, so a longer sample costs
        2ws - w^2 (the two agree at s = w); cut into chunks of w it costs the sum of their squares. Who chooses w tokens
        costs what a window does; the scores by which it chooses cost their part of s^2. Linear attention costs nothing
        here. A packed microbatch costs the sum over its samples, not the square of its tokens.
        """
        length = np.asarray(lengths, dtype=np.float64)
        total = self.full_layers * length * length
        for part, most in ((float(self.window_layers), self.window), *self.reaches):
            near = np.minimum(length, most or length)
            total = total + part * near * (2 * length - near)
        if self.chunked:
            rest, near = length % self.window, np.minimum(length, self.window)
            whole = (length - rest) * self.window + rest * rest
            total = total + self.window_layers * (whole - near * (2 * length - near))
        return np.asarray(total / self.layers)

    @property
    def attention_flops_per_square(self) -> float:
        """Forward FLOPs of one softmax layer per square: scores and values, half of each because of the causal mask."""
        return float(self.heads * (self.head_dim + (self.value_dim or self.head_dim)))

    def layer_forward(self, tokens: Flops, squares: Flops) -> Flops:
        """Forward FLOPs of one layer on `tokens` tokens whose samples' squares add up to `squares`."""
        linear = 2 * self.layer_matmul_parameters + self.state_flops
        return linear * tokens + self.attention_flops_per_square * squares

    def layer_backward(self, tokens: Flops, squares: Flops, *, recompute: bool = True) -> Flops:
        """Backward FLOPs of one layer; recompute (activation checkpointing per layer) runs its forward once more."""
        linear = LINEAR_BACKWARD * (2 * self.layer_matmul_parameters + self.state_flops)
        backward = linear * tokens + ATTENTION_BACKWARD * self.attention_flops_per_square * squares
        return backward + self.layer_forward(tokens, squares) if recompute else backward

    def head_forward(self, tokens: Flops) -> Flops:
        """Forward FLOPs of the head. The embedding is a lookup and costs none, unless it is projected."""
        return 2.0 * (self.head_parameters + self.projection_parameters) * tokens

    def head_backward(self, tokens: Flops) -> Flops:
        """Backward FLOPs of the head, which is not recomputed."""
        return LINEAR_BACKWARD * self.head_forward(tokens)

    @property
    def keys_and_values(self) -> int:
        """Elements of a token's in one layer of softmax attention, as kernels take them: latent ones are expanded."""
        heads = self.heads if self.latent_rank else self.kv_heads
        return heads * (self.head_dim + (self.value_dim or self.head_dim))

    @property
    def even_length(self) -> float:
        """Sample length at which a full-attention layer's attention costs as much forward as its matmuls do."""
        return 2 * self.layer_matmul_parameters / self.attention_flops_per_square

    def layer_bytes(self) -> int:
        """Bytes of one layer in bf16, which a gather of it moves."""
        return BYTES_BF16 * self.layer_parameters
