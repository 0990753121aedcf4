"""Pictures, as plotly figures: pure functions of traces, rows and timelines. Nothing else in odcsim imports plotly."""

from odcsim.plots.agreement import agreement
from odcsim.plots.diagnosis import gains, parts, ranks
from odcsim.plots.engine import bandwidth, convergence
from odcsim.plots.gantt import gantt
from odcsim.plots.html import embed, script
from odcsim.plots.lengths import lengths
from odcsim.plots.notebook import notebook, slide
from odcsim.plots.pair import pair
from odcsim.plots.ran_step import worst_step
from odcsim.plots.rows import idle, speedups, sweep
from odcsim.plots.style import NAMES

__all__ = [
    "NAMES",
    "agreement",
    "bandwidth",
    "convergence",
    "embed",
    "gains",
    "gantt",
    "idle",
    "lengths",
    "notebook",
    "pair",
    "parts",
    "ranks",
    "script",
    "slide",
    "speedups",
    "sweep",
    "worst_step",
]
