"""Seeded shapes written in one line, such as `lognormal:median=700,sigma=0.9,max=4096,spike=0.1`."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError, nearest
from odcsim.support.numbers import SIZES, TOKENS, human
from odcsim.trace import MAX_LENGTH, Trace

SAMPLES = 10_000  # drawn where nobody says how many
MOST_SAMPLES = 20_000_000  # some 54 bytes each until statistics are told of them
MOST_SEED = 2**53
Values = dict[str, float]
Draw = Callable[[Values, int, np.random.Generator], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape: the keys it must have, those it may have, and how samples are drawn."""

    needs: tuple[str, ...]
    may: tuple[str, ...]
    draw: Draw


def kind_of(text: str) -> str | None:
    """The kind of spec that `text` begins with, if it is one."""
    head = text.partition(":")[0].strip().lower()
    return head if head in KINDS else None


def load(text: str, kind: str, *, samples: int | None = None, seed: int | None = None) -> Trace:
    """Draw the spec. `samples` and `seed`, where given, win over those in the text."""
    values = _parse(text, kind)
    count = samples if samples is not None else int(values.pop("samples", SAMPLES))
    start = seed if seed is not None else int(values.pop("seed", 0))
    in_range(text, "samples", count, 1, MOST_SAMPLES)
    in_range(text, "seed", start, 0, MOST_SEED)
    low, high = values.get("min", 1.0), values.get("max", float(MAX_LENGTH))
    if low > high:
        raise InputError(f"min={low:g} is above max={high:g}", where=text, fix="swap them")
    drawn = KINDS[kind].draw(values, count, np.random.default_rng(start))
    return Trace(
        text, np.clip(np.rint(drawn), low, high).astype(np.int64), origin=f"shape, not data: drawn, seed {start}"
    )


def _lognormal(v: Values, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Clipped at max, which puts its own share there; `spike` of all samples are set to max besides."""
    with np.errstate(over="ignore"):
        drawn = v["median"] * np.exp(v["sigma"] * rng.standard_normal(count))
    drawn[rng.permutation(count)[: round(v.get("spike", 0.0) * count)]] = v.get("max", MAX_LENGTH)
    return np.asarray(drawn, np.float64)


def _uniform(v: Values, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return rng.integers(int(v["min"]), int(v["max"]) + 1, count).astype(np.float64)


def _fixed(v: Values, count: int, _rng: np.random.Generator) -> NDArray[np.float64]:
    return np.full(count, v["length"])


def _exponential(v: Values, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return exponential_quantiles(rng.random(count), v["mean"], v["min"], v["max"])


def exponential_quantiles(q: NDArray[np.float64], mean: float, low: float, high: float) -> NDArray[np.float64]:
    """Quantiles of the exponential cut to [low, high] with this mean; it rises where the mean is past the middle."""
    from scipy.optimize import brentq

    target = (mean - low) / (high - low)
    if target > 0.5:
        return low + high - exponential_quantiles(1 - q, low + high - mean, low, high)
    if target > 0.5 - 1e-6:
        return low + (high - low) * q
    rate = brentq(lambda x: 1 / x - np.exp(-x) / -np.expm1(-x) - target, 1e-6, 2 / target)
    return np.asarray(low - np.log1p(q * np.expm1(-rate)) / rate * (high - low), np.float64)


KINDS = {
    "lognormal": Shape(("median", "sigma"), ("min", "max", "spike"), _lognormal),
    "uniform": Shape(("min", "max"), (), _uniform),
    "fixed": Shape(("length",), (), _fixed),
    "exponential": Shape(("mean", "min", "max"), (), _exponential),
}
_RANGES: dict[str, tuple[float, float]] = {  # of what is no length in tokens
    "sigma": (0, 10), "spike": (0, 1), "seed": (0, MOST_SEED), "samples": (1, MOST_SAMPLES)
}  # fmt: skip


def _parse(text: str, kind: str) -> Values:
    needs, known = KINDS[kind].needs, [*KINDS[kind].needs, *KINDS[kind].may, "samples", "seed"]
    values: Values = {}
    for part in filter(None, (p.strip() for p in text.partition(":")[2].split(","))):
        key, _, value = (p.strip() for p in part.partition("="))
        if key not in known:
            raise InputError(f"{kind} has no key '{key}'", where=text, fix=nearest(key, known))
        if key in values:
            raise InputError(f"{key} is given twice", where=text, fix="keep one")
        values[key] = _value(text, key, value)
    missing = [key for key in needs if key not in values] or (
        ["max"] if "spike" in values and "max" not in values else []
    )
    if missing:
        raise InputError(f"{kind} needs {', '.join(missing)}", where=text, fix=f"such as {kind}:{_EXAMPLES[kind]}")
    if kind == "exponential" and not values["min"] < values["mean"] < values["max"]:
        raise InputError(f"mean={values['mean']:g} is not between min and max", where=text, fix="move it between them")
    return values


_EXAMPLES = {
    "lognormal": "median=700,sigma=0.9,max=4096,spike=0.1",
    "uniform": "min=100,max=4096",
    "fixed": "length=4096",
    "exponential": "mean=16500,min=5500,max=65536",
}


def _value(text: str, key: str, value: str) -> float:
    try:
        number = float(human(value, SIZES if key in _RANGES else TOKENS) or value)
    except ValueError:
        raise InputError(f"{key}='{value}' is not a number", where=text, fix=f"write {key}=NUMBER") from None
    low, high = _RANGES.get(key, (1, MAX_LENGTH))
    in_range(text, key, number, low, high)
    if key not in ("sigma", "spike", "mean", "median") and number != int(number):
        raise InputError(f"{key}={value} is not a whole number", where=text, fix="round it")
    return number


def in_range(text: str, key: str, number: float, low: float, high: float) -> None:
    if not low <= number <= high:
        raise InputError(f"{key}={number:g} is out of range", where=text, fix=f"it goes from {low:g} to {high:.12g}")
