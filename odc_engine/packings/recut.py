"""What deals a minibatch to processes and cuts it, told to do so otherwise: the batch sampler, and trainers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

from odc_engine import sampler
from odc_engine.packings.packing import Packing, Places
from odc_engine.sampler import BalancedBatches, Share
from odc_engine.trainers import rollouts
from odc_engine.trainers.minibatches import MinibatchLoader, MinibatchSampler, Portion
from odc_engine.trainers.planned import PlannedMixin
from odc_engine.trainers.titan import BalancedTexts
from odc_engine.trainers.verl import VerlMixin

LIMIT = "max_token_len_per_gpu"  # verl's, of a microbatch's tokens


class Planned:
    """What this process runs of the first minibatch, where something of ours cuts it: which, in `by`, if a trainer."""

    def __init__(self) -> None:
        self.microbatches: list[Places] | None = None
        self.trainers: list[Any] = []
        self.by = ""

    def note(self, microbatches: list[Places]) -> list[Places]:
        if self.microbatches is None:
            self.microbatches = [part for part in microbatches if part]
        return microbatches


@contextmanager
def put(owner: Any, name: str, value: object) -> Iterator[None]:
    """In the place of what is there, for a while."""
    usual = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, usual)


@contextmanager
def recut(packing: Packing, planned: Planned) -> Iterator[None]:
    ways = (
        (BalancedBatches, "__init__", _batches),
        (sampler._Epoch, "_plan", _shares),
        (MinibatchSampler, "__init__", _portioned),
        (MinibatchLoader, "__init__", _loads),
        (BalancedTexts, "begin", _texts),
        (rollouts, "parts_within", _answers),
        (VerlMixin, "forward_backward_batch", _verl),
        (PlannedMixin, "train", _trains),
    )
    with ExitStack() as stack:
        for owner, name, way in ways:
            stack.enter_context(put(owner, name, way(getattr(owner, name), packing, planned)))
        yield


def _batches(make: Callable[..., None], packing: Packing, planned: Planned) -> Callable[..., None]:
    def made(self: BalancedBatches, lengths: Any, **how: Any) -> None:
        make(self, lengths, **how)
        if not planned.trainers and how["devices"] == packing.processes:  # a trainer has been told before
            make(self, lengths, **how | {"minibatch": packing.samples(how["minibatch"])})

    return made


def _shares(plan: Callable[..., Share], packing: Packing, planned: Planned) -> Callable[..., Share]:
    def cutting(self: Any, number: int) -> Share:
        share = plan(self, number)
        if hasattr(self._batches, "portioned"):
            return share
        again = planned.note(packing.again(list(share.microbatches)))
        # Of a mean over its tokens, as of their sum
        loss = [float(self._batches.loss[list(part)].sum()) * share.token_weight for part in again]
        return replace(share, microbatches=tuple(again), weights=tuple(loss)) if packing.otherwise else share

    return cutting


def _portioned(make: Callable[..., None], packing: Packing, planned: Planned) -> Callable[..., None]:  # noqa: ARG001
    def made(self: Any, batches: Any, *args: Any, **how: Any) -> None:
        make(self, batches, *args, **how)
        batches.portioned = True  # and cut by whoever takes them

    return made


def _loads(make: Callable[..., None], packing: Packing, planned: Planned) -> Callable[..., None]:
    class Recut:
        def __init__(self, of: Any) -> None:
            self._of = of

        def __iter__(self) -> Iterator[list[Portion]]:
            return (_portions(portions, packing, planned) for portions in self._of)

        def __len__(self) -> int:
            return len(self._of)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._of, name)

    def made(self: Any, usual: Any, of: Any, *args: Any, **how: Any) -> None:
        make(self, usual, Recut(of), *args, **how)

    return made


def _portions(portions: list[Portion], packing: Packing, planned: Planned) -> list[Portion]:
    filled = [part for part in portions if part.share]
    again = planned.note(packing.again([part.places for part in filled]))
    if not filled or not packing.otherwise:
        return portions
    each = sum(part.share for part in filled) / sum(len(part.places) for part in filled)
    return [replace(filled[0], places=places, share=each * len(places)) for places in again]


def _texts(begin: Callable[..., int], packing: Packing, planned: Planned) -> Callable[..., int]:
    def beginning(self: Any) -> int:
        planned.by = "TitanMixin"
        begin(self)
        self._now = _portions(self._now, packing, planned)
        return len(self._now)

    return beginning


def _answers(
    parts_within: Callable[..., list[Places]], packing: Packing, planned: Planned
) -> Callable[..., list[Places]]:
    def cutting(*args: Any) -> list[Places]:
        return planned.note(packing.again([tuple(part) for part in parts_within(*args)]))

    return cutting


def _verl(forward_backward: Callable[..., Any], packing: Packing, planned: Planned) -> Callable[..., Any]:
    """verl packs what each process holds by a limit of tokens, which comes with the samples."""

    def recutting(self: Any, data: Any, *args: Any, **how: Any) -> Any:
        planned.by = "VerlMixin"
        lengths = data["input_ids"].offsets().diff().tolist()
        planned.note([(length,) for length in lengths])
        if packing.otherwise and LIMIT in data.keys():  # noqa: SIM118 - of a TensorDict
            helpers = import_module("verl.utils.tensordict_utils")
            data = data.clone(recurse=False)
            helpers.assign_non_tensor_data(data, LIMIT, packing.limit(int(data[LIMIT]), max(lengths)))
        return forward_backward(self, data, *args, **how)

    return recutting


def _trains(train: Callable[..., Any], packing: Packing, planned: Planned) -> Callable[..., Any]:
    def training(self: Any, *args: Any, **kwargs: Any) -> Any:
        planned.trainers.append(self)
        planned.by = "PlannedMixin"
        own = self.args
        own.gradient_accumulation_steps = packing.samples(own.gradient_accumulation_steps)
        return train(self, *args, **kwargs)

    return training
