"""The phase of an OnDemand between two publications of weights. docs/design.md has a diagram."""

from enum import Enum

from odcsim.errors import InputError


class Phase(Enum):
    # Weights are published: gathers, pushes and take() are allowed.
    OPEN = "open"
    # Sums are in `.grad`, and peers may change their weights: no gather, push or take() until publish().
    # A new OnDemand begins here: its weights are not published yet.
    SETTLED = "settled"
    # All ranks have raised why there are no sums, and raise it again until all drop the minibatch with publish().
    BROKEN = "broken"
    # Stock communication is restored, and the memory is freed.
    CLOSED = "closed"


FOLLOWING = {
    Phase.OPEN: {Phase.SETTLED, Phase.BROKEN, Phase.OPEN, Phase.CLOSED},  # OPEN again: publish() without settle()
    Phase.SETTLED: {Phase.OPEN, Phase.CLOSED},
    Phase.BROKEN: {Phase.OPEN, Phase.BROKEN, Phase.CLOSED},
    Phase.CLOSED: {Phase.CLOSED},
}


def closed() -> InputError:
    return InputError("this communication is closed", fix="make a new OnDemand of the model")
