"""What was found in a run as tables of text, which a terminal, a notebook and a page show alike."""

from collections.abc import Callable, Sequence

from odcsim.decide.diagnosis.found import PARTS, Breakdown, Changes, LateMicrobatch, RankFound
from odcsim.decide.diagnosis.words import SLOW, dollars
from odcsim.support.numbers import from_to, ratio, unit

Table = tuple[Sequence[str], list[tuple[str, ...]]]  # heads, and a row of cells for each

RANKS, LATE = 8, 5  # that are shown
SHOWN = 0.0005  # of a step: smaller parts are left out
FELT = 0.01  # of a step: microbatches that caused less are left out
APART = 0.02  # of a step, by which ranks differ


def parts(found: Breakdown) -> Table:
    """Every part that there is, and the step that they sum to."""
    told, several = unit(found.seconds), any(len(seconds) > 1 for seconds in found.by_step.values())
    rows = [
        (PARTS[part.name], told(part.seconds), _share(part.share), between(part.low, part.high) if several else "-")
        for part in found.parts
        if part.share >= SHOWN
    ]
    return ("of a step", "seconds", "share", "90 % interval"), [*rows, ("the step", told(found.seconds), "100 %", "")]


def ranks(found: Breakdown, most: int = RANKS) -> Table:
    """The worst first; none where they do not differ."""
    head = ("rank", "compute", "waiting", "equal work takes", "waiting caused")
    if not differ(found.ranks):
        return head, []
    told = unit(found.seconds)
    rows: list[tuple[str, ...]] = [
        (str(one.rank), _share(one.compute), _share(one.waiting), f"{one.pace:.2f} times", told(one.caused))
        for one in worst(found)[:most]
    ]
    return head, rows


def worst(found: Breakdown) -> list[RankFound]:
    """Whom the others waited for most, first."""
    return sorted(found.ranks, key=lambda one: (-one.caused, -one.pace, one.rank))


def differ(every: Sequence[RankFound]) -> bool:
    shares = [[one.compute for one in every], [one.waiting for one in every]]
    return len(every) > 1 and (
        any(max(of) - min(of) >= APART for of in shares) or any(one.pace >= SLOW for one in every)
    )


def late(found: Breakdown, most: int = LATE) -> Table:
    head = ("step", "rank", "microbatch", "tokens", "waiting caused", "why")
    told = unit(found.seconds)
    some = [one for one in found.late[:most] if one.seconds >= FELT * found.seconds]
    return head, [_late(one, told) for one in some]


def _late(one: LateMicrobatch, told: Callable[[float], str]) -> tuple[str, ...]:
    which = "-" if one.microbatch < 0 else str(one.microbatch)
    tokens = f"{one.tokens:,}" if one.tokens else "-"
    return str(one.step), str(one.rank), which, tokens, told(one.seconds), PARTS[one.why].removeprefix("waiting: ")


def ways(changes: Changes) -> Table:
    """In order of effort. Dollars that a day saves, where a price is known."""
    priced = any(one.dollars_a_day is not None for one in changes.ways)
    told = unit(max((one.seconds for one in changes.ways), default=1.0))
    head = ("way", "effort", "gain", "90 % interval", "a step", *(("saved a day",) if priced else ()))
    return head, [
        (
            one.way + ("" if one.fits is not False else " (does not fit memory)"),
            one.effort,
            f"{one.gain:.2f}",
            from_to(one.low, one.high, ratio) if one.low < one.high else "-",
            told(one.seconds),
            *((_paid(one.dollars_a_day),) if priced else ()),
        )
        for one in changes.ways
    ]


def _paid(amount: float | None) -> str:
    return "-" if amount is None else dollars(amount)


def between(low: float, high: float) -> str:
    return f"{from_to(low, high, lambda share, more: f'{100 * share:.{more}f}')} %"


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"
