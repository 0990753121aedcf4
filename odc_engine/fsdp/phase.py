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
    # This rank left a meeting by an error of its own, or by a lost peer: it comes to no other, and can only close.
    LOST = "lost"
    # Stock communication is restored, and the memory is freed.
    CLOSED = "closed"


FOLLOWING = {
    # OPEN again: publish() without settle()
    Phase.OPEN: {Phase.SETTLED, Phase.BROKEN, Phase.OPEN, Phase.LOST, Phase.CLOSED},
    Phase.SETTLED: {Phase.OPEN, Phase.LOST, Phase.CLOSED},
    Phase.BROKEN: {Phase.OPEN, Phase.BROKEN, Phase.LOST, Phase.CLOSED},
    Phase.LOST: {Phase.CLOSED},
    Phase.CLOSED: {Phase.CLOSED},
}


def closed() -> InputError:
    return InputError("this communication is closed", fix="make a new OnDemand of the model")
