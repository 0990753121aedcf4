"""Numbers as people write and say them."""

import argparse
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

SIZES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "ki": 2**10, "mi": 2**20}
# A context of 32k is 32,768 tokens wherever one is cut: a limit of 32,000 would drop what was cut at 32k.
TOKENS = {"": 1, "k": 2**10, "m": 2**20, "ki": 2**10, "mi": 2**20}
TIMES = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400}
_NUMBER = re.compile(r"(\d{1,3}(?:,\d{3})+|\d{1,12}(?:\.\d{1,20})?) ?([a-z]*)", re.ASCII)
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", re.ASCII)


def human(text: str, units: Mapping[str, int] = SIZES) -> Fraction | None:
    """What people write for a number, exactly: 4096, 65,536, 16k, 1.5M; in `TIMES` 90, 90s, 30min, 12h. Else None."""
    match = _NUMBER.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        return None
    return Fraction(match[1].replace(",", "")) * units[match[2]]


# What people read, with so many more digits as its second argument asks for.
Text = Callable[[float, int], str]
DIME = 0.0995  # dollars, from which on cents tell enough


def duration(seconds: float, more: int = 0) -> str:
    """A time as people say it: 42 s, 2 min 14 s, 12 min, 4 h 05 min, 123 h 00 min; more exactly in seconds."""
    if seconds < 99.95:
        return f"{seconds:.{3 + more}g} s"
    if more:
        return f"{seconds:,.{more - 1}f} s"
    if (whole := round(seconds)) < 600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02d} min"


def hours(value: float, more: int = 0) -> str:
    """Three digits that count, and none behind a thousand."""
    return _digits(value, 3 + more) if value < 999.5 else f"{value:,.{more}f}"


def dollars(value: float, more: int = 0) -> str:
    """Cents; of a few cents two digits that count, and of a thousand dollars none."""
    if 0 < value < DIME:
        return _digits(value, 2 + more)
    return f"{value:,.{more}f}" if value >= 999.995 else f"{value:,.{2 + more}f}"


def _digits(value: float, count: int) -> str:
    """So many that count, without an exponent however small it is."""
    text = f"{value:.{count}g}"
    return f"{float(text):.{count - math.floor(math.log10(value)) - 1}f}" if "e" in text else text


def money(value: float, more: int = 0) -> str:
    return f"${dollars(value, more)}"


def ratio(value: float, more: int = 0) -> str:
    return f"{value:.{2 + more}f}"


def finer(low: float, high: float, text: Text) -> int:
    """How many more digits than usual show that the ends of an interval differ: none where hardly any do."""
    return next((more for more in range(4) if text(low, more) != text(high, more)), 0)


def from_to(low: float, high: float, text: Text, between: str = " to ") -> str:
    """An interval whose ends never read alike: its one figure where they are."""
    more = finer(low, high, text)
    ends = text(low, more), text(high, more)
    return between.join(dict.fromkeys(ends))


def unit(whole: float) -> Callable[[float], str]:
    """How to write seconds beside those of a whole: in its unit, with its decimals."""
    times, name = (1.0, "s") if whole >= 1 else (1e3, "ms")
    decimals = max(0, 3 - len(f"{times * whole:.0f}"))
    return lambda seconds: f"{times * seconds:,.{decimals}f} {name}"


def counted(count: int, noun: str) -> str:
    """1 update, 4 updates, 2 microbatches."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def number(text: str) -> float:
    """Also with commas between thousands, as spreadsheets write it; ValueError where it is none."""
    text = text.strip()
    return float(text.replace(",", "") if THOUSANDS.fullmatch(text) else text)


def whole(text: str, units: Mapping[str, int] = SIZES) -> int:
    """A whole number from 1, as people write it."""
    value = human(text, units)
    if value is None or value.denominator > 1 or not 1 <= value < 10**12:
        such = f"such as 4096 or 16k ({16 * units['k']:,})"
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1, {such}")
    return int(value)


def seconds(text: str) -> float:
    """A time from 0: 90, 90s, 30min, 12h."""
    value = human(text, TIMES)
    if value is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time, such as 90, 3min or 12h")
    return float(value)


def listed(text: str) -> tuple[str, ...]:
    """Words with commas between them."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def amount(text: str, units: Mapping[str, int] = SIZES) -> float:
    """A number from 0, as a price ($2.5) or as a share (3%), too."""
    plain = text.strip().removeprefix("$")
    try:
        value = float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError:
        value = float(human(plain, units) or math.nan)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0")
    return value
