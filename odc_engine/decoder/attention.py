"""The decoder's attention: causal inside each sample, with rotary positions that restart in each sample."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from odc_engine.decoder.loss import wide
from odcsim.model import Model

ROTARY_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the samples lie, and each token's rotation. Not a tensor, so that FSDP2 leaves its precision alone."""

    lengths: tuple[int, ...]
    cos: Tensor  # [T, 1, head_dim / 2]
    sin: Tensor

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate queries or keys [T, heads, head_dim] by their positions."""
        first, second = x.chunk(2, dim=-1)
        turned = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        return torch.cat(turned, dim=-1).to(x.dtype)


def layout(lengths: tuple[int, ...], head_dim: int, like: Tensor) -> Layout:
    """Return the layout of packed samples; positions restart in each sample."""
    # Where it is used: a copy from the CPU would wait for all that a GPU has been given.
    rates = ROTARY_BASE ** -(torch.arange(0, head_dim, 2, dtype=torch.float64, device=like.device) / head_dim)
    angles = torch.arange(max(lengths), dtype=torch.float64, device=like.device)[:, None, None] * rates
    cos, sin = (turn.to(wide(like.dtype)) for turn in (angles.cos(), angles.sin()))
    return Layout(lengths, torch.cat([cos[:n] for n in lengths]), torch.cat([sin[:n] for n in lengths]))


class PackedAttention(nn.Module):
    """Causal within each sample, blind across samples."""

    def __init__(self, shape: Model, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.heads = [shape.heads, shape.kv_heads, shape.kv_heads]
        self.head_dim = shape.head_dim
        self.qkv = linear(shape.hidden, sum(self.heads) * shape.head_dim, dtype, device)
        self.out = linear(shape.heads * shape.head_dim, shape.hidden, dtype, device)

    def forward(self, x: Tensor, place: Layout) -> Tensor:
        queries, keys, values = self.qkv(x).unflatten(-1, (-1, self.head_dim)).split(self.heads, dim=1)
        whole = (place.rotate(queries), place.rotate(keys), values)
        samples = zip(*(part.split(place.lengths) for part in whole), strict=True)
        mixed: Tensor = self.out(torch.cat([self._attend(*sample) for sample in samples]))
        return mixed

    def _attend(self, *sample: Tensor) -> Tensor:
        """Attend within one sample: queries, keys and values [s, heads, head_dim] to [s, heads * head_dim]."""
        queries, keys, values = (part.transpose(0, 1)[None] for part in sample)
        grouped = self.heads[0] != self.heads[1]
        if grouped and knows_no_groups(queries):
            keys, values = (part.repeat_interleave(self.heads[0] // self.heads[1], dim=1) for part in (keys, values))
            grouped = False
        seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=grouped)
        return seen[0].transpose(0, 1).flatten(1)


def knows_no_groups(queries: Tensor) -> bool:
    """Whether key heads have to be repeated. In float32 torch has two kernels on a GPU: one without grouped-query
    attention, and one that stores the scores of all pairs of tokens."""
    return queries.is_cuda and queries.dtype == torch.float32


def linear(inputs: int, outputs: int, dtype: torch.dtype, device: torch.device) -> nn.Linear:
    # By way of the meta device, which spares drawing weights twice.
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype, device="meta").to_empty(device=device)
