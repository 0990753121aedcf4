"""On-demand communication in TRL's trainers that generate samples while training: GRPOTrainer and RLOOTrainer.

    class OnDemandTrainer(OnDemandRollouts, GRPOTrainer):
        max_tokens = 8192

Each rank generates answers for its own prompts. Their lengths are not known before, so that a minibatch's answers are
planned once all exist, and sent to the ranks that train on them.
"""

import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from odc_engine.sampler import agree
from odc_engine.trainers import refusals
from odc_engine.trainers.answers import Row, facts_of, padded, parts_within, shared, sizes_of, unpadded
from odc_engine.trainers.exchange import all_told, swapped
from odc_engine.trainers.hugging_face import OnDemandMixin
from odc_engine.trainers.images import apart
from odc_engine.trainers.metrics import noted_by
from odc_engine.trainers.one_process import own_alone
from odc_engine.trainers.planned import PlannedMixin
from odcsim.balance import plan


class AnswerRows(dict[str, Any]):
    """A microbatch of answers that needs no more preparation."""


class OnDemandRollouts(OnDemandMixin):
    """Put it in front of a GRPOTrainer. `max_tokens`: limit of a microbatch, padding included. Default:
    per_device_train_batch_size x the longest answer with its prompt."""

    rollouts = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refusals.check_rollouts(self._trainer)
        self._answers: list[Row] | None = None  # of this device, for each optimizer step until the next generation

    def get_train_dataloader(self) -> Any:
        return self._stock.get_train_dataloader()

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        """Yield one item per optimizer step, not per microbatch."""
        sampler = self._stock._get_train_sampler(*args, **kwargs)
        sampler.repeat_count //= self._accumulated
        return sampler

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        return self._stock.get_batch_samples(epoch_iterator, num_batches, device)

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs if isinstance(inputs, AnswerRows) else self._stock._prepare_inputs(inputs)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        del num_items_in_batch  # which answers know themselves
        began, own = time.perf_counter(), self._trainer
        model.train()
        parts = self._shared(self._made(inputs))
        loss, noted, before = torch.zeros((), device=own.args.device), noted_by(own), own._step
        by_tokens = refusals.over_of(own) == "nothing"
        with own_alone(own.accelerator):
            for place, (rows, share) in enumerate(parts):
                if place:
                    own.control = own.callback_handler.on_substep_end(own.args, own.state, own.control)
                own.current_gradient_accumulation_steps = self._accumulated if by_tokens else 1 / share
                self._gather_head()
                loss += self._stock_step(model, rows)
                if noted:
                    noted.weigh(int(rows["completion_mask"].sum()))
        if self._odc is not None:
            self._odc.settle()
        if noted:
            noted.combine()
        own._step = before + self._accumulated
        own._metrics["train"]["step_time"] = [time.perf_counter() - began]
        return loss

    def _stock_step(self, model: nn.Module, rows: AnswerRows) -> Tensor:
        loss: Tensor = super(PlannedMixin, self).training_step(model, rows, None)  # type: ignore[misc]
        return loss

    def _made(self, prompts: Any) -> Row:
        """Return this rank's answers for this optimizer step; generate those of several steps when due."""
        own = self._trainer
        steps, every = own.args.steps_per_generation, own.args.steps_per_generation * own.num_iterations
        if own._step % every == 0 or self._answers is None:
            helpers = import_module("trl.trainer.utils")
            with self._accumulating():
                answers = apart(own._generate_and_score_completions(prompts))
            refusals.check_answers(answers)
            shuffled = helpers.shuffle_sequence_dict(answers)
            self._answers = helpers.split_tensor_dict(shuffled, steps // self._accumulated)
        return self._answers[int(own._step % steps // self._accumulated)]

    def _shared(self, answers: Row) -> list[tuple[AnswerRows, float]]:
        """Return this rank's microbatches with their loss weights: share of the minibatch, times the number of
        ranks."""
        own, rows = self._trainer.args, unpadded(answers)
        told = all_told(([sizes_of(row) for row in rows], facts_of(answers)))
        refusals.check_alike([facts for _, facts in told])
        every = [sizes for sizes, _ in told]
        sizes = [size for own_sizes in every for size in own_sizes]
        limit = self.max_tokens or own.per_device_train_batch_size * max(size.total for size in sizes)
        found = plan([size.total for size in sizes], devices=len(every), max_tokens=limit, balancer=self.balancer)
        if len(every) > 1:
            agree(found.digest)
        first = sum(map(len, every[: own.process_index]))
        mine = self._moved(dict(enumerate(rows, first)), found.devices)
        return [
            (self._batch([mine[i] for i in part], answers), len(part) * len(every) / len(sizes))
            for part in parts_within([*mine], sizes, limit)
        ]

    def _batch(self, rows: list[Row], answers: Row) -> AnswerRows:
        """Return a microbatch on the model's device."""
        batch = padded(rows, self._trainer._tokenizer.pad_token_id) | shared(answers)
        device = self._trainer.args.device
        return AnswerRows({name: v.to(device) if isinstance(v, Tensor) else v for name, v in batch.items()})

    def _moved(self, rows: dict[int, Row], devices: Any) -> dict[int, Row]:
        """Send this rank's rows to the ranks that train on them, and receive its own, by their positions."""
        places = [{i for part in parts for i in part} for parts in devices]
        parcels = [{i: row for i, row in rows.items() if i in own} for own in places]
        device = self._trainer.args.device
        return {i: row for parcel in swapped(parcels, device) for i, row in parcel.items()}
