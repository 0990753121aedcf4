"""An advice for who asks by names and paths: of a command line, or in Python."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from odcsim.decide.advice import offers
from odcsim.decide.advice.offers import Advice
from odcsim.decide.advice.wish import Wish
from odcsim.decide.asking import asked, read
from odcsim.decide.words import ADVISE, checked
from odcsim.errors import InputError
from odcsim.question import AMOUNT, COUNT, POSITIVE, Question
from odcsim.support.numbers import amount, listed, seconds, whole
from odcsim.trace import Trace

PRICES = "write h100=2.5,a100=1.3"
TIME = "give seconds, or a time such as 12h"
Prices = Mapping[str, float] | Sequence[str] | str | float | None


def advise(
    trace: Trace | str | os.PathLike[str] | ArrayLike,
    model: str,
    *,
    gpus: Sequence[str] | str,
    devices: Sequence[int] | int | str,
    global_batch: int,
    price: Prices = None,
    deadline: float | str | None = None,
    budget: float | None = None,
    **words: Any,
) -> Advice:
    """What to rent for a whole training run: each of `gpus` in each number of `devices`, at its best. `price`: of a
    GPU-hour, of all of them or by name, `{"h100": 2.5}`. `deadline`: seconds, or "12h". `budget`: dollars. `words`: the
    other fields of a question, `epochs=3`, and of its recipe, but for what is searched."""
    known = {"trace": trace, "model": model, "global_batch": checked("global_batch", global_batch, COUNT)}
    question = read(asked(ADVISE.words(known | words, ("gpus", "devices", "price", "deadline", "budget"))))
    return offers.advise(wished(question, gpus, devices, price, deadline, budget))


advise.__signature__ = ADVISE.signature(advise)  # type: ignore[attr-defined]


def wished(
    question: Question,
    gpus: Sequence[str] | str,
    devices: Sequence[int] | int | str,
    price: Prices = None,
    deadline: float | str | None = None,
    budget: float | str | None = None,
) -> Wish:
    """Of a question whose lengths are read."""
    kinds = _several("gpus", gpus, str, "give kinds to rent, such as h100,a100")
    counts = _several("devices", devices, whole, "give numbers of GPUs, such as 8,16")
    counts = tuple(checked("devices", count, COUNT) for count in counts)
    late = None if deadline is None else checked("deadline", _said("deadline", deadline, seconds, TIME), POSITIVE, TIME)
    most = None if budget is None else checked("budget", _said("budget", budget, amount, "give dollars"), AMOUNT)
    return Wish(question, kinds, counts, _prices(price, kinds), late, most)


def _several(name: str, given: Any, take: Callable[[str], Any], fix: str) -> tuple[Any, ...]:
    """Each once. One may stand by itself, and text has commas between them."""
    every = listed(given) if isinstance(given, str) else [given] if not hasattr(given, "__iter__") else list(given)
    if not every or (take is str and not all(isinstance(one, str) for one in every)):
        raise InputError(f"--{name} is {given!r:.40}", fix=fix)
    return tuple(dict.fromkeys(_said(name, one, take, fix) for one in every))


def _said(name: str, given: Any, take: Callable[[str], Any], fix: str) -> Any:
    """A value, or what people write for it."""
    if not isinstance(given, str):
        return given
    try:
        return take(given)
    except argparse.ArgumentTypeError as error:
        raise InputError(f"--{name} holds '{given:.40}': {error}", fix=fix) from None


def _prices(given: Prices, gpus: Sequence[str]) -> dict[str, float]:
    """By GPU: `h100=2.5,a100=1.3`, or one price for all."""
    if isinstance(given, Mapping):
        return {name: checked("price", _said("price", value, amount, PRICES), AMOUNT) for name, value in given.items()}
    if given is None or not isinstance(given, str | Sequence):
        return {} if given is None else dict.fromkeys(gpus, checked("price", given, AMOUNT))
    prices: dict[str, float] = {}
    words = listed(given) if isinstance(given, str) else given
    for word in words:
        name, equals, price = word.rpartition("=")
        try:
            value = amount(price)
        except argparse.ArgumentTypeError as error:
            raise InputError(f"--price holds '{word}': {error}", fix=PRICES) from None
        if not equals and len(words) > 1:
            raise InputError(f"--price holds '{word}' beside others", fix=PRICES)
        prices |= {name: value} if equals else dict.fromkeys(gpus, value)
    return prices
