"""Peaks of memory that published runs told, beside what the memory estimate says of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from page_table import table
from published_cells import Cell, sources
from published_words import OFF_PEAKS, PEAKS

from odcsim.catalog.estimates import memory

SMALL = -0.1  # an error below it is an estimate by which a run goes out of memory that was said to fit
SMALL_HEAD = "over 10 % too small"
# Who prints what PyTorch had allocated at most. All others print what it had reserved.
ALLOCATED = ("fms-acceleration", "ATorch")


@dataclass(frozen=True, slots=True)
class Peak:
    cell: Cell
    published: float  # bytes
    predicted: memory.Memory

    @property
    def estimated(self) -> float:
        """The same of the estimate: of what was allocated, or of what was reserved."""
        return self.predicted.tensors if self.allocated else self.predicted.allocated

    @property
    def allocated(self) -> bool:
        return self.cell.publisher in ALLOCATED

    @property
    def error(self) -> float:
        return self.estimated / self.published - 1

    def by(self, slack: float) -> float:
        """The error where an allocator loses this share of what comes and goes."""
        lost = 0.0 if self.allocated else self.predicted.slack * slack / memory.SLACK
        return (self.predicted.tensors + lost) / self.published - 1


def peaks(cells: Sequence[Cell]) -> list[Peak]:
    """The worst first."""
    told = [Peak(cell, cell.peak, _predicted(cell)) for cell in cells if cell.peak is not None]
    return sorted(told, key=lambda p: -abs(p.error))


def _predicted(c: Cell) -> memory.Memory:
    return memory.estimate(c.model, c.cluster.gpus, c.tokens, c.recipe, longest=c.sequence, microbatches=c.microbatches)


def section(found: Sequence[Peak]) -> str:
    shares = [without(found, name) for name in {p.cell.publisher for p in found if not p.allocated}]
    words = PEAKS.format(runs=len(found), least=min(shares), most=max(shares), slack=memory.SLACK)
    return "\n".join((words, _by_source(found), "", OFF_PEAKS))


def each_peak(found: Sequence[Peak]) -> str:
    head = ("source", "model", "where", "tokens", "how", "published", "predicted", "most of it", "error")
    return table(head, (_row(p) for p in found))


def _by_source(found: Sequence[Peak]) -> str:
    """All runs, and their average over sources, before each source."""
    every = sources(p.cell for p in found)
    slack = {p.cell.publisher: without(found, p.cell.publisher) for p in found}
    blind = {source: np.array([p.by(slack[p.cell.publisher]) for p in _of(found, source)]) for source in every}
    errors = {source: np.array([p.error for p in _of(found, source)]) for source in every}
    rows = [
        _shares("**all runs**", "", np.array([p.error for p in found]), np.concatenate(list(blind.values()))),
        _alike(list(errors.values()), list(blind.values())),
        *(_shares(source, _told(found, source), errors[source], blind[source]) for source in every),
    ]
    blind_heads = ("median, blind", f"{SMALL_HEAD}, blind")
    head = ("source", "runs", "reported", "median", "signed", SMALL_HEAD, "worst", *blind_heads)
    return table(head, rows)


def without(found: Sequence[Peak], publisher: str) -> float:
    """The share that what others had reserved would choose for slack: by which the middle of their errors is least."""
    others = [p for p in found if p.cell.publisher != publisher and not p.allocated]
    shares = np.arange(0, 0.51, 0.01)
    return float(min(shares, key=lambda share: _median(np.array([p.by(share) for p in others]))))


def _of(found: Sequence[Peak], source: str) -> list[Peak]:
    return [p for p in found if p.cell.source == source]


def _told(found: Sequence[Peak], source: str) -> str:
    return "allocated" if _of(found, source)[0].allocated else "reserved"


def _alike(errors: Sequence[NDArray[Any]], blind: Sequence[NDArray[Any]]) -> tuple[str, ...]:
    """Averages over sources."""
    medians, small = ([float(np.mean([of(e) for e in both])) for both in (errors, blind)] for of in (_median, _small))
    told = (f"{medians[0]:.1%}", "", f"{small[0]:.0%}", "", f"{medians[1]:.1%}", f"{small[1]:.0%}")
    return ("**averaged over sources**", str(len(errors)), "", *told)


def _shares(source: str, told: str, errors: NDArray[Any], blind: NDArray[Any]) -> tuple[str, ...]:
    worst = float(errors[np.abs(errors).argmax()])
    signed = f"{float(np.median(errors)):+.1%}"
    middle = (f"{_median(errors):.1%}", signed, f"{_small(errors):.0%}", f"{worst:+.0%}")
    return (source, str(len(errors)), told, *middle, f"{_median(blind):.1%}", f"{_small(blind):.0%}")


def median_of_sources(found: Sequence[Peak]) -> float:
    """Of absolute errors, the mean over sources."""
    every = sources(p.cell for p in found)
    return float(np.mean([_median(np.array([p.error for p in _of(found, source)])) for source in every]))


def _median(errors: NDArray[Any]) -> float:
    return float(np.median(np.abs(errors)))


def _small(errors: NDArray[Any]) -> float:
    return float((errors < SMALL).mean())


def _row(p: Peak) -> tuple[str, ...]:
    c, terms = p.cell, p.predicted.terms
    most = sorted((name for name in terms if name not in ("context", "slack")), key=lambda name: -terms[name])[:2]
    sizes = (f"{p.published / 1e9:.1f} GB", f"{p.estimated / 1e9:.1f} GB")
    tokens = f"{c.microbatches} x {c.sequences} x {c.sequence:,}"
    where = f"{c.cluster.gpus} {c.gpu.name}"
    return (c.source, c.model.name, where, tokens, c.how, *sizes, ", ".join(most), f"{p.error:+.1%}")
