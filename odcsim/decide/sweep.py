"""The same comparison at several values of one input."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from odcsim.decide.comparison import Comparison, compare
from odcsim.decide.setting import Setting
from odcsim.errors import InputError
from odcsim.support.checked import expect
from odcsim.support.numbers import TOKENS, human

FACTORS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)


def limits(longest: int, text: str = "") -> tuple[int, ...]:
    """Microbatch limits to try: those in the text, or multiples of the longest sample, close together where it is low,
    since the first few percent of room decide most."""
    if not text:
        return tuple(round(longest * factor) for factor in FACTORS)
    numbers = []
    for word in text.split(","):
        number = human(word, TOKENS)
        if number is None or number.denominator > 1 or not longest <= number < 10**12:
            raise InputError(
                f"--sweep-max-tokens holds '{word}'", fix=f"give whole numbers from the longest sample, {longest}"
            )
        numbers.append(int(number))
    return tuple(numbers)


def sweep_max_tokens(
    setting: Setting,
    points: Sequence[int],
    *,
    memory_limit: float | None = None,
    advance: Callable[[], None] = lambda: None,
    **terms: Any,
) -> tuple[tuple[int, Comparison], ...]:
    """How the comparison moves with the microbatch limit: a setting may sit on a cliff. `terms`: as of `compare`."""
    expect(setting, Setting, "question", "odcsim.ask")
    comparisons = []
    for point in points:
        at = replace(setting, max_tokens=point)
        comparisons.append((point, compare(at, memory_limit=memory_limit, **terms)))
        advance()
    return tuple(comparisons)
