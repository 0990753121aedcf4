"""Seconds of steps by their tokens, as a straight line, and whether steps differ enough to tell it."""

import math
from dataclasses import dataclass

from odcsim.fitting.robust import EXACT
from odcsim.timeline import Floats

NINETY = 1.645  # standard errors on either side that hold 90 %
KNOWN = 0.1  # of itself, within which a slope has to be known
FEWEST = 20  # steps that can tell one
CLEAR = 2  # times what the rise may be off by, beyond which something is beside it: once in a thousand by chance


@dataclass(frozen=True, slots=True)
class Slope:
    """A line through the means."""

    seconds: float
    tokens: float
    rise: float  # seconds for a token more
    error: float  # its standard error

    @property
    def off(self) -> float:
        """How far the rise may be off, as a fraction of itself."""
        return NINETY * self.error / self.rise if self.rise > 0 else math.inf

    def at(self, tokens: Floats) -> Floats:
        """Seconds of steps of so many tokens: by the line, as far as it is told, and never less than nothing."""
        mean = self.seconds / self.tokens
        rise = min(self.rise, mean) if self.off < 1 else mean
        seconds: Floats = max(self.seconds - rise * self.tokens, 0.0) + rise * tokens
        return seconds


def slope(seconds: Floats, tokens: Floats) -> Slope:
    mean, middle = float(seconds.mean()), float(tokens.mean())
    spread = float(((tokens - middle) ** 2).sum())
    if len(seconds) < 3 or spread <= (EXACT * middle) ** 2 * len(seconds):
        return Slope(mean, middle, 0.0, math.inf)
    rise = float(((tokens - middle) * (seconds - mean)).sum()) / spread
    left = seconds - mean - rise * (tokens - middle)
    return Slope(mean, middle, rise, math.sqrt(float((left**2).sum()) / (len(seconds) - 2) / spread))


def apart(measured: Slope, said: Slope, steps: int) -> tuple[float, float] | None:
    """How many times as long as said a token takes, and the seconds of a step that do not depend on tokens. None where
    noise could say as much: the rise is hardly known, or those seconds are not clearly more than it may be off."""
    off = math.hypot(measured.off, said.off)
    if steps < FEWEST or off > KNOWN:
        return None
    ratio = measured.rise / said.rise
    by_tokens = ratio * (said.seconds + said.rise * (measured.tokens - said.tokens))
    beside = measured.seconds - by_tokens
    return (ratio, beside) if beside > CLEAR * off * by_tokens else None
