"""Peaks of memory that published runs told, beside what the memory estimate says of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from page_table import table
from published_cells import Cell

from odcsim.catalog.estimates import memory


@dataclass(frozen=True, slots=True)
class Peak:
    cell: Cell
    published: float  # bytes that the allocator had reserved
    predicted: memory.Memory

    @property
    def error(self) -> float:
        return self.predicted.allocated / self.published - 1


def peaks(cells: Sequence[Cell]) -> list[Peak]:
    """The worst first."""
    told = [Peak(cell, cell.peak, _predicted(cell)) for cell in cells if cell.peak is not None]
    return sorted(told, key=lambda p: -abs(p.error))


def _predicted(c: Cell) -> memory.Memory:
    return memory.estimate(c.model, c.cluster.devices, c.tokens, c.recipe, longest=c.sequence)


def section(found: Sequence[Peak]) -> str:
    errors = np.abs([p.error for p in found])
    words = INTRO.format(runs=len(found), median=float(np.median(errors)), worst=float(errors.max()))
    head = ("source", "model", "where", "tokens", "how", "published", "predicted", "most of it", "error")
    return "\n".join((words, table(head, (_row(p) for p in found)), "", FINDINGS))


def _row(p: Peak) -> tuple[str, ...]:
    c, terms = p.cell, p.predicted.terms
    most = sorted((name for name in terms if name != "context"), key=lambda name: -terms[name])[:2]
    sizes = (f"{p.published / 1e9:.1f} GB", f"{p.predicted.allocated / 1e9:.1f} GB")
    tokens = f"{c.microbatches} x {c.sequences} x {c.sequence:,}"
    where = f"{c.cluster.devices} {c.gpu.name}"
    return (c.source, c.model.name, where, tokens, c.how, *sizes, ", ".join(most), f"{p.error:+.1%}")


INTRO = """## Peaks of memory

{runs} of the runs tell what their allocator had reserved at most. Beside them the estimate that `compare` holds
against the GPU's memory, without the GPU's context, which no allocator shows. No source is left out here: none of the
estimate's terms is fitted to these runs but the allocator's slack and the bytes of a logit. The median error is
{median:.1%}, the worst {worst:.1%}.
"""
FINDINGS = """- **A compiled run of 2024 kept ten bytes of a logit, those of 2025 six or less**: they compiled the loss
  as well. The estimate takes a figure between them, so the first come out too small and the others too large.
- **KempnerForge's runs on several GPUs need up to 7 GB more** than their description explains, even with what it
  leaves open (when gradients are reduced, the optimizer's dtype) chosen to come nearest.
"""
