"""Tokens of samples that have none before a collate function makes them: texts, and images with their texts.

Each sample is loaded and collated once, alone, which is what a processor makes of it: all tokens of its images counted.
Devices share the samples, and a loader's workers do the work where it has some.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from odc_engine.trainers.exchange import all_told
from odc_engine.trainers.untraced import random_states
from odcsim.errors import InputError
from odcsim.support.progress import progress

FEW = 100  # samples, of which a log tells nothing


def collated_lengths(usual: DataLoader[Any], *, rank: int, devices: int) -> list[int]:
    """Of all samples of a trainer's own loader. A meeting."""
    count = len(usual.dataset)  # type: ignore[arg-type]
    every = all_told(_counted(usual, range(rank, count, devices), told=not rank))
    if problem := next((own for own in every if isinstance(own, str)), None):
        raise InputError(problem, fix="define lengths(dataset) on your trainer")
    return [every[place % devices][place // devices] for place in range(count)]


def _counted(usual: DataLoader[Any], places: Sequence[int], told: bool) -> list[int] | str:
    """Of those samples; or why nobody can tell."""
    loader = DataLoader(
        usual.dataset,
        batch_size=1,
        sampler=places,
        collate_fn=_Counted(usual.collate_fn),
        num_workers=usual.num_workers,
        worker_init_fn=usual.worker_init_fn,
        multiprocessing_context=usual.multiprocessing_context,
    )
    found: list[int] = []
    with random_states(), _progress(len(places)) if told else nullcontext(lambda: None) as advance:
        for size in loader:
            if isinstance(size, str):
                return size
            found.append(size)
            advance()
    return found


@contextmanager
def _progress(count: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; in a log a line for each tenth of many."""
    done = itertools.count(1)
    with progress("counting tokens", count) as advance:
        yield lambda: advance("a tenth" if next(done) % max(count // 10, FEW) == 0 else "")


class _Counted:
    """A collate function of one sample alone, of which it gives the tokens."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> int | str:
        batch = self._collate([dict(one) if type(one) is dict else one for one in samples])
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if isinstance(ids, Tensor):
            return ids.numel()
        return f"batches without 'input_ids', of which nobody can tell how long samples are ({_keys(batch)})"


def _keys(batch: Any) -> str:
    return ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
