"""Splits of minibatches that are asked for again: by another balancer, at another limit, for another network."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from odcsim.support import remembered as support

MOST, LARGEST = 2**18, 2**17  # samples of all splits that are remembered, some tens of megabytes, and of one of them

P = ParamSpec("P")
R = TypeVar("R")


def remembered(split: Callable[P, R]) -> Callable[P, R]:
    """Of a function of arrays and numbers, the first one an array with an entry for each sample, and of nothing else.
    What it gives is for reading alone."""
    kept = support.remembered(MOST, lambda _, *given: _samples(given), _key)(split)

    @wraps(split)
    def asked(*given: P.args, **named: P.kwargs) -> R:
        return split(*given, **named) if named or _samples(given) > LARGEST else kept(*given)  # type: ignore[call-arg]

    return asked


def _key(*given: object) -> tuple[Any, ...]:
    return tuple(g.tobytes() if isinstance(g, np.ndarray) else g for g in given)


def _samples(given: tuple[object, ...]) -> int:
    return len(given[0])  # type: ignore[arg-type]
