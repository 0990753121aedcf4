"""Columns of tables of rows: their heads, and the text of a row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from odcsim.catalog.estimates.memory import IN_WORDS
from odcsim.results import capacity
from odcsim.results.capacity import Sized
from odcsim.results.summary import Row
from odcsim.support.numbers import Text, dollars, duration, from_to, hours, ratio

FEW = ("balancer", "sync", "idle", "gpu_hours", "speedup", "over best", "memory")  # by which somebody decides
PRICED = ("balancer", "sync", "idle", "dollars", "speedup", "over best", "memory")
DRAGGED = ("row", "idle", "gpu_hours", "dollars", "speedup", "over best", "memory")
_SPENT = ("gpu_hours", "gpu_hours between", "dollars", "dollars between")
_OVER = ("speedup", "speedup between", "over best", "over full")
_MEMORY = ("memory", "most of memory")
WIDE = ("balancer", "sync", "idle", "waiting", "transfers", "other", "samples", *_SPENT, "mfu", *_OVER, *_MEMORY)
PAGE = ("row", *_OVER, "idle", "seconds", *_SPENT, "mfu", "samples", "tokens", *_MEMORY)
LIMITS = ("row", "speedup", "seconds", *_SPENT, *_MEMORY)
OFFERED = ("time", "time between", *_SPENT, "idle", "mfu", "memory")


@dataclass(frozen=True, slots=True)
class Column:
    """Its head, and the text of a row: empty where there is nothing to say."""

    head: str
    text: Callable[[Row], str]


def table(rows: Sequence[Row], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells, without the columns in which no row says anything."""
    every = [(COLUMNS[name].head, [COLUMNS[name].text(row) for row in rows]) for name in names]
    columns = [(head, texts) for head, texts in every if any(texts)]
    return [head for head, _ in columns], [list(cells) for cells in zip(*(texts for _, texts in columns), strict=True)]


def memory(one: Sized) -> str:
    """`83 GB: tight`, or `96 > 86 GB` where a GPU has less. Hardly wider than 12 characters, for 80 columns' sake."""
    used, limit = one.memory_bytes, one.memory_limit
    if used is None:
        return ""
    if one.memory_fits is not False or limit is None:
        return f"{used / 1e9:.0f} GB{': tight' if capacity.tight(one) else ''}"
    if round(used / 1e9) > round(limit / 1e9):
        return f"{used / 1e9:.0f} > {limit / 1e9:.0f} GB"
    return f"{used / 1e9:.1f}>{limit / 1e9:.1f} GB"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def most(row: Row) -> str:
    """What most of its memory is for."""
    return IN_WORDS.get(row.largest_term, "")


def _ratio(value: float | None) -> str:
    return "" if value is None else ratio(value)


def _between(row: Row, name: str, text: Text) -> str:
    """Nothing where seconds come without an interval; that of a speedup is its own."""
    low, high = getattr(row, f"{name}_low"), getattr(row, f"{name}_high")
    certain = row.certain and name != "speedup"
    return "" if certain or low is None or high is None else from_to(low, high, text, " - ")


def _clock(seconds: float, more: int = 0) -> str:
    """Hours and minutes, or minutes and seconds, as a clock has them, where there are any."""
    if more or seconds < 99.95:
        return duration(seconds, more)
    if (whole := round(seconds)) < 600:
        return f"{whole // 60}:{whole % 60:02d} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 60 else f"{minutes} min"


COLUMNS = {
    "row": Column("sync + balancer", lambda r: r.name),
    "balancer": Column("balancer", lambda r: r.balancer),
    "sync": Column("sync", lambda r: r.sync),
    "idle": Column("idle", lambda r: _share(r.idle)),
    "waiting": Column("waiting", lambda r: _share(r.idle_parts["wait_inside"] + r.idle_parts["wait_end"])),
    "transfers": Column("transfers", lambda r: _share(r.idle_parts["gather"] + r.idle_parts["push"])),
    "other": Column("other", lambda r: _share(r.idle_parts["other"])),
    "samples": Column("samples/s/GPU", lambda r: f"{r.samples_per_second_per_device:.3g}"),
    "tokens": Column("tokens/s", lambda r: f"{r.tokens_per_second:,.0f}"),
    "seconds": Column("seconds", lambda r: f"{r.makespan_seconds:,.1f}"),
    "time": Column("time", lambda r: duration(r.makespan_seconds)),
    "time between": Column("90 %", lambda r: _between(r, "model", _clock)),
    "gpu_hours": Column("GPU-hours", lambda r: hours(r.gpu_hours)),
    "gpu_hours between": Column("90 %", lambda r: _between(r, "gpu_hours", hours)),
    "dollars": Column("dollars", lambda r: "" if r.dollars is None else dollars(r.dollars)),
    "dollars between": Column("90 %", lambda r: _between(r, "dollars", dollars)),
    "mfu": Column("MFU", lambda r: _share(r.mfu)),
    "speedup": Column("speedup", lambda r: _ratio(r.speedup)),
    "speedup between": Column("95 %", lambda r: _between(r, "speedup", ratio)),
    "over best": Column("over best collective", lambda r: _ratio(r.speedup_best_collective)),
    "over full": Column("over full sharding", lambda r: _ratio(r.over_full)),
    "memory": Column("memory", memory),
    "most of memory": Column("most of it", lambda r: most(r) if r.memory_fits is False else ""),
}
