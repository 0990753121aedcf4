"""Time, GPU-hours and dollars of a row or a whole run, as finely as their intervals are known."""

from odcsim.results.summary import Row
from odcsim.support.numbers import duration, finer, from_to, hours, money


def spent_by(whole: Row) -> str:
    """Time and dollars of a run, as finely as its interval is told."""
    time = duration(whole.makespan_seconds, finer(whole.model_low, whole.model_high, duration))
    if whole.dollars is None:
        return time
    return f"{time} and {money(whole.dollars, finer(whole.dollars_low or 0.0, whole.dollars_high or 0.0, money))}"


def paid_by(whole: Row) -> str:
    """The same, with GPU-hours where there is no price."""
    return spent_by(whole) + (f" and {hours(whole.gpu_hours)} GPU-hours" if whole.dollars is None else "")


def interval_of(whole: Row) -> str:
    words = f"90 % interval {from_to(whole.model_low, whole.model_high, duration)}"
    if whole.dollars_low is None or whole.dollars_high is None:
        return words
    return f"{words}, {from_to(whole.dollars_low, whole.dollars_high, money)}"


def spent_hours(row: Row) -> str:
    """GPU-hours of a row, with their interval where there is one."""
    more = finer(row.gpu_hours_low, row.gpu_hours_high, hours)
    return f"{hours(row.gpu_hours, more)} GPU-hours{hours_between(row)}"


def hours_between(row: Row) -> str:
    return "" if row.certain else f" ({from_to(row.gpu_hours_low, row.gpu_hours_high, hours)})"


def spent_dollars(row: Row) -> str:
    if row.dollars is None:
        return ""
    return f"{money(row.dollars, finer(row.dollars_low or 0.0, row.dollars_high or 0.0, money))}{dollars_between(row)}"


def dollars_between(row: Row) -> str:
    if row.certain or row.dollars_low is None or row.dollars_high is None:
        return ""
    return f" ({from_to(row.dollars_low, row.dollars_high, money)})"
