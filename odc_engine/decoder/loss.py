"""Cross-entropy over a vocabulary without ever holding the logits of more than a chunk of tokens.

The loss is a weighted sum, so its gradients are known as soon as a chunk's logits are: they are computed in the
forward pass and scaled in the backward one, which spares computing the logits twice. The price is that the head's
weight gradient exists from the forward pass on; the head's backward follows at once. Loss scaling for fp16 comes too
late here to save gradients that vanish: compute in bf16 or fp32.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: float32 for 16 bits."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def weighted_loss(hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor, chunk: int) -> Tensor:
    """Return the sum over tokens of weight times cross-entropy. hidden [T, H], weight [V, H], targets and weights
    [T]."""
    if not torch.is_grad_enabled():
        return -(log_probs(hidden, weight, targets, chunk) * weights.to(wide(hidden.dtype))).sum()
    apply: Callable[..., Tensor] = _WeightedLoss.apply
    return apply(hidden, weight, targets, weights, chunk)


@torch.no_grad()
def log_probs(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """Return the log-probability of each target [T]; zero without a target."""
    found = torch.zeros(targets.shape, dtype=wide(hidden.dtype), device=hidden.device)
    for part in _chunks(hidden, chunk):
        found[part] = _targets_log_probs(_logits(hidden[part], weight), targets[part])[0]
    return found


def _chunks(hidden: Tensor, chunk: int) -> Iterator[slice]:
    return (slice(start, start + chunk) for start in range(0, hidden.shape[0], chunk))


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    return F.linear(hidden, weight).to(wide(hidden.dtype))


def _targets_log_probs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target (zero without one), and each token's normalizer."""
    normaliser = logits.logsumexp(-1)
    picked = logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    return (picked - normaliser).where(targets >= 0, 0.0), normaliser


class _WeightedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor, chunk: int) -> Tensor:
        kind = wide(hidden.dtype)
        weights = weights.to(kind).where(targets >= 0, 0.0)
        total = torch.zeros((), dtype=kind, device=hidden.device)
        to_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight, dtype=kind) if ctx.needs_input_grad[1] else None
        for part in _chunks(hidden, chunk):
            logits = _logits(hidden[part], weight)
            found, normaliser = _targets_log_probs(logits, targets[part])
            total -= (found * weights[part]).sum()
            slope = _slope(logits, normaliser, targets[part], weights[part]).to(hidden.dtype)
            if to_hidden is not None:
                torch.mm(slope, weight, out=to_hidden[part])
            if to_weight is not None:
                to_weight += slope.t() @ hidden[part]
        ctx.save_for_backward(to_hidden, None if to_weight is None else to_weight.to(weight.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        to_hidden, to_weight = (saved if saved is None else saved * slope for saved in ctx.saved_tensors)
        return to_hidden, to_weight, None, None, None


def _slope(logits: Tensor, normaliser: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the loss's gradient with respect to the logits, which it overwrites."""
    slope = logits.sub_(normaliser[:, None]).exp_().mul_(weights[:, None])
    return slope.scatter_add_(1, targets.clamp(min=0)[:, None], -weights[:, None])
