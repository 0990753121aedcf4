"""On-demand in the `Trainer` of transformers and in trainers that are made of it, over the FSDP2 of accelerate.

    class OnDemandTrainer(OnDemandMixin, Trainer):
        max_tokens = 8192

A minibatch has as many samples as ever: per_device_train_batch_size x gradient_accumulation_steps for each device.
Which device runs which of them, in how many microbatches, is planned; one may run more of them than others, or none. To
the trainer a whole minibatch is one batch, so that it steps, logs, evaluates and saves on all devices alike.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from odc_engine.fsdp import OnDemand
from odc_engine.fsdp.ways import IN_A_TRAINER
from odc_engine.sampler import agree
from odc_engine.trainers import refusals
from odc_engine.trainers.metrics import noted_by, own_alone
from odc_engine.trainers.minibatches import Loaded, MinibatchLoader, MinibatchSampler, freely_balanced

IGNORED = -100  # a label that no loss counts


class OnDemandMixin:
    """Goes in front of a Trainer. `max_tokens` of a microbatch, padding included; without it, what the Trainer's own
    microbatches reach at most: per_device_train_batch_size x the longest sample."""

    max_tokens: int | None = None
    balancer = "lb-mini"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refusals.check(self._trainer)
        self._odc: OnDemand | None = None
        self._others: list[OnDemand] = []  # of models that are asked and never trained
        self._accumulated = 1
        self._trainer.add_callback(_Events(self))

    @property
    def _trainer(self) -> Any:
        """This object as the Trainer that it is, too."""
        return self

    @property
    def _stock(self) -> Any:
        return super()

    def lengths(self, dataset: Any) -> Sequence[int]:
        """Tokens of each sample. For a dataset without `input_ids`, say it here."""
        return refusals.lengths_of(dataset, str(self._trainer.args.length_column_name))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        own = self._trainer.args
        self._accumulated, own.gradient_accumulation_steps = own.gradient_accumulation_steps, 1
        try:
            return self._stock.train(*args, **kwargs)
        finally:
            own.gradient_accumulation_steps, self._accumulated = self._accumulated, 1
            self._close()

    def _open(self) -> None:
        self._close()
        if self._trainer.args.world_size > 1:
            refusals.check_model(model := self._trainer.model_wrapped)
            self._odc = OnDemand(model, average=True)
            self._odc.ways.now = IN_A_TRAINER
            if isinstance(reference := getattr(self, "ref_model", None), FSDPModule):
                self._others.append(OnDemand(cast(nn.Module, reference), average=True))

    def _close(self) -> None:
        if self._odc is not None:
            self._odc.close()
            self._odc = None
        while self._others:
            self._others.pop().close()

    def publish_weights(self) -> None:
        """Weights have changed otherwise than by a step, as in a callback. On all devices."""
        if self._odc is not None:
            self._odc.publish()

    def _gather_head(self) -> None:
        """Of a head that is a unit of its own TRL takes the weight without a forward pass, and would meet for it."""
        head = self._trainer.model.get_output_embeddings() if self._odc is not None else None
        if isinstance(head, FSDPModule):
            head.unshard()

    def get_total_train_batch_size(self, args: Any) -> int:
        return int(self._stock.get_total_train_batch_size(args)) * self._accumulated

    def get_train_dataloader(self) -> MinibatchLoader:
        own, usual = self._trainer.args, self._stock.get_train_dataloader()
        lengths = list(self.lengths(self._trainer.train_dataset))
        batches = freely_balanced(
            lengths,
            devices=own.world_size,
            rank=own.process_index,
            minibatch=own.per_device_train_batch_size * self._accumulated,
            max_tokens=self.max_tokens or own.per_device_train_batch_size * max(lengths),
            averaged=True,
            balancer=self.balancer,
            seed=own.seed if own.data_seed is None else own.data_seed,
            drop_last=own.dataloader_drop_last,
        )
        if own.world_size > 1:
            agree(batches.state_dict()["digest"])
        return MinibatchLoader(usual, MinibatchSampler(batches, refusals.pads(self._trainer.data_collator)), _sealed)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """One minibatch, and what its losses count on all devices, as the Trainer counts it in its own batches."""
        del num_batches  # 1: a minibatch is a batch
        minibatch = next(epoch_iterator)
        counted = minibatch["microbatches"]
        _, items = self._stock.get_batch_samples(iter(counted), len(counted), device)
        return [minibatch], items

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of all microbatches of this device, then the one meeting of the minibatch."""
        model.train()
        loss, noted = torch.zeros((), device=self._trainer.args.device), noted_by(self._trainer)
        with own_alone(self._trainer.accelerator):
            for batch, share in zip(inputs["microbatches"], inputs["shares"], strict=True):
                if not share:
                    continue
                # What the Trainer divides a mean loss by. Shares of all devices add up to the number of devices.
                self._trainer.current_gradient_accumulation_steps = 1 / share
                counted = _loss_tokens(batch)
                self._gather_head()
                loss += self._stock.training_step(model, batch, num_items_in_batch)
                if noted:
                    noted.weigh(share if counted is None else counted)
        if self._odc is not None:
            self._odc.settle()
        if noted:
            noted.combine()
        return loss


class _Events:
    """A callback of the Trainer, for which it does all but nothing."""

    def __init__(self, mixin: OnDemandMixin) -> None:
        self._mixin = mixin

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._mixin._open()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        if self._mixin._odc is not None:
            self._mixin._odc.publish()

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return lambda *_, **__: None
        raise AttributeError(name)


def _sealed(loaded: list[Loaded]) -> dict[str, Any]:
    """A minibatch as the Trainer wants a batch: whose tokens can be counted."""
    for batch, share in loaded:
        if not share:  # a stand-in: nothing of it counts
            for name in [name for name in ("labels", "shift_labels") if name in batch]:
                batch[name].fill_(IGNORED)
    run = [batch for batch, share in loaded if share]
    counted = {name: torch.cat([batch[name].flatten() for batch in run]) for name in _counted(run)}
    return {**counted, "microbatches": [batch for batch, _ in loaded], "shares": [share for _, share in loaded]}


def _loss_tokens(batch: Any) -> int | None:
    return int((batch["labels"][..., 1:] != IGNORED).sum()) if "labels" in batch else None


def _counted(run: list[Any]) -> list[str]:
    """What the Trainer reads the number of tokens from."""
    return [name for name in ("input_ids", "attention_mask") if run and all(name in batch for batch in run)]
