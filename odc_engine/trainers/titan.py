"""On-demand communication in torchtitan: a trainer whose ranks run different microbatch counts, and a loader that plans
them.

    class OnDemandTrainer(TitanMixin, Trainer):
        @dataclass(kw_only=True, slots=True)
        class Config(Trainer.Config):
            pass

    class Texts(BalancedTexts):
        def samples(self):
            return [tokens of each sample, as lists]

    config = OnDemandTrainer.Config(dataloader=Texts.Config(max_tokens=8192), ...)

torchtitan divides summed losses by the tokens of the whole step on all ranks, and has FSDP2 sum gradients: so they are
right whichever rank runs a sample. The loader sets the number of samples per step, not training.global_batch_size.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from odc_engine.fsdp.on_demand import OnDemand
from odc_engine.fsdp.remedies import IN_A_TRAINER
from odc_engine.trainers.minibatches import MinibatchSampler, Portion, freely_balanced
from odcsim.errors import InputError

__all__ = ["BalancedTexts", "TitanMixin"]

IGNORED = -100  # torchtitan's label that no loss counts
Batch = tuple[dict[str, Tensor], Tensor]


class TitanMixin:
    """Put it in front of torchtitan's Trainer."""

    check_finite = True  # whether a gradient that is not finite is refused, rather than stepped with as stock
    _odc: OnDemand | None = None
    _left = 0  # microbatches of this step

    @property
    def _trainer(self) -> Any:
        """Return this object, typed as the Trainer that it is, too."""
        return self

    @property
    def _stock(self) -> Any:
        return super()

    def train_step(self, data_iterator: Iterator[Batch]) -> None:
        if self._odc is None:
            _check(self._trainer)  # here, since a checkpoint has been loaded by now
            # As FSDP2 divides, whom torchtitan told not to: gradients are sums.
            self._odc = OnDemand(self._trainer.model_parts[0], check_finite=self.check_finite)
            self._odc.speak(IN_A_TRAINER)
        self._left = self._trainer.gradient_accumulation_steps = self._trainer.dataloader.begin()
        self._stock.train_step(data_iterator)
        self._odc.publish()

    def forward_backward_step(self, *, input_dict: Any, labels: Any, global_valid_tokens: Tensor) -> Tensor:
        """Run one microbatch. The last one of the step synchronizes ranks, before gradients are clipped."""
        self._left -= 1
        if (labels != IGNORED).any():
            step = self._stock.forward_backward_step
            loss: Tensor = step(input_dict=input_dict, labels=labels, global_valid_tokens=global_valid_tokens)
        else:
            loss = torch.zeros((), device=global_valid_tokens.device)  # this device has nothing to run
        if not self._left and self._odc is not None:
            self._odc.settle()
        return loss

    def publish_weights(self) -> None:
        """Publish weights that were changed other than by a step. Call it on all ranks."""
        if self._odc is not None:
            self._odc.publish()

    def close(self) -> None:
        if self._odc is not None:
            self._odc.close()
            self._odc = None
        self._stock.close()


def _check(trainer: Any) -> None:
    config, dims = trainer.config, trainer.parallel_dims
    if not config.training.disable_cuda_graphs:
        raise InputError("CUDA graphs, which need equal shapes", fix="set training.disable_cuda_graphs")
    if spread := [name for name in ("tp", "cp", "pp", "ep") if getattr(dims, name) > 1]:
        told = f"samples that several devices run together ({', '.join(spread)})"
        raise InputError(told, fix="use data parallelism alone, by data_parallel_shard_degree")
    if not hasattr(trainer.dataloader, "begin"):
        told = f"{type(trainer.dataloader).__name__} does not say how many microbatches a step has"
        raise InputError(told, fix="make it a BalancedTexts")


@dataclass(kw_only=True)
class TextsConfig:
    """The configuration from which torchtitan builds a loader. Each subclass of `BalancedTexts` has its own, named
    Config."""

    max_tokens: int = 8192  # of a microbatch, padding included
    minibatch: int = 8
    balancer: str = "lb-mini"
    multiple: int = 8
    seed: int = 0

    _owner: ClassVar[type] = object

    def build(self, **given: Any) -> Any:
        return self._owner(self, **given)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("max_tokens", "minibatch", "balancer", "multiple", "seed")}


class BalancedTexts(ABC):
    """A data loader of torchtitan, for samples in memory or quickly read.

    `minibatch` counts samples per rank between two optimizer steps. Rows of a microbatch are padded to a multiple of
    `multiple` tokens, which a chunked loss needs.
    """

    Config: ClassVar[Any] = TextsConfig

    def __init_subclass__(cls) -> None:
        """Give each subclass a Config that builds it, as torchtitan's components have."""
        cls.Config = type("Config", (cls.Config,), {"_owner": cls})

    def __init__(self, config: TextsConfig, *, dp_world_size: int, dp_rank: int, tokenizer: Any, **_: Any) -> None:
        self.config, self.tokenizer = config, tokenizer
        self._samples = self.samples()
        self._multiple = config.multiple
        padded = [_up(len(sample) - 1, config.multiple) for sample in self._samples]
        self.batches = freely_balanced(
            padded,
            loss=[len(sample) - 1 for sample in self._samples],
            devices=dp_world_size,
            rank=dp_rank,
            minibatch=config.minibatch,
            max_tokens=config.max_tokens,
            averaged=False,
            balancer=config.balancer,
            seed=config.seed,
        )
        self._sampler = MinibatchSampler(self.batches, padded=True)
        self._epoch: Iterator[list[Portion]] = iter(())
        self._now: list[Portion] = []

    @abstractmethod
    def samples(self) -> Sequence[Sequence[int]]:
        """Return the tokens of each sample; `self.tokenizer` is available."""

    def begin(self) -> int:
        """Begin the next minibatch. Returns how many microbatches this rank has to run, or 1 that runs no sample."""
        while not (minibatch := next(self._epoch, None)):
            self._epoch = iter(self._sampler)
        self._now = minibatch
        return len(minibatch)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            if not self._now:
                raise InputError("a minibatch that has not begun", fix="train by a TitanMixin")
            yield self._batch(self._now.pop(0))

    def _batch(self, portion: Portion) -> Batch:
        rows = [self._samples[i] for i in portion.places]
        longest = _up(max(len(row) for row in rows) - 1, self._multiple)
        tokens = torch.zeros(len(rows), longest, dtype=torch.int64, device="cpu")
        labels = torch.full_like(tokens, IGNORED)
        for row, into, target in zip(rows, tokens, labels, strict=True):
            into[: len(row) - 1] = torch.tensor(row[:-1], device="cpu")
            if portion.share:
                target[: len(row) - 1] = torch.tensor(row[1:], device="cpu")
        positions = torch.arange(longest, device="cpu").expand(len(rows), -1).contiguous()
        return {"input": tokens, "positions": positions}, labels

    def state_dict(self) -> dict[str, Any]:
        return self.batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.batches.load_state_dict(state)
            self._epoch = iter(())


def _up(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple
