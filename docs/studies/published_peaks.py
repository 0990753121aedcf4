"""Peaks of memory that published runs told, beside what the memory estimate says of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from page_table import table
from published_cells import Cell, sources

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
    return memory.estimate(
        c.model, c.cluster.devices, c.tokens, c.recipe, longest=c.sequence, microbatches=c.microbatches
    )


def section(found: Sequence[Peak]) -> str:
    head = ("source", "model", "where", "tokens", "how", "published", "predicted", "most of it", "error")
    rows = table(head, (_row(p) for p in found))
    shares = [without(found, name) for name in {p.cell.publisher for p in found if not p.allocated}]
    words = INTRO.format(runs=len(found), least=min(shares), most=max(shares), slack=memory.SLACK)
    return "\n".join((words, _by_source(found), "", FINDINGS, rows, ""))


def _by_source(found: Sequence[Peak]) -> str:
    """All runs, and all sources alike, before each source."""
    every = sources(p.cell for p in found)
    slack = {p.cell.publisher: without(found, p.cell.publisher) for p in found}
    blind = {source: np.array([p.by(slack[p.cell.publisher]) for p in _of(found, source)]) for source in every}
    errors = {source: np.array([p.error for p in _of(found, source)]) for source in every}
    rows = [
        _shares("**all runs**", "", np.array([p.error for p in found]), np.concatenate(list(blind.values()))),
        _alike(list(errors.values()), list(blind.values())),
        *(_shares(source, _told(found, source), errors[source], blind[source]) for source in every),
    ]
    head = ("source", "runs", "told", "median", "signed", SMALL_HEAD, "worst", "median, blind", f"{SMALL_HEAD}, blind")
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
    return ("**sources alike**", str(len(errors)), "", *told)


def _shares(source: str, told: str, errors: NDArray[Any], blind: NDArray[Any]) -> tuple[str, ...]:
    worst = float(errors[np.abs(errors).argmax()])
    signed = f"{float(np.median(errors)):+.1%}"
    middle = (f"{_median(errors):.1%}", signed, f"{_small(errors):.0%}", f"{worst:+.0%}")
    return (source, str(len(errors)), told, *middle, f"{_median(blind):.1%}", f"{_small(blind):.0%}")


def _median(errors: NDArray[Any]) -> float:
    return float(np.median(np.abs(errors)))


def _small(errors: NDArray[Any]) -> float:
    return float((errors < SMALL).mean())


def _row(p: Peak) -> tuple[str, ...]:
    c, terms = p.cell, p.predicted.terms
    most = sorted((name for name in terms if name not in ("context", "slack")), key=lambda name: -terms[name])[:2]
    sizes = (f"{p.published / 1e9:.1f} GB", f"{p.estimated / 1e9:.1f} GB")
    tokens = f"{c.microbatches} x {c.sequences} x {c.sequence:,}"
    where = f"{c.cluster.devices} {c.gpu.name}"
    return (c.source, c.model.name, where, tokens, c.how, *sizes, ", ".join(most), f"{p.error:+.1%}")


INTRO = """## Peaks of memory

{runs} of the runs tell a peak: of what PyTorch had reserved, or of what it had allocated. Beside them the estimate that
`compare` holds against the GPU's memory, without the GPU's context, which no allocator shows, and without slack where
the source tells what was allocated. Its terms are bytes that are counted ([what each is](model/memory.md)); which
copies a trainer holds on to was read in its source, and looked for where peaks said that some were missing. The one
figure that was measured is slack: by fms-acceleration, of whose peaks here it is no part. *Blind* it is instead what
the other publishers' reserved peaks would choose, {least:.2f} to {most:.2f} for {slack:.2f}.
"""
FINDINGS = """- **ATorch's runs hold twice what is estimated**, 31.4 GB beside states on any number of GPUs, full or
  with adapters. Their recipe says bf16 by autocast, flash attention and recompute of every layer. Not understood:
  hidden states in fp32 would explain 5 GB of 17.
- **Compiled runs of 2025 need less than is estimated**: torchtitan on H200 and torchao on B200 compiled the loss as
  well, which then holds six bytes of a logit or less. Runs of 2024 held 12, prime-rl's 16. No flag tells one from the
  other, and 14 are estimated.
- **A fused kernel for the loss holds 8 bytes of a logit** where 12 are estimated: fms-acceleration's fused runs
  with a whole loss are estimated up to a third too large.
- **Offloaded activations are no choice of a recipe**: three of prime-rl's runs are estimated as if they stayed.
"""
