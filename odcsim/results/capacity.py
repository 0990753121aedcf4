"""Whether a device's estimated memory fits a GPU, is tight, or does not fit: the one rule of every door.

Estimates are 5 % off at the median (docs/published.md), and allocators stall where nearly all is full. So what fills
more than 92 % of a GPU is tight: it may fit. It is shown, and never chosen over what fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

FILLED = 0.92
FITS, TIGHT, OVER = range(3)


class Sized(Protocol):
    """What memory is told of. `memory_fits` is None where nobody knows what a GPU has."""

    @property
    def memory_bytes(self) -> float | None: ...
    @property
    def memory_fits(self) -> bool | None: ...
    @property
    def memory_limit(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of a device, and what a GPU has."""

    memory_bytes: float
    memory_limit: float | None

    @property
    def memory_fits(self) -> bool | None:
        return None if self.memory_limit is None else self.memory_bytes <= self.memory_limit


Each = TypeVar("Each", bound=Sized)


def filled(limit: float) -> float:
    """The bytes of a GPU up to which an estimate fits."""
    return FILLED * limit


def level(one: Sized) -> int:
    """`FITS`, also where nobody knows; `TIGHT`; or `OVER`."""
    if not one.memory_fits or one.memory_limit is None or one.memory_bytes is None:
        return OVER if one.memory_fits is False else FITS
    return TIGHT if one.memory_bytes > filled(one.memory_limit) else FITS


def tight(one: Sized) -> bool:
    return level(one) == TIGHT


def roomiest(every: Sequence[Each]) -> list[Each]:
    """Those that fit; where none does, those that are tight; where not even those are, all."""
    best = min(map(level, every), default=FITS)
    return [one for one in every if level(one) == best]


def text(one: Sized) -> str:
    """`78 of 86 GB`, or `83 of 86 GB: tight`."""
    return f"{size(one)}{': tight' if tight(one) else ''}"


def size(one: Sized) -> str:
    """With what a GPU has where that is known, and with a digit more where both would read alike."""
    used, limit = (one.memory_bytes or 0.0) / 1e9, (one.memory_limit or 0.0) / 1e9
    form = ".1f" if round(used) == round(limit) else ".0f"
    return f"{used:{form}} of {limit:{form}} GB" if limit else f"{used:.0f} GB"
