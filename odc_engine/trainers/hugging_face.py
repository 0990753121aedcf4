"""On-demand communication in the `Trainer` of transformers and its subclasses, with accelerate's FSDP2.

    class OnDemandTrainer(OnDemandMixin, Trainer):
        max_tokens = 8192

Minibatches are planned (planned.py). A rank may run more microbatches than others, or none: ranks synchronize once, at
the end of a minibatch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from odc_engine.fsdp.on_demand import OnDemand
from odc_engine.fsdp.remedies import IN_A_TRAINER
from odc_engine.trainers import refusals
from odc_engine.trainers.microbatches import MicrobatchRunner
from odc_engine.trainers.order import Usual
from odc_engine.trainers.planned import PlannedMixin, Run


class OnDemandMixin(PlannedMixin):
    """Put it in front of a Trainer. `max_tokens`: limit of a microbatch, padding included. Default: the Trainer's
    own, per_device_train_batch_size x the longest sample."""

    balancer = "lb-mini"
    check_finite = True  # whether a gradient that is not finite is refused, rather than stepped with as stock
    _equal = False

    def __init_subclass__(cls, **how: Any) -> None:
        super().__init_subclass__(**how)
        refusals.check_order(cls, OnDemandMixin)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._odc: OnDemand | None = None
        self._others: list[OnDemand] = []  # of models that are asked and never trained
        super().__init__(*args, **kwargs)

    def _open(self) -> None:
        self._close()
        if self._trainer.args.world_size > 1:
            refusals.check_model(model := self._trainer.model_wrapped)
            self._odc = OnDemand(model, check_finite=self.check_finite)
            self._odc.speak(IN_A_TRAINER)
            if isinstance(reference := getattr(self, "ref_model", None), FSDPModule):
                self._others.append(OnDemand(cast(nn.Module, reference)))

    def _close(self) -> None:
        if self._odc is not None:
            self._odc.close()
            self._odc = None
        while self._others:
            self._others.pop().close()

    def publish_weights(self) -> None:
        """Publish weights that were changed other than by a step, for example in a callback. Call it on all ranks."""
        if self._odc is not None:
            self._odc.publish()

    def _gather_head(self) -> None:
        """Gather a head that is a unit of its own: TRL uses its weight without a forward, and ranks would
        synchronize for it."""
        head = self._trainer.model.get_output_embeddings() if self._odc is not None else None
        if isinstance(head, FSDPModule):
            head.unshard()

    def _in_turn(self, model: nn.Module, run: Sequence[Run], usual: Usual) -> Iterator[Run]:
        del model, usual
        yield from run
        if self._odc is not None:
            self._odc.settle()

    def _runner(self, model: nn.Module) -> MicrobatchRunner:
        assert self._losses is not None
        return MicrobatchRunner(self._trainer, model, self._losses, self._odc)

    def _run(self, model: nn.Module, batch: Any, items: Any) -> Tensor:
        self._gather_head()
        return super()._run(model, batch, items)
