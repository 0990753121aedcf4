"""Tokens of each sample of a trainer's dataset, and whether its batches have as many."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from odc_engine.trainers.minibatches import Portion

SLACK = 8  # tokens of a row that a collate function may add or leave out, besides a twentieth


def lengths_of(dataset: Any, column: str, longest: int | None) -> Sequence[int] | None:
    """`column` has them, if it is there. `longest`: to what a collate function cuts prompts with their answers. None
    where samples have no tokens before they are collated."""
    names = getattr(dataset, "column_names", None) or ()
    if column in names:
        return [int(length) for length in dataset[column]]
    if "input_ids" in names:
        return [len(ids) for ids in dataset["input_ids"]]
    if "chosen_ids" in names:  # a better and a worse answer, each in a row of its own
        return _cut(2, _prompts(dataset, names) + _longer(dataset, "chosen_ids", "rejected_ids"), longest)
    if "completion_ids" in names:
        other = "KL_completion_ids" if "KL_completion_ids" in names else "completion_ids"
        return _cut(1, _prompts(dataset, names) + _longer(dataset, "completion_ids", other), longest)
    if not isinstance(first := dataset[0], Mapping) or "input_ids" not in first:
        return None
    return [len(dataset[i]["input_ids"]) for i in range(len(dataset))]


def _sizes(dataset: Any, column: str) -> NDArray[np.int64]:
    return np.array([len(ids) for ids in dataset[column]], dtype=np.int64)


def _longer(dataset: Any, one: str, other: str) -> NDArray[np.int64]:
    return np.maximum(_sizes(dataset, one), _sizes(dataset, other))


def _prompts(dataset: Any, names: Sequence[str]) -> Any:
    return _sizes(dataset, "prompt_ids") if "prompt_ids" in names else 0


def _cut(rows: int, tokens: NDArray[np.int64], longest: int | None) -> list[int]:
    found: list[int] = (rows * (tokens if longest is None else np.minimum(tokens, longest))).tolist()
    return found


class Expected:
    """What batches have by the plan. The first that has clearly more or fewer tokens is told of, once."""

    def __init__(self, lengths: NDArray[np.int64], *, padded: bool, multiple: int | None) -> None:
        self._lengths, self._padded, self._multiple = lengths, padded, multiple or 1
        self._told = False

    def check(self, batch: Any, part: Portion) -> None:
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if self._told or not isinstance(ids, Tensor) or not part.samples:
            return
        planned, found = self._planned(part), ids.numel()
        if abs(found - planned) > planned / 20 + SLACK * len(part.places):
            self._told = True
            unlike = "longer" if found > planned else "shorter"
            warnings.warn(
                f"a microbatch of {found} tokens, planned as {planned}: samples are {unlike} than their lengths say; "
                "let lengths(dataset) of your trainer tell what is loaded, since balance and max_tokens go by it",
                stacklevel=2,
            )

    def _planned(self, part: Portion) -> int:
        lengths = self._lengths[list(part.places)]
        if not self._padded:
            return int(lengths.sum())
        return len(lengths) * -(-int(lengths.max()) // self._multiple) * self._multiple
