"""Which run a prediction may be held against: what would give a number that means nothing is refused."""

from collections.abc import Iterator

import numpy as np

from odcsim.errors import InputError
from odcsim.recipe import CHOICES, Recipe, flag
from odcsim.results.metrics import usage
from odcsim.timeline import About, Timeline

SHORTEST = 5e-3  # seconds of an emulated minibatch below which a wait's own error is what one would measure
SAME = "predict and run the same schedule file"


def refuse(predicted: Timeline, measured: Timeline, where: str) -> None:
    """Refuse a run that is not the predicted one."""
    one, other = predicted.about, measured.about
    if one.executor == "engine" and other.executor != "engine":
        raise InputError("the prediction was measured and the measurement simulated", fix="swap the two files")
    for problem, fix in _misfits(one, other):
        raise InputError(problem, where=where, fix=fix)
    if not len(measured.samples) or not np.array_equal(predicted.samples, measured.samples):
        raise InputError("minibatches hold other samples than the prediction's", where=where, fix=SAME)
    shortest = min(float(usage(line).makespan.min()) for line in (predicted, measured))
    if shortest <= 0:
        raise InputError("a minibatch takes no time", where=where, fix="a profile must give seconds to compute")
    if other.emulated and other.executor == "engine" and shortest < SHORTEST:
        seconds = f"an emulated minibatch takes {1e3 * shortest:.1f} ms, under {1e3 * SHORTEST:.0f}"
        raise InputError(seconds, where=where, fix="emulate longer samples: waiting is not that exact")


def _misfits(predicted: About, run: About) -> Iterator[tuple[str, str]]:
    """Problems, each with its way out."""
    per_node = "predict and run with the same --devices-per-node"
    if run.digest != predicted.digest:
        yield f"schedule digest {run.digest} is not the prediction's {predicted.digest}", SAME
    if run.devices != predicted.devices:
        yield f"devices {run.devices} is not the prediction's {predicted.devices}", SAME
    for name in run.recipe.differs(predicted.recipe):
        yield _otherwise(name, predicted.recipe, run.recipe)
    if run.nodes != predicted.nodes:
        yield f"nodes {run.nodes} is not the prediction's {predicted.nodes}", per_node


def _otherwise(name: str, predicted: Recipe, run: Recipe) -> tuple[str, str]:
    """A choice that differs, and how to predict with the run's."""
    mine, its = predicted.value(name), run.value(name)
    if isinstance(its, bool):
        ran, meant = (f"with{'' if value else 'out'} {name}" for value in (its, mine))
        usual = its == CHOICES[name].usual
        fix = f"leave {flag(name)} out of the prediction" if usual else f"predict with {flag(name)}"
        return f"run {ran}, predicted {meant}", fix
    word = flag(name) if CHOICES[name].flag else name
    return f"{name} {its} is not the prediction's {mine}", f"predict with {word} {its}"
