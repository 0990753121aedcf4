"""Tables of docs/published.md and docs/published-runs.md: errors and coverage of groups of runs, and averages over
who published them."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from page_table import table
from published_widths import kinds_of

if TYPE_CHECKING:
    from published import Predicted, Study

Key = Callable[["Predicted"], str]
FIGURES = ("median", "90th percentile", "bias", "inside", "high / low")
# What a figure is a mean over: its own in each group. Of runs there is one group.
OVER: tuple[tuple[str, Key], ...] = (
    ("runs", lambda _: ""),
    ("sources", lambda p: p.cell.source),
    ("publishers", lambda p: p.cell.publisher),
)
BY: tuple[tuple[str, Key], ...] = (
    ("source", lambda p: p.cell.source),
    ("GPU", lambda p: p.cell.gpu.name),
    ("parameters", lambda p: p.cell.size),
    ("sequence length", lambda p: p.cell.length),
    ("devices", lambda p: _devices(p.cell.cluster.gpus)),
)


def _devices(count: int) -> str:
    return next(name for name, most in (("one", 1), ("to 8", 8), ("9 to 64", 64), ("above 64", 10**6)) if count <= most)


def grouped(found: Iterable["Predicted"], key: Key) -> dict[str, list["Predicted"]]:
    groups: dict[str, list[Predicted]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    return groups


def figures(some: Sequence["Predicted"]) -> tuple[float, ...]:
    """Of absolute errors, the signed median, the share inside the interval and the mean of its width."""
    errors = np.array([one.error for one in some])
    sizes, inside = np.abs(errors), np.mean([one.inside for one in some])
    width = np.exp(np.mean(np.log([one.width for one in some])))
    return tuple(map(float, (np.median(sizes), np.quantile(sizes, 0.9), np.median(errors), inside, width)))


def averaged(found: Sequence["Predicted"], key: Key) -> tuple[float, ...]:
    """The mean over groups of what each has for itself."""
    return tuple(np.mean([figures(some) for some in grouped(found, key).values()], axis=0).tolist())


def _told(of: Sequence[float]) -> tuple[str, ...]:
    median, p90, bias, inside, width = of
    return f"{median:.1%}", f"{p90:.1%}", f"{bias:+.1%}", f"{inside:.0%}", f"{width:.2f}"


def totals(found: "Study") -> str:
    ways = (("known without any run", found.priors), ("its publisher left out", found.blind))
    ways = (*ways, ("its publisher in the fit", found.known))
    rows = [(way, name, *_told(averaged(stated(some), key))) for way, some in ways for name, key in OVER]
    told = [one for one in found.blind if not one.cell.guessed]
    rows += [("its publisher left out", "sources, those of limited power too", *_told(averaged(told, OVER[1][1])))]
    return table(("predicted by what is learnt", "averaged over", *FIGURES), rows, figures=True)


def stated(found: Sequence["Predicted"]) -> list["Predicted"]:
    """Those of which their source says all."""
    return [one for one in found if one.cell.stated]


def groups(found: Sequence["Predicted"], name: str, key: Key) -> str:
    held = sorted(grouped(found, key).items(), key=lambda item: -len(item[1]))
    rows = [(of, str(len(some)), *_told(figures(some))) for of, some in held]
    return table((name, "runs", *FIGURES), rows, figures=True)


def kinds(found: Sequence["Predicted"]) -> str:
    """Each run among all of its kinds, and plain ones by themselves; averaged over their sources."""
    named = sorted({kind for one in found for kind in kinds_of(one.cell)})
    sets = {name: [one for one in found if name in kinds_of(one.cell)] for name in named}
    sets = {USUAL: [one for one in found if len(kinds_of(one.cell)) == 1], **sets}
    rows = [_kind(*item) for item in sets.items()]
    return table(("kind", "publishers", "sources", "runs", *FIGURES), rows, figures=True)


def _kind(name: str, some: Sequence["Predicted"]) -> tuple[str, ...]:
    counts = (len({key(one) for one in some}) for _, key in reversed(OVER[1:]))
    return (name, *map(str, counts), str(len(some)), *_told(averaged(some, OVER[1][1])))


USUAL = "no kind but its GPU's"


def rarest(found: Sequence["Predicted"]) -> str:
    """By how many other publishers showed how far the rarest of a run's kinds is off; averaged over sources."""
    held = sorted(grouped(found, lambda one: _count(one.publishers)).items())
    rows = [(of, str(len(some)), *_told(averaged(some, OVER[1][1]))) for of, some in held]
    return table(("other publishers", "runs", *FIGURES), rows, figures=True)


def _count(publishers: int) -> str:
    return str(publishers) if publishers < MANY else f"{MANY} and more"


MANY = 4


def runs(found: Sequence["Predicted"]) -> str:
    head = ("source", "model", "where", "tokens", "how", "published", "predicted", "interval", "error")
    return table(head, (_run(one) for one in sorted(found, key=lambda one: -abs(one.error))))


def _run(p: "Predicted") -> tuple[str, ...]:
    c = p.cell
    where = f"{c.cluster.gpus} {c.gpu.name}"
    tokens = f"{c.microbatches} x {c.sequences} x {c.sequence:,}"
    interval = f"{p.low:.3g} to {p.high:.3g}{'' if p.inside else ' (missed)'}"
    times = (f"{c.seconds:.3g} s", f"{p.seconds:.3g} s", interval, f"{p.error:+.1%}")
    return (c.source, c.model.name, where, tokens, c.how, *times)
