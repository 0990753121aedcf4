"""The figures of rows as people read them: one text for each, wherever a table of rows is shown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from odcsim.results import capacity
from odcsim.results.capacity import Sized
from odcsim.results.summary import Row
from odcsim.support.numbers import Text, dollars, duration, from_to, hours, ratio

FEW = ("balancer", "sync", "idle", "gpu_hours", "speedup", "over best", "memory")  # by which somebody decides
PRICED = ("balancer", "sync", "idle", "dollars", "speedup", "over best", "memory")
WIDE = (
    "balancer", "sync", "idle", "waiting", "transfers", "other", "samples", "gpu_hours", "gpu_hours between", "dollars",
    "dollars between", "mfu", "speedup", "speedup between", "over best", "over full", "memory", "most of memory",
)  # fmt: skip
PAGE = (
    "row", "speedup", "speedup between", "over best", "over full", "idle", "seconds", "gpu_hours", "gpu_hours between",
    "dollars", "dollars between", "mfu", "samples", "tokens", "memory", "most of memory",
)  # fmt: skip
DRAGGED = ("row", "idle", "gpu_hours", "dollars", "speedup", "over best", "memory")
LIMITS = ("row", "speedup", "seconds", "gpu_hours", "gpu_hours between", "dollars", "dollars between", "memory",
          "most of memory")  # fmt: skip
OFFERED = ("time", "time between", "gpu_hours", "gpu_hours between", "dollars", "dollars between", "idle", "mfu",
           "memory")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """Its head, and the text of a row: empty where there is nothing to say."""

    head: str
    text: Callable[[Row], str]


def table(rows: Sequence[Row], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells, without the columns in which no row says anything."""
    every = [(COLUMNS[name].head, [COLUMNS[name].text(row) for row in rows]) for name in names]
    told = [(head, texts) for head, texts in every if any(texts)]
    return [head for head, _ in told], [list(cells) for cells in zip(*(texts for _, texts in told), strict=True)]


def best_first(rows: Iterable[Row]) -> list[Row]:
    """A trainer's own before the others; those that are tight after those that fit, and those that do not fit last."""
    every = list(rows)
    asked = any(row.made for row in every)
    return sorted(every, key=lambda row: (asked and row.made is None, capacity.level(row), row.makespan_seconds))


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


def _ratio(value: float | None) -> str:
    return "" if value is None else ratio(value)


def _between(row: Row, low: float | None, high: float | None, text: Text) -> str:
    return "" if row.certain or low is None or high is None else from_to(low, high, text, " - ")


def _chances(row: Row) -> str:
    if row.speedup_low is None or row.speedup_high is None:
        return ""
    return from_to(row.speedup_low, row.speedup_high, ratio, " - ")


def _clock(seconds: float, more: int = 0) -> str:
    """Hours and minutes, or minutes and seconds, as a clock has them, where there are any."""
    if more or seconds < 99.95:
        return duration(seconds, more)
    if (whole := round(seconds)) < 600:
        return f"{whole // 60}:{whole % 60:02d} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 60 else f"{minutes} min"


def _waiting(row: Row) -> float:
    return row.idle_parts["wait_inside"] + row.idle_parts["wait_end"]


COLUMNS = {
    "row": Column("sync + balancer", lambda r: r.name),
    "balancer": Column("balancer", lambda r: r.balancer),
    "sync": Column("sync", lambda r: r.sync),
    "idle": Column("idle", lambda r: _share(r.idle)),
    "waiting": Column("waiting", lambda r: _share(_waiting(r))),
    "transfers": Column("transfers", lambda r: _share(r.idle_parts["gather"] + r.idle_parts["push"])),
    "other": Column("other", lambda r: _share(r.idle_parts["other"])),
    "samples": Column("samples/s/GPU", lambda r: f"{r.samples_per_second_per_device:.3g}"),
    "tokens": Column("tokens/s", lambda r: f"{r.tokens_per_second:,.0f}"),
    "seconds": Column("seconds", lambda r: f"{r.makespan_seconds:,.1f}"),
    "time": Column("time", lambda r: duration(r.makespan_seconds)),
    "time between": Column("90 %", lambda r: _between(r, r.model_low, r.model_high, _clock)),
    "gpu_hours": Column("GPU-hours", lambda r: hours(r.gpu_hours)),
    "gpu_hours between": Column("90 %", lambda r: _between(r, r.gpu_hours_low, r.gpu_hours_high, hours)),
    "dollars": Column("dollars", lambda r: "" if r.dollars is None else dollars(r.dollars)),
    "dollars between": Column("90 %", lambda r: _between(r, r.dollars_low, r.dollars_high, dollars)),
    "mfu": Column("MFU", lambda r: _share(r.mfu)),
    "speedup": Column("speedup", lambda r: _ratio(r.speedup)),
    "speedup between": Column("95 %", _chances),
    "over best": Column("over best collective", lambda r: _ratio(r.speedup_best_collective)),
    "over full": Column("over full sharding", lambda r: _ratio(r.over_full)),
    "memory": Column("memory", memory),
    "most of memory": Column("most of it", lambda r: r.largest_term if r.memory_fits is False else ""),
}
