"""Balance in the `Trainer` of transformers and in trainers that are made of it, over their own collectives.

    class BalancedTrainer(BalancedMixin, Trainer):
        max_tokens = 8192

Minibatches are planned (planned.py), with equal numbers of microbatches, so that devices meet in each of them, as FSDP2
does, or in the last, as DDP. A device that has fewer for all that runs a sample that counts for nothing.
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
    """Goes in front of a Trainer. `max_tokens` of a microbatch, padding included; without it, what the Trainer's own
    microbatches reach at most: per_device_train_batch_size x the longest sample."""

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
        """Gradients are added up here until the last microbatch, where the Trainer would do so, too."""
        accelerator = self._trainer.accelerator
        if accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False):
            return nullcontext()
        return accelerator.no_sync(model)  # type: ignore[no-any-return]

    def _stand_in(self, model: nn.Module, usual: Usual) -> None:
        """The others meet somebody in their microbatch."""
        assert self._losses is not None
        accelerator = self._trainer.accelerator
        with ExitStack() as kept:
            kept.enter_context(untraced(self._trainer, model))
            kept.enter_context(one_process(self._trainer))
            kept.enter_context(backward_as(accelerator, Backward(accelerator, 0.0)))
            self._losses.step(model, self._counting(usual), self._losses.items())

    def _counting(self, usual: Usual) -> Any:
        """A batch of the shortest sample whose loss is a number: where none of its labels counts, a mean is none."""
        assert self._losses is not None
        places = {place for batches in usual for batch in batches for place in batch}
        for place in sorted(places, key=lambda one: (self._sampler.lengths[one], one)):
            batch, part = self._losses.load((place,))
            if self._losses.weighed(batch, part).scale:
                break
        return batch
