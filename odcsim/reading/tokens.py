"""Columns that hold a list of tokens for each sample: which of them count."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

UNSEEN = -100  # a label that takes no part in the loss
LABELS = ("labels",)
MASKS = ("loss_mask", "assistant_masks", "completion_mask", "response_mask", "attention_mask")


def count(name: str, values: Sequence[object]) -> int:
    """How long a list is; of labels and masks, how many of it count."""
    if name.lower() in LABELS:
        return sum(value != UNSEEN for value in values)
    return sum(bool(value) for value in values) if name.lower() in MASKS else len(values)


def counts(name: str, lengths: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same of lists that lie one behind the other in `values`."""
    upto = np.concatenate(([0], np.cumsum(values != (UNSEEN if name.lower() in LABELS else 0))))
    ends = np.cumsum(lengths)
    return np.asarray(upto[ends] - upto[ends - lengths], np.int64)


def is_list(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)
