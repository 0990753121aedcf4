"""Planned minibatches in the `Trainer` of transformers and its subclasses.

A minibatch has as many samples as before: per_device_train_batch_size x gradient_accumulation_steps on each rank. The
trainer's own loader chooses the samples. The plan assigns them to ranks and microbatches. To the trainer a whole
minibatch is one batch, so that it steps, logs, evaluates and saves on all ranks alike.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from odc_engine.trainers import beside_stock, refusals
from odc_engine.trainers.collated import collated_lengths
from odc_engine.trainers.counts import IGNORED
from odc_engine.trainers.lengths import Expected, lengths_of
from odc_engine.trainers.losses import Losses
from odc_engine.trainers.metrics import noted_by
from odc_engine.trainers.microbatches import MicrobatchRunner
from odc_engine.trainers.minibatches import Loaded, MinibatchLoader
from odc_engine.trainers.one_process import instead, one_process
from odc_engine.trainers.order import OwnOrder, PlannedSampler, Usual

Run = TypeVar("Run")


class PlannedMixin:
    """Base of the mixins that go in front of a Trainer. `max_tokens`: limit of a microbatch, padding included.
    Default: the Trainer's own, per_device_train_batch_size x the longest sample."""

    max_tokens: int | None = None
    balancer: str
    mean_over: str | None = None  # what the loss is a mean over, where it is not found out: "samples", "labels", ...
    _equal: ClassVar[bool]  # whether devices have equal numbers of microbatches

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refusals.check_processes([*args, *kwargs.values()], type(self).__name__)
        super().__init__(*args, **kwargs)
        refusals.check(self._trainer)
        self._accumulated: int = self._trainer.args.gradient_accumulation_steps
        self._losses: Losses | None = None
        self._told = False  # whether the first minibatch's gradient is another one in stock training

    @property
    def _trainer(self) -> Any:
        """Return this object, typed as the Trainer that it is, too."""
        return self

    @property
    def _stock(self) -> Any:
        return super()

    def lengths(self, dataset: Any) -> Sequence[int]:
        """Return the tokens of each sample: of its `input_ids`, or of what the collate function makes of it.
        Override it if you know them."""
        own = self._trainer.args
        told = lengths_of(dataset, str(own.length_column_name), getattr(own, "max_length", None))
        if told is None:
            return collated_lengths(self._usual, rank=own.process_index, devices=own.world_size)
        return told

    def costs(self, dataset: Any, lengths: Sequence[int]) -> Sequence[float] | None:
        """Return the cost of each sample, in any unit. Override it if the cost does not follow from tokens."""
        del dataset, lengths
        return None

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, while the Trainer's own loop takes each minibatch for one batch."""
        own, handler = self._trainer.args, self._trainer.callback_handler
        self._accumulated, own.gradient_accumulation_steps = own.gradient_accumulation_steps, 1
        handler.call_event = self._call_event
        try:
            return self._stock.train(*args, **kwargs)
        finally:
            own.gradient_accumulation_steps = self._accumulated
            del handler.call_event
            self._close()

    def _accumulating(self) -> AbstractContextManager[None]:
        """Set `gradient_accumulation_steps` as the user gave it, for whoever reads it outside of a minibatch."""
        return instead(vars(self._trainer.args), "gradient_accumulation_steps", self._accumulated)

    def _call_event(self, event: str, *args: Any, **kwargs: Any) -> Any:
        """Call all callbacks, whenever they were added, and then do what follows the event here."""
        handler = self._trainer.callback_handler
        if event == "on_step_end" and self._losses is not None:
            self._count_epoch(self._losses.planned.order)
        with self._accumulating():
            control = type(handler).call_event(handler, event, *args, **kwargs)
        if event == "on_train_begin":
            self._open()
        elif event == "on_optimizer_step":
            self.publish_weights()
        return control

    def _count_epoch(self, order: OwnOrder) -> None:
        """Count the epoch in microbatches, as in stock training: its last minibatch may have fewer than others."""
        state = self._trainer.state
        if order.microbatches:
            ended = math.ceil(state.epoch) - 1
            run = round((state.epoch - ended) * len(order)) * self._accumulated
            state.epoch = ended + min(run / order.microbatches, 1.0)

    def log(self, *args: Any, **kwargs: Any) -> None:
        with self._accumulating():
            self._stock.log(*args, **kwargs)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        with self._accumulating():
            self._stock._maybe_log_save_evaluate(*args, **kwargs)

    def _open(self) -> None:
        """Begin, once the Trainer has prepared its model."""
        raise NotImplementedError

    def _close(self) -> None:
        """End training."""

    def publish_weights(self) -> None:
        """Publish weights that were changed other than by a step, for example in a callback. Call it on all ranks."""

    def get_total_train_batch_size(self, args: Any) -> int:
        with self._accumulating():
            return int(self._stock.get_total_train_batch_size(args))

    def get_train_dataloader(self) -> MinibatchLoader:
        own = self._trainer.args
        with self._accumulating():  # a sampler may go by it
            self._usual = usual = self._stock.get_train_dataloader()
        order = OwnOrder(usual, self._accumulated)
        dataset = refusals.dataset_of(self._trainer, usual, PlannedMixin)
        lengths = list(self.lengths(dataset))
        self._sampler = PlannedSampler(
            order,
            lengths,
            devices=own.world_size,
            rank=own.process_index,
            max_tokens=self.max_tokens or own.per_device_train_batch_size * max(lengths),
            costs=self.costs(dataset, lengths),
            balancer=self.balancer,
            padded=refusals.pads(self._trainer.data_collator),
            equal=self._equal,
        )
        loader = MinibatchLoader(usual, self._sampler, _sealed)
        multiple = getattr(self._trainer.data_collator, "pad_to_multiple_of", None)
        self._expected = Expected(self._sampler.lengths, padded=self._sampler.padded, multiple=multiple)
        self._losses, self._told = Losses(self._trainer, loader.collated, self._sampler, self._run), False
        return loader

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Return one minibatch, and the number of its items on this rank by which losses are divided, as the Trainer
        counts it."""
        del num_batches  # 1: a minibatch is a batch
        minibatch = next(epoch_iterator)
        counted = [batch for batch, _ in minibatch["microbatches"]]
        with one_process(self._trainer):
            _, items = self._stock.get_batch_samples(iter(counted), len(counted), device)
        return [minibatch], items

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward of all microbatches of this rank, and synchronize gradients."""
        assert self._losses is not None
        own, loaded = self._trainer, inputs["microbatches"]
        model.train()
        self._losses.begin(model, loaded, num_items_in_batch)
        usual = loaded[0][1].usual
        stock = self._stock_norm(model, usual)
        loss, noted, microbatches = torch.zeros((), device=own.args.device), noted_by(own), self._runner(model)
        run = [one for one in loaded if one[1].samples and self._losses.weighed(*one).scale]
        for place, (batch, part) in enumerate(self._in_turn(model, run, usual)):
            if place:
                own.control = own.callback_handler.on_substep_end(own.args, own.state, own.control)
            self._expected.check(batch, part)
            counted = _loss_tokens(batch)
            loss += microbatches.run((batch, part))
            if noted:
                noted.weigh(part.share if counted is None else counted)
        if noted:
            noted.combine()
        if stock is not None:
            beside_stock.tell(self._losses.law, self._norm(model), stock)
        return loss

    def _in_turn(self, model: nn.Module, run: Sequence[Run], usual: Usual) -> Iterator[Run]:
        """Run this rank's microbatches one after another, then synchronize gradients."""
        raise NotImplementedError

    def _runner(self, model: nn.Module) -> MicrobatchRunner:
        assert self._losses is not None
        return MicrobatchRunner(self._trainer, model, self._losses, None)

    def _run(self, model: nn.Module, batch: Any, items: Any) -> Tensor:
        """Run one microbatch, as the trainer does."""
        loss: Tensor = self._stock.training_step(model, batch, items)
        return loss

    def _stock_norm(self, model: nn.Module, usual: Usual) -> float | None:
        """Return the norm of the first minibatch's gradient in stock training, if it may differ."""
        assert self._losses is not None
        devices, rank = self._trainer.args.world_size, self._trainer.args.process_index
        told, self._told = self._told, True
        if told or not beside_stock.may_differ(self._losses.law, usual, devices):
            return None
        parts = self._in_turn(model, beside_stock.parts_of(self._losses, usual[rank]), usual)
        beside_stock.backward_as_stock(self._trainer, model, self._losses, parts, accumulated=len(usual[rank]))
        norm = self._norm(model)
        model.zero_grad()
        self.publish_weights()
        return norm

    def _norm(self, model: nn.Module) -> float:
        return beside_stock.norm_of(model, self._trainer.args.device, self._trainer.args.world_size)


def _sealed(loaded: list[Loaded]) -> dict[str, Any]:
    """Wrap a minibatch as the batch that the Trainer expects, whose tokens it can count."""
    for batch, part in loaded:
        if not part.samples:  # a stand-in: nothing of it counts
            for name in [name for name in ("labels", "shift_labels") if name in batch]:
                batch[name].fill_(IGNORED)
    run = [batch for batch, part in loaded if part.samples]
    counted = {name: torch.cat([batch[name].flatten() for batch in run]) for name in _counted(run)}
    return {**counted, "microbatches": loaded}


def _loss_tokens(batch: Any) -> int | None:
    return int((batch["labels"][..., 1:] != IGNORED).sum()) if "labels" in batch else None


def _counted(run: list[Any]) -> list[str]:
    """Return the batch from which the Trainer counts tokens."""
    return [name for name in ("input_ids", "attention_mask") if run and all(name in batch for batch in run)]
