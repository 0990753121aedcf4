"""The first minibatch's gradient as the stock Trainer would take it, where that may be another one: its norm.

Its microbatches are those of the trainer's own loader. One that is over the limit of tokens here is put together from
parts, weighed as all microbatches are.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from odc_engine.trainers.counts import counts_of, over_ranks, together
from odc_engine.trainers.losses import Found, Losses
from odc_engine.trainers.minibatches import Places, padded_parts
from odc_engine.trainers.normalization import weight
from odc_engine.trainers.one_process import Backward, backward_as, own_alone
from odc_engine.trainers.order import Usual
from odc_engine.trainers.untraced import untraced

DRAWN = 0.2  # how far off stock training's losses are if that is told, where samples are others each time
NEAR = 1e-4  # relative, of norms that are told as one


def may_differ(found: Found, usual: Usual, devices: int) -> bool:
    """Whether stock training weighs its microbatches otherwise than a loss on all of them does."""
    sizes = [len(batch) for batches in usual for batch in batches if batch]
    share = found.factor / devices  # of the sum of all microbatches' losses
    if found.drawn:  # another draw has another norm anyway
        return abs(share * (1 if found.by_items else len(sizes)) - 1) > DRAWN
    if found.by_items:
        return abs(share - 1) > NEAR
    alike = "samples" in found.over and len({*sizes}) == 1
    return not (alike and abs(share * len(sizes) - 1) < NEAR)


def parts_of(losses: Losses, own: Sequence[Places]) -> list[tuple[Any, float]]:
    """This device's microbatches as its own loader has them, with what each counts for in that."""
    planned, found = losses.planned, []
    for places in own:
        loaded = [losses.load(part) for part in padded_parts(places, planned.lengths, planned.max_tokens)]
        counts = [counts_of(batch, part.samples) for batch, part in loaded]
        shares = [weight(losses.over, count, together(counts)) for count in counts]
        found += [(batch, share) for (batch, _), share in zip(loaded, shares, strict=True)]
    return found


def backward_as_stock(
    trainer: Any, model: nn.Module, losses: Losses, parts: Iterable[tuple[Any, float]], accumulated: int
) -> None:
    """All of them, in whatever turn they come; gradients have met afterwards."""
    accelerator = trainer.accelerator
    with untraced(trainer, model):
        trainer.current_gradient_accumulation_steps = accumulated
        for batch, share in parts:
            with own_alone(accelerator), backward_as(accelerator, Backward(accelerator, share)):
                losses.step(model, batch, losses.items(share))


def norm_of(model: nn.Module, device: torch.device, devices: int) -> float:
    """Of all gradients. On all ranks."""
    total = 0.0
    for parameter in model.parameters():
        if isinstance(gradient := parameter.grad, DTensor):
            total += float(gradient.to_local().double().pow(2).sum())
        elif gradient is not None:
            total += float(gradient.double().pow(2).sum()) / devices
    return float(over_ranks([total], device)[0] ** 0.5)


def tell(found: Found, here: float, stock: float) -> None:
    if abs(here - stock) > NEAR * max(here, stock):
        over = "a sum" if found.over[0] == "nothing" else f"a mean over {found.over[0].replace('_', ' ')}"
        warnings.warn(
            f"the gradient of the first minibatch has norm {here:.4g} here, of the loss on all of it ({over}), and "
            f"{stock:.4g} in the stock Trainer, where it depends on how a minibatch is cut into microbatches: "
            "learning_rate and max_grad_norm may want other values",
            stacklevel=2,
        )
