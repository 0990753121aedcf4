"""Pictures, as plotly figures: pure functions of traces, rows and timelines. Nothing else in odcsim imports plotly."""

from odcsim.plots.diagnosis import gains, parts, ranks, worst_step
from odcsim.plots.engine import agreement, bandwidth, convergence
from odcsim.plots.gantt import gantt, pair
from odcsim.plots.html import document, embed, notebook, script, slide
from odcsim.plots.lengths import lengths
from odcsim.plots.rows import idle, speedups, sweep
from odcsim.say.timeline_words import NAMES

__all__ = [
    "NAMES",
    "agreement",
    "bandwidth",
    "convergence",
    "document",
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
