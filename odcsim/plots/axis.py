"""An axis that is as long as what lies on it: what is read beside it may be farther out, and is told in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ROOM = 0.08  # of the axis, left free at each end
NEAR = 1.5  # times the ends: a mark within lengthens the axis, and one beyond is not on it
FEW = 3  # ticks of a logarithmic axis, at least


@dataclass(frozen=True, slots=True)
class Axis:
    """From end to end, by factors unless something on it is nothing."""

    low: float
    high: float

    @property
    def by_factors(self) -> bool:
        return self.low > 0

    def at(self, value: float) -> float:
        """Where that is: 0 at the low end, 1 at the high one."""
        low, high, here = (self._moved(x) for x in (self.low, self.high, value))
        return (here - low) / (high - low)

    def _moved(self, value: float) -> float:
        return math.log10(value) if self.by_factors else value

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def ticks(self) -> list[float]:
        """1, 2, 5, 10, ... or even steps, where there would be few of those."""
        if self.by_factors:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            inside = [at for power in powers for at in _from(power) if self.holds(at)]
            if len(inside) >= FEW:
                return inside
        most = (self.high - self.low) / FEW
        step = max(at for at in _from(math.floor(math.log10(most))) if at <= most)
        return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]

    def shown(self) -> dict[str, Any]:
        """For plotly."""
        ticks = self.ticks
        return {
            "type": "log" if self.by_factors else "linear",
            "range": [self._moved(self.low), self._moved(self.high)],
            "tickvals": ticks,
            "ticktext": [f"{n:,.10g}" for n in ticks],
        }


def _from(power: int) -> list[float]:
    return [float(f"{digit}e{power}") for digit in (1, 2, 5)]


def axis(values: Sequence[float], mark: float | None = None) -> Axis:
    """Of these values, and of a mark where that is near."""
    low, high = min(values), max(values)
    if mark is not None and low / NEAR <= mark <= high * NEAR:
        low, high = min(low, mark), max(high, mark)
    if low <= 0:
        return Axis(0.0, (high or 1.0) * (1 + ROOM))
    room = max(high / low, 1.1) ** ROOM
    return Axis(low / room, high * room)
