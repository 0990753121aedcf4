"""What the shapes of an operator's arguments tell."""

import math
from dataclasses import dataclass
from typing import Any

MANY = 2**62


@dataclass(frozen=True, slots=True)
class Embedded:
    """A look-up of tokens: when, in a table of how many rows, how many samples of how many tokens."""

    at: float
    rows: int
    samples: int
    tokens: int


def looked_up(at: float, dims: Any) -> Embedded | None:
    """Of the shapes of an embedding's table and of what is looked up in it."""
    if type(dims) is not list or len(dims) < 2 or not all(is_shape(shape) for shape in dims[:2]):
        return None
    *samples, tokens = dims[1]
    return Embedded(at, dims[0][0], min(math.prod(samples), MANY), tokens)


def is_shape(dims: Any) -> bool:
    return type(dims) is list and 0 < len(dims) < 9 and all(type(n) is int and 0 < n < 2**40 for n in dims)


def each(dims: Any) -> tuple[int, ...]:
    """Elements of each argument that has any."""
    return tuple(n for one in dims[:9] if (n := elements([one]))) if type(dims) is list else ()


def elements(dims: Any, deep: int = 3) -> int:
    """Of one argument or of a list of tensors."""
    if type(dims) is not list or not deep:
        return 0
    if is_shape(dims):
        return min(math.prod(dims), MANY)
    return min(sum(elements(one, deep - 1) for one in dims[:10_000]), MANY)
