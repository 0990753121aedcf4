"""Balance samples in the `Trainer` of transformers and its subclasses, with their stock collectives.

    class BalancedTrainer(BalancedMixin, Trainer):
        max_tokens = 8192

Minibatches are planned (planned.py) with equal microbatch counts, so that ranks synchronize in each microbatch, as
FSDP2 does, or in the last, as DDP does. A rank that still has fewer runs a sample with loss weight 0.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from torch import nn

from odc_engine.trainers import refusals
from odc_engine.trainers.exchange import all_told
from odc_engine.trainers.one_process import Backward, backward_as, one_process
from odc_engine.trainers.order import Usual
from odc_engine.trainers.planned import PlannedMixin, Run
from odc_engine.trainers.untraced import untraced


class BalancedMixin(PlannedMixin):
    """Put it in front of a Trainer. `max_tokens`: limit of a microbatch, padding included. Default: the Trainer's
    own, per_device_train_batch_size x the longest sample."""

    balancer = "sorted-slice"
    _equal = True

    def __init_subclass__(cls, **how: Any) -> None:
        super().__init_subclass__(**how)
        refusals.check_order(cls, BalancedMixin)
        refusals.check_balancer(cls, BalancedMixin.balancer)

    def _open(self) -> None:
        refusals.check_prepared(self._trainer.model_wrapped, self._trainer.args.world_size)

    def _in_turn(self, model: nn.Module, run: Sequence[Run], usual: Usual) -> Iterator[Run]:
        count = max(all_told(len(run)))
        for place in range(count):
            with nullcontext() if place + 1 == count else self._apart(model):
                if place < len(run):
                    yield run[place]
                else:
                    self._stand_in(model, usual)

    def _apart(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Accumulate gradients locally until the last microbatch, if the Trainer would do so."""
        accelerator = self._trainer.accelerator
        if accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False):
            return nullcontext()
        return accelerator.no_sync(model)  # type: ignore[no-any-return]

    def _stand_in(self, model: nn.Module, usual: Usual) -> None:
        """Run a sample with weight 0, since the other ranks synchronize in this microbatch."""
        assert self._losses is not None
        accelerator = self._trainer.accelerator
        with ExitStack() as kept:
            kept.enter_context(untraced(self._trainer, model))
            kept.enter_context(one_process(self._trainer))
            kept.enter_context(backward_as(accelerator, Backward(accelerator, 0.0)))
            self._losses.step(model, self._counting(usual), self._losses.items())

    def _counting(self, usual: Usual) -> Any:
        """Return a batch of the shortest sample with a finite loss: if no label counts, a mean is NaN."""
        assert self._losses is not None
        places = {place for batches in usual for batch in batches for place in batch}
        for place in sorted(places, key=lambda one: (self._sampler.lengths[one], one)):
            batch, part = self._losses.load((place,))
            if self._losses.weighed(batch, part).scale:
                break
        return batch
