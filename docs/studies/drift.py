"""How fast a machine was at each moment of its runs, by the minibatches that are made to be measured.

A host's cores drift by more than a model's error. The same minibatches stand in every run, near each one that is held
out: where they took longer than usual, so did what stood beside them. They know nothing of the prediction, nor of what
is held out.
"""

from collections.abc import Sequence

import numpy as np

from odcsim.timeline import Floats

NEAREST = 4  # of them: fewer are noise, more are further away


def steady(spans: Floats, ways: Sequence[Sequence[int]], own: int) -> Floats:
    """What the first `own` minibatches would have taken at the machine's mean speed: [run, minibatch], as `spans` are.

    `ways`: which minibatch stood where, in each run. Nothing changes where all minibatches are held out.
    """
    others = spans[:, own:]
    if not others.size:
        return spans
    usual = np.median(others, axis=0)
    mean = others.sum() / usual.sum() / len(spans)
    found = np.empty((len(spans), own))
    for run, way in enumerate(ways):
        places = np.argsort(way)
        apart = np.abs(places[:own, None] - places[None, own:])
        near = np.argsort(apart, axis=1, kind="stable")[:, :NEAREST]
        found[run] = spans[run, :own] / (others[run][near].sum(axis=1) / usual[near].sum(axis=1)) * mean
    return found
