"""A compact decoder in the sizes of odcsim's models, on packed samples.

Pre-norm blocks of RMSNorm, grouped-query attention with rotary positions and SwiGLU. Left out, as they change cost
and parameter counts by a fraction of a percent: biases of the query, key and value projections (Qwen 2.5) and norms
of queries and keys (Qwen 3). Weights are random: this is a load to run and to measure, not a pretrained model.

Made for fully_shard: root, blocks, embedding and head are each called through `__call__` exactly once per pass, so
any of them may be a unit of its own. Where the head is tied to the embedding, leave both to the root.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from odc_engine.decoder.attention import Layout, PackedAttention, layout, linear
from odc_engine.decoder.loss import log_probs, weighted_loss
from odc_engine.decoder.marks import BACKWARD, EMBED, EMBED_BACKWARD, FORWARD, HEAD, ROOT, Emulate, Listener, Watch
from odc_engine.job import check_model
from odc_engine.packed import Packed
from odcsim.model import Model

EPSILON = 1e-6
SPREAD = 0.02  # standard deviation of fresh weights


class Embedding(nn.Embedding):
    """Map tokens to vectors."""

    def __init__(self, vocab: int, hidden: int, watch: Watch, dtype: torch.dtype, device: torch.device) -> None:
        # Passing the weight spares drawing it twice.
        super().__init__(vocab, hidden, _weight=torch.empty(vocab, hidden, dtype=dtype, device=device))
        self._watch = watch

    def forward(self, tokens: Tensor) -> Tensor:
        watch = self._watch
        watch.begin(EMBED, ROOT)
        if watch.emulate is not None:
            x = self._emulated()
        elif self.weight.requires_grad:
            x = F.embedding(tokens, watch.end_backward(self.weight, EMBED_BACKWARD, ROOT))
        else:
            x = F.embedding(tokens, self.weight)
            if watch.listener is not None and torch.is_grad_enabled():  # a frozen embedding's steps take no time
                x = watch.end_backward(x.requires_grad_(), EMBED_BACKWARD, ROOT)
        x = watch.begin_backward(x, EMBED_BACKWARD, ROOT)
        watch.end(EMBED, ROOT)
        return x

    def _emulated(self) -> Tensor:
        """Use one row for all tokens."""
        self._watch.wait(EMBED, ROOT)
        x = self.weight.new_zeros((1, self.embedding_dim), requires_grad=torch.is_grad_enabled())
        x = self._watch.zero_backward(self._watch.end_backward(x, EMBED_BACKWARD, ROOT), self)
        return self._watch.wait_backward(x, EMBED_BACKWARD, ROOT)


class DecoderLayer(nn.Module):
    """One layer. `unit` is its number, from 1."""

    def __init__(
        self, shape: Model, unit: int, watch: Watch, *, recompute: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.unit, self.recompute, self._watch = unit, recompute, watch
        self.attention_norm = _norm(shape.hidden, dtype, device)
        self.attention = PackedAttention(shape, dtype, device)
        self.mlp_norm = _norm(shape.hidden, dtype, device)
        self.gate_up = linear(shape.hidden, 2 * shape.ffn, dtype, device)
        self.down = linear(shape.ffn, shape.hidden, dtype, device)

    def forward(self, x: Tensor, place: Layout | None) -> Tensor:
        watch, unit = self._watch, self.unit
        watch.begin(FORWARD, unit)
        x = watch.end_backward(x, BACKWARD, unit)
        if place is None:
            watch.wait(FORWARD, unit)
            x = watch.wait_backward(watch.zero_backward(x, self), BACKWARD, unit)
        elif self.recompute and torch.is_grad_enabled():
            x = checkpoint(self._compute, x, place, use_reentrant=False, preserve_rng_state=False)
        else:
            x = self._compute(x, place)
        x = watch.begin_backward(x, BACKWARD, unit)
        watch.end(FORWARD, unit)
        return x

    def _compute(self, x: Tensor, place: Layout) -> Tensor:
        x = x + self.attention(self.attention_norm(x), place)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        y: Tensor = x + self.down(F.silu(gate) * up)
        return y


class Head(nn.Module):
    """Final norm, projection to the vocabulary, and loss: one step, from its input to its input's gradient."""

    def __init__(self, shape: Model, weight: Tensor, chunk: int, watch: Watch) -> None:
        super().__init__()
        self.norm = _norm(shape.hidden, weight.dtype, weight.device)
        self.weight = weight
        self.chunk, self._watch = chunk, watch

    def forward(self, x: Tensor, batch: Packed, only_log_probs: bool) -> Tensor:
        watch = self._watch
        watch.begin(HEAD, ROOT)
        trains = x.requires_grad and torch.is_grad_enabled() and not only_log_probs
        if trains:
            x = watch.end_backward(x, HEAD, ROOT)
        if watch.emulate is not None:
            result = self._emulated(x, batch, only_log_probs)
        elif only_log_probs:
            result = log_probs(self.norm(x), self.weight, batch.targets, self.chunk)
        else:
            result = weighted_loss(self.norm(x), self.weight, batch.targets, batch.weights, self.chunk)
        if not trains:
            watch.end(HEAD, ROOT)
        return result

    def _emulated(self, x: Tensor, batch: Packed, only_log_probs: bool) -> Tensor:
        self._watch.wait(HEAD, ROOT)
        x = self._watch.zero_backward(x, self)
        return torch.zeros(sum(batch.lengths)) if only_log_probs else 0.0 * x.float().sum()


class Decoder(nn.Module):
    """A dense decoder of the given shape. Its weights follow from the seed, whatever the number of devices.

    `recompute` computes each block's inside again in its backward; `chunk` bounds the tokens whose logits exist at
    once. On the meta device nothing is drawn.
    """

    def __init__(
        self,
        shape: Model,
        *,
        recompute: bool = True,
        chunk: int = 1024,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> None:
        check_model(shape)
        super().__init__()
        # cuDNN's, which torch takes first on an H100, plans anew for each length of a sample: tenths of a second each.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.shape, self._watch = shape, Watch()
        place = torch.get_default_device() if device is None else torch.device(device)
        self.embedding = Embedding(shape.vocab, shape.hidden, self._watch, dtype, place)
        self.layers = nn.ModuleList(
            DecoderLayer(shape, unit, self._watch, recompute=recompute, dtype=dtype, device=place)
            for unit in range(1, shape.layers + 1)
        )
        own = None if shape.tied else nn.Parameter(torch.empty_like(self.embedding.weight))
        self.head = Head(shape, self.embedding.weight if own is None else own, chunk, self._watch)
        if place.type != "meta":
            self._draw(torch.Generator(place).manual_seed(seed))

    @property
    def listener(self) -> Listener | None:
        """Receives the begin and end of every phase of every unit."""
        return self._watch.listener

    @listener.setter
    def listener(self, listener: Listener | None) -> None:
        self._watch.listener = listener

    @property
    def emulate(self) -> Emulate | None:
        """Seconds per (phase, unit). If set, units wait that long instead of computing, and give no gradients."""
        return self._watch.emulate

    @emulate.setter
    def emulate(self, emulate: Emulate | None) -> None:
        self._watch.emulate = emulate

    def pause_by(self, pause: Callable[[float], None], *, zeros: bool = False) -> None:
        """Set how emulated seconds pass: on a CPU by sleeping, unless this is called. `zeros`: also give zero
        gradients."""
        self._watch.pause, self._watch.zeros = pause, zeros

    def forward(self, batch: Packed, *, only_log_probs: bool = False) -> Tensor:
        """Return the weighted sum of the tokens' losses, or their targets' log-probabilities."""
        x = self.embedding(batch.tokens)
        place = None if self.emulate is not None else layout(batch.lengths, self.shape.head_dim, x)
        for block in self.layers:
            x = block(x, place)
        result: Tensor = self.head(x, batch, only_log_probs)
        return result

    @torch.no_grad()
    def log_probs(self, batch: Packed) -> Tensor:
        """Return the log-probability of each target [T], zero without one: a forward pass only, as RL needs it."""
        result: Tensor = self(batch, only_log_probs=True)
        return result

    @torch.no_grad()
    def _draw(self, generator: torch.Generator) -> None:
        """Projections back into the residual stream start smaller the more of them there are (GPT-2)."""
        inward = SPREAD / (2 * self.shape.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                spread = inward if name.endswith(("out.weight", "down.weight")) else SPREAD
                parameter.normal_(0.0, spread, generator=generator)


def _norm(hidden: int, dtype: torch.dtype, device: torch.device) -> nn.RMSNorm:
    return nn.RMSNorm(hidden, eps=EPSILON, dtype=dtype, device=device)
