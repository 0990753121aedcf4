"""Find each microbatch's loss weight, so that the gradient is that of the loss on the whole minibatch.

Before the first step, and again for a batch with other keys, a few samples' losses in one batch and in several show
what the loss is a mean over (normalization.py). A trainer that sets `mean_over` is not tested.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from odc_engine.trainers.counts import NOTHING, Counts, counts_of, over_ranks, together
from odc_engine.trainers.exchange import all_told
from odc_engine.trainers.minibatches import Collated, Loaded, Places, Portion
from odc_engine.trainers.normalization import EVERY, Over, Trials, weight
from odc_engine.trainers.one_process import HeardLosses, backward_as, one_process, own_alone
from odc_engine.trainers.order import PlannedSampler
from odc_engine.trainers.stirred import stirred
from odc_engine.trainers.trying import FEW, Unlike, alike, batches_of, tried
from odc_engine.trainers.untraced import alone, untraced, without_dropout
from odcsim.errors import InputError

Step = Callable[[nn.Module, Any, Any], Tensor]  # forward and backward of one microbatch, as the trainer has them
Keys = tuple[str, ...]
SAMPLED = 12  # samples of a dataset that are looked at, where a minibatch has too few of some keys
SAY = "divide it by num_items_in_batch, or say what weighs microbatches: mean_over = 'samples' (or 'labels', 'tokens')"


@dataclass(frozen=True, slots=True)
class Weighed:
    """`scale`: factor on a microbatch's loss. `items`: passed to the loss as num_items_in_batch."""

    scale: float
    items: Any


@dataclass(frozen=True, slots=True)
class Found:
    """`over`: what the loss is a mean over; several if the samples so far do not distinguish them."""

    over: tuple[Over, ...]
    by_items: bool = False  # all of it is divided by num_items_in_batch
    factor: float = 0.0  # times the loss, what stock training takes for a microbatch's; 0 where nobody tried
    drawn: bool = False  # samples are others each time they are loaded


class Losses:
    """The loss weights of one trainer while it trains. `ready` is called before each `step`."""

    def __init__(self, trainer: Any, data: Collated, planned: PlannedSampler, step: Step) -> None:
        self._trainer, self._data, self.planned, self.step = trainer, data, planned, step
        self._known: dict[Keys, Found] = {}
        self._whole, self._every, self._items_here = NOTHING, cast(float | None, None), cast(Any, None)
        if (said := trainer.mean_over) is not None and said not in EVERY:
            raise InputError(f"mean_over '{said}'", where=type(trainer).__name__, fix=f"take one of {', '.join(EVERY)}")
        self.found: Found | None = None if said is None else Found((said,))

    @property
    def law(self) -> Found:
        assert self.found is not None, "nobody has weighed yet"
        return self.found

    @property
    def over(self) -> Over:
        return self.law.over[0]

    def load(self, places: Places) -> Loaded:
        return self._data[Portion(places, 1.0)]

    def begin(self, model: nn.Module, loaded: Sequence[Loaded], items: Any) -> None:
        """Begin a minibatch with this rank's microbatches and number of items. Synchronizes."""
        counts = [counts_of(batch, part.samples) for batch, part in loaded]
        keys = {_keys(batch): part.places for batch, part in loaded if part.samples}
        new = self._trainer.mean_over is None and not keys.keys() <= self._known.keys()
        *sums, total, untold, unknown = self._summed([*astuple(together(counts)), *_total(items), new])
        self._whole, self._every, self._items_here = Counts(*sums), None if untold else total, items
        if unknown:
            self._find(model, keys, self._every is not None)
        if self._undecided(counts):
            self._find(model, keys, self._every is not None, narrow=True)
            if self._undecided(counts):
                told = f"a loss of which few samples do not tell whether it is a mean over {' or '.join(self.law.over)}"
                raise InputError(told, where=self._where, fix=SAY)

    def weighed(self, batch: Any, part: Portion) -> Weighed:
        """Return the weight of one microbatch, or of a half of one."""
        share = weight(self.over, counts_of(batch, part.samples), self._whole)
        return Weighed(share, self.items(share))

    def items(self, share: float = 1.0) -> Any:
        """Return a share of all ranks' items, in the form that the trainer uses."""
        if self._every is None or self._items_here is None:
            return None
        items, value = self._items_here, self._every * share
        return torch.full_like(items, value, dtype=torch.float32) if isinstance(items, Tensor) else value

    def _summed(self, values: Sequence[float]) -> list[float]:
        return over_ranks(values, self._trainer.args.device)

    def _undecided(self, counts: Sequence[Counts]) -> bool:
        """Whether the candidates that fitted so far give microbatches different weights, on any rank."""
        if len(self.law.over) == 1:
            return False
        weights = [[weight(over, part, self._whole) for part in counts] for over in self.law.over]
        unlike = any(abs(a - b) > 1e-9 for one in weights[1:] for a, b in zip(weights[0], one, strict=True))
        return bool(self._summed([unlike])[0])

    def _find(self, model: nn.Module, own: dict[Keys, Places], itemized: bool, narrow: bool = False) -> None:
        """Find what the loss is a mean over, on all ranks from the same samples, so that all find the same."""
        every: dict[Keys, list[int]] = {}
        for told in all_told(own):
            for keys, places in told.items():
                every.setdefault(keys, []).extend(places)
        for keys in sorted(every):
            if narrow or keys not in self._known:
                self._known[keys] = self._agreed(model, keys, every[keys], itemized)
        self.found = self._one()

    def _agreed(self, model: nn.Module, keys: Keys, places: Sequence[int], itemized: bool) -> Found:
        found: Found | None = None
        try:
            found, problem = self._tried(model, keys, places, itemized), ""
        except (InputError, Unlike) as error:
            problem = str(error)
        told = all_told((found, problem))
        if problems := [other for _, other in told if other]:
            raise InputError(problem or problems[0])
        assert found is not None
        over = tuple(one for one in EVERY if all(one in each.over for each, _ in told))
        if not over:
            raise InputError(f"ranks find different divisors of the loss: {[each.over for each, _ in told]}", fix=SAY)
        return replace(found, over=over)

    def _one(self) -> Found:
        """Return what holds for all keys, since a minibatch may have microbatches of each."""
        every = list(self._known.values())
        over = tuple(one for one in every[0].over if all(one in other.over for other in every))
        if not over:
            told = "; ".join(f"{found.over[0]} with keys {', '.join(keys)}" for keys, found in self._known.items())
            raise InputError(f"a loss that is a mean over different things: {told}", where=self._where, fix=SAY)
        by_items, drawn = all(one.by_items for one in every), any(one.drawn for one in every)
        return replace(every[0], over=over, by_items=by_items, drawn=drawn)

    @property
    def _where(self) -> str:
        return type(self._trainer).__name__

    def _tried(self, model: nn.Module, keys: Keys, places: Sequence[int], itemized: bool) -> Found:
        samples = self._samples(keys, places)
        make, count = batches_of(samples, self._data.collate), len(samples)
        items = self._items(make(range(count))) if itemized else None
        with ExitStack() as kept:
            kept.enter_context(stirred(model))
            with alone(equal=self.planned.equal):
                self._value(model, make(range(count)), items)
            if self._draws(model, make(range(count)), items):
                kept.callback(without_dropout(model))
                if self._draws(model, make(range(count)), items):
                    told = "a loss with random numbers, so that its divisor cannot be found"
                    raise InputError(told, where=self._where, fix=SAY)

            def loss(batch: Any, items: float | None) -> float:
                return self._value(model, batch, items)

            trials = tried(make, count, loss, items)
            if trials is None:
                told = "a loss that uses num_items_in_batch other than as a divisor"
                raise InputError(told, where=self._where, fix=SAY)
            whole, stock = trials.whole.at(trials.items), self._value(model, make(range(count)), items, stock=True)
        over = trials.fitting(self._bound(model))
        if not over:
            raise InputError(_unfit(trials), where=self._where, fix=SAY)
        by_items = abs(trials.whole.constant) <= 1e-5 * abs(whole) and items is not None
        return Found(over, by_items, stock / whole if whole else 0.0, self._drawn(places))

    def _drawn(self, places: Sequence[int]) -> bool:
        one, other = (self.load(tuple(places[:1]))[0] for _ in range(2))
        return not alike(one, other)

    def _samples(self, keys: Keys, places: Sequence[int]) -> list[Any]:
        """Return a few samples of different lengths that fit one microbatch: of the minibatch, and others with the
        same keys."""
        lengths = self.planned.lengths
        found = sorted({*places}, key=lambda i: (lengths[i], i))
        fitting = sum(int(lengths[i]) * FEW <= self.planned.max_tokens for i in found)
        short = found[: max(fitting, FEW)]
        if len(short) < FEW:
            others = (i for i in range(min(len(self.planned.lengths), SAMPLED)) if i not in short)
            short += [i for i in others if _keys(self._data.collate(self._data.samples([i]))) == keys]
        if len(short) < 2:
            raise Unlike(f"one sample alone has the keys {', '.join(keys)}; {SAY}")
        chosen = sorted({0, len(short) // 2, len(short) - 1})
        return self._data.samples([short[i] for i in chosen])

    def _items(self, batch: Any) -> float | None:
        """Return the items that the trainer counts in a batch."""
        with one_process(self._trainer):
            counted = self._trainer._get_num_items_in_batch([batch], self._trainer.args.device)
        return None if counted is None else float(counted)

    def _draws(self, model: nn.Module, batch: Any, items: float | None) -> bool:
        one, other = (self._value(model, _copied(batch), items, seed=seed) for seed in (0, 1))
        return abs(one - other) > 1e-6 * max(abs(one), abs(other))

    def _value(self, model: nn.Module, batch: Any, items: float | None, *, stock: bool = False, seed: int = 0) -> float:
        """Return the value that backward would get in one process, or on each rank in `stock` training."""
        own, noted = self._trainer, HeardLosses()
        told = None if items is None else torch.tensor(items, device=own.args.device)
        with ExitStack() as kept:
            kept.enter_context(untraced(own, model))
            kept.enter_context(own_alone(own.accelerator) if stock else one_process(own))
            kept.enter_context(backward_as(own.accelerator, noted))
            kept.enter_context(torch.no_grad())
            own.current_gradient_accumulation_steps = own._accumulated if stock else 1
            kept.enter_context(self._no_backward())
            torch.manual_seed(seed)
            self.step(model, batch, told)
        if not noted.losses:
            raise InputError("a training_step without accelerator.backward", where=self._where, fix=BACKWARD)
        return sum(noted.losses)

    @contextmanager
    def _no_backward(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            told = "a training_step or loss that calls backward() itself"
            raise InputError(told, where=self._where, fix=BACKWARD) from error

    def _bound(self, model: nn.Module) -> float:
        """Bound the rounding error of sums of losses."""
        own = self._trainer.args
        exact = next(model.parameters()).dtype == torch.float32 and not (own.bf16 or own.fp16)
        fast = torch.cuda.is_available() and torch.get_float32_matmul_precision() != "highest"
        return 2e-5 if exact and not fast else 5e-3


BACKWARD = "call self.accelerator.backward(loss), which sets its weight"


def _keys(batch: Any) -> Keys:
    return tuple(sorted(map(str, batch))) if isinstance(batch, Mapping) else (type(batch).__name__,)


def _total(items: Any) -> tuple[float, bool]:
    """Return the sum of items, and whether the loss is passed none."""
    return (0.0, True) if items is None else (float(items), False)


def _copied(batch: Any) -> Any:
    if not isinstance(batch, Mapping):
        return batch
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in batch.items()}


def _unfit(trials: Trials) -> str:
    errors = [error for over in EVERY if (error := trials.error(over)) < float("inf")]
    if not errors:
        return f"a loss that is no finite number over {trials.whole.counts.samples:.0f} samples, or over some of them"
    told = f"{trials.whole.at(trials.items):.6g} over {trials.whole.counts.samples:.0f} samples in one batch"
    return (
        f"a loss that depends on which samples are in a batch together: {told}, and at least "
        f"{100 * min(errors):.2g} % off from batches of them, whatever weighs those"
    )
