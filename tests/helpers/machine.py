"""A machine of known seconds, simulated where `odc_engine profile` would run the engine."""

from dataclasses import replace

from odc_engine.measuring.survey import Survey
from odcsim import catalog, timeline
from odcsim.catalog.estimates.recompute import under
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.executors.simulation import simulate
from odcsim.profile import Passes, Polynomial, Profile, Timing
from odcsim.recipe import USUAL

TINY = catalog.model("tiny")
SLOWDOWN, INTERFERENCE = 1.7, 1.25
KINDS = ("gather", "push", "all-gather", "reduce-scatter")
COUNTS = (2, 3)


def timings(slowdown: float, other: float = 1.0) -> tuple[Timing, ...]:
    """`other` stretches what a model of other sizes takes once in a minibatch."""
    moved = (Timing(kind, n, 2e-5 * n, 1e-10 * i, slowdown) for i, kind in enumerate(KINDS, 1) for n in COUNTS)
    once = (("meeting", 3e-5), ("settle", 5e-4), ("overhead", 1e-3), ("optimizer", 2e-3), ("publish", 1e-3))
    return (*moved, *(Timing(kind, n, n * seconds * other) for kind, seconds in once for n in COUNTS))


TERMS = {
    "forward": Polynomial(2e-4, 4e-6, 1e-9, 3e-5),
    "backward": Polynomial(5e-4, 1.2e-5, 3.5e-9, 8e-5),
    "head": Polynomial(3e-4, 2e-5),
    "embed": Polynomial(5e-5, 1e-7),
}
KEPT = Passes(Polynomial(2.2e-4, 4.4e-6, 1.1e-9, 3e-5), Polynomial(3e-4, 8e-6, 2.5e-9, 5e-5))
REST = {"dtype": USUAL.dtype, "timings": timings(SLOWDOWN), "kept": KEPT}
MACHINE = Profile(TINY.name, "cpu", "calibrated", "", **TERMS, **REST)
SURVEY = Survey(TINY, COUNTS, most=512, quick=True)


def faster(p: Polynomial) -> Polynomial:
    return Polynomial(*(getattr(p, term) / INTERFERENCE for term in ("constant", "linear", "quadratic", "sample")))


def run_on_machine(file, job, output: str, *, quiet: bool) -> int:
    """Stands in for the engine: the machine takes less where nobody disturbs it."""
    assert quiet
    devices, seconds = file.header.devices, MACHINE
    if job.emulate:
        other = timings(1.0, job.cost.model.hidden / TINY.hidden)
        seconds = replace(job.cost.profile, dtype=USUAL.dtype, timings=other)
    elif devices == 1:
        seconds = replace(MACHINE, **{name: faster(terms) for name, terms in TERMS.items()})
    seconds = under(seconds, job.cost.model, job.recipe.recomputes)
    cost = Cost(job.cost.model, seconds, Cluster(devices, devices, 1.0, 1.0, devices), job.recipe)
    line = simulate(file, cost)
    timeline.write(replace(line, about=replace(line.about, executor="engine", emulated=job.emulate)), output)
    return 0
