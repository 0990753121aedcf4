"""Where an OnDemand stands, from one publication of weights to the next. docs/design.md has a picture of it."""

from enum import Enum

from odcsim.errors import InputError


class Phase(Enum):
    # Weights are published. Units are gathered, gradients pushed, entries of a queue taken.
    OPEN = "open"
    # Sums are in `.grad`, and peers may change their weights: nothing is gathered, pushed or taken until publish().
    # Here an OnDemand begins, whose weights nobody has published yet.
    SETTLED = "settled"
    # All devices have been told why there are no sums, and hear it again until all drop the minibatch with publish().
    BROKEN = "broken"
    # Stock communication is back, and the memory has been given back.
    CLOSED = "closed"


FOLLOWING = {
    Phase.OPEN: {Phase.SETTLED, Phase.BROKEN, Phase.OPEN, Phase.CLOSED},  # OPEN again: publish() without settle()
    Phase.SETTLED: {Phase.OPEN, Phase.CLOSED},
    Phase.BROKEN: {Phase.OPEN, Phase.BROKEN, Phase.CLOSED},
    Phase.CLOSED: {Phase.CLOSED},
}


def closed() -> InputError:
    return InputError("this communication is closed", fix="make a new OnDemand of the model")
