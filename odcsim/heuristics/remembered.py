"""Splits of small minibatches that are asked for again: by another balancer, at another limit, for another network."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

MANY, LARGEST = 256, 2048  # splits that are remembered, of so many samples at most: some tens of megabytes

P = ParamSpec("P")
R = TypeVar("R")


def remembered(split: Callable[P, R]) -> Callable[P, R]:
    """Of a function of lists and numbers, and of nothing else. What it gives is for reading alone."""

    @lru_cache(maxsize=MANY)
    def again(*known: object) -> R:
        return split(*(list(k) if isinstance(k, tuple) else k for k in known))  # type: ignore[call-arg, arg-type]

    @wraps(split)
    def asked(*given: P.args, **named: P.kwargs) -> R:
        lists = [g for g in given if isinstance(g, list)]
        if named or any(len(one) > LARGEST for one in lists):
            return split(*given, **named)
        return again(*(tuple(g) if isinstance(g, list) else g for g in given))

    return asked
