"""What links and controls say, which anybody may have written: it becomes a question, or a line that says why not."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from odcsim.errors import InputError
from odcsim.question import FIELDS
from odcsim.show.explore.asked import CONTROLS, LINKED, READ, SHARDED, SLIDERS, TEXTS, Asked, asked_of

STOPS: Mapping[str, Sequence[Any]] = {name: CONTROLS[name].stops for name in SLIDERS}
LETTERS = 4096  # of a name
DEAREST = 10**9  # dollars


def linked(search: Any) -> Asked:
    """What a link holds; what it says that nobody knows is refused by name."""
    kinds = {name: _kind(name) for name in LINKED}
    values: dict[str, Any] = {}
    for name, text in parse_qsl(_text("link", search or "?").removeprefix("?"), keep_blank_values=True):
        said = f"the link says {name:.40}={text:.80}"
        if name not in kinds:
            raise InputError(said, fix=f"it may say {', '.join(kinds)}")
        try:
            values[name] = kinds[name](text)
        except KeyError:
            raise InputError(said, fix="it may be True or False") from None
        except ArgumentTypeError as error:
            raise InputError(said, fix=str(error)) from None
        if name in STOPS and values[name] not in STOPS[name]:
            stops = ", ".join(f"{stop}" if isinstance(stop, str) else f"{stop:g}" for stop in STOPS[name])
            raise InputError(said, fix=f"it may be {stops}")
    return _checked({SHARDED: "full"} | values if values else values)


def _kind(name: str) -> Callable[[str], Any]:
    about = CONTROLS.get(name) or FIELDS[name]
    if about.type is bool:
        return {"True": True, "False": False}.__getitem__
    return str if about.type is str else about.from_text


def given(values: Mapping[str, Any], before: Asked | None = None) -> Asked:
    """What the controls say: texts, a price, and of each slider the number of its stop. Lengths are read as `before`,
    where they are the same."""
    found = dict(values) | ({} if before is None else {"profile": before.profile})
    if before is not None and before.trace == values["trace"]:
        found |= {name: getattr(before, name) for name in READ}
    for name, stops in STOPS.items():
        place = values[name]
        if isinstance(place, bool) or not isinstance(place, int | float | str) or f"{place}" not in _places(stops):
            raise InputError(f"{name} stands at {place!r:.40}", fix=f"its stops go from 0 to {len(stops) - 1}")
        found[name] = stops[int(float(place))]
    return _checked(found)


def _places(stops: Sequence[Any]) -> set[str]:
    """A browser may send a number or its text."""
    return {text for place in range(len(stops)) for text in (f"{place}", f"{float(place)}")}


def _checked(values: Mapping[str, Any]) -> Asked:
    price = values.get("price", 0)
    if price is None:
        raise InputError("there is no price", fix="give dollars per GPU-hour, or 0")
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price <= DEAREST:
        raise InputError(f"the price is {price!r:.40}", fix="give dollars per GPU-hour, or 0")
    texts = {name: _text(name, text) for name, text in values.items() if name in TEXTS or isinstance(text, str)}
    return asked_of(dict(values) | texts)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"there is no {name}", fix="give a name or a file")
    if len(value) > LETTERS:
        raise InputError(f"the {name} has {len(value):,} letters", fix="give the name of something that is there")
    return value
