"""One microbatch of a trainer, weighed: forward, then backward; in halves where a device has no memory for it."""

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from odc_engine.fsdp.on_demand import OnDemand
from odc_engine.trainers.losses import BACKWARD, Losses
from odc_engine.trainers.minibatches import Loaded
from odc_engine.trainers.one_process import Backward, backward_as, one_process
from odc_engine.trainers.untraced import notes
from odcsim.errors import InputError

UNREACHED = "a microbatch whose loss depends on no trainable parameter"
NOTHING = (
    "adds nothing to the gradient: right for texts where a vision tower alone is trained, else look for detach() and "
    "no_grad() on the way to the loss"
)
NEVER = f"{UNREACHED}, so that others wait for its gradients"


class MicrobatchRunner:
    """Of the minibatch that `losses` has weighed last."""

    def __init__(self, trainer: Any, model: nn.Module, losses: Losses, odc: OnDemand | None) -> None:
        self._trainer, self._model, self._losses, self._odc = trainer, model, losses, odc
        self._forget: Callable[[], None] = lambda: None

    def run(self, loaded: Loaded) -> Tensor:
        """Its part of the minibatch's loss, times the number of devices, whose gradients come to their mean."""
        if self._odc is None or self._odc.replicas.count > 1:
            return self._run(loaded, keep=False).detach()
        return self._odc.retry(lambda one: self._run(one, keep=True), loaded, self._halved)

    def _run(self, loaded: Loaded, *, keep: bool) -> Tensor:
        """`keep`: backward is left to who tries again, where memory does not do."""
        (batch, part), own = loaded, self._trainer
        weighed = self._losses.weighed(batch, part)
        backward = Backward(own.accelerator, weighed.scale * own.args.world_size, keep=keep)
        self._forget = notes(own)
        with one_process(own), backward_as(own.accelerator, backward):
            self._losses.step(self._model, batch, weighed.items)
        if backward.total is None:
            raise InputError("a training_step without accelerator.backward", where=type(own).__name__, fix=BACKWARD)
        if not backward.reached and self._odc is None and own.args.world_size > 1:
            raise InputError(
                NEVER,
                where=type(own).__name__,
                fix="use OnDemandMixin, where ranks wait only at the end of a minibatch",
            )
        if not backward.reached:
            warnings.warn(f"{UNREACHED} {NOTHING}", stacklevel=2)
        return backward.total

    def _halved(self, loaded: Loaded) -> tuple[Loaded, Loaded]:
        """By samples, loaded anew. What was noted of the whole is forgotten."""
        places = loaded[1].places
        if len(places) < 2:
            raise InputError("a microbatch of one sample ran out of memory", fix="shorten samples, or use more devices")
        if self._losses.law.drawn:
            told = "a microbatch ran out of memory, and loading it again gives other samples"
            raise InputError(told, fix="lower max_tokens")
        self._forget()
        middle = len(places) // 2
        return self._losses.load(places[:middle]), self._losses.load(places[middle:])
