"""What a row has under a name: a field inside another (`meta.len` of `{"meta": {"len": 5}}`), or a list of tokens."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEEPEST = 4  # where somebody still looks for lengths
UNSEEN = -100  # a label that takes no part in the loss
LABELS = ("labels",)
MASKS = ("loss_mask", "assistant_masks", "completion_mask", "response_mask", "attention_mask")


def is_inside(name: str, names: Collection[str]) -> bool:
    """Whether `name` leads into one of the columns and is none itself."""
    return name not in names and "." in name and name.partition(".")[0] in names


def column_of(name: str, names: Collection[str]) -> str:
    """The column that holds it."""
    return name.partition(".")[0] if is_inside(name, names) else name


def pick(record: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """What is there, or the default."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def numbers_inside(record: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The names with dots under which a row has what may be a length."""
    for name, value in record.items():
        if isinstance(value, Mapping) and before.count(".") < DEEPEST:
            yield from numbers_inside(value, f"{before}{name}.")
        elif before and type(value) is int and value > 0:
            yield f"{before}{name}"


def is_list(value: object) -> bool:
    """Whether it is a list of tokens."""
    return isinstance(value, list) and all(type(item) is int for item in value)


def count_tokens(name: str, values: Sequence[object]) -> int:
    """How long a list is; of labels and masks, how many of it count."""
    if name.lower() in LABELS:
        return sum(value != UNSEEN for value in values)
    return sum(bool(value) for value in values) if name.lower() in MASKS else len(values)


def count_each(name: str, lengths: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same of lists of labels or masks that lie one behind the other in `values`."""
    upto = np.concatenate(([0], np.cumsum(values != (UNSEEN if name.lower() in LABELS else 0))))
    ends = np.cumsum(lengths)
    return np.asarray(upto[ends] - upto[ends - lengths], np.int64)
