"""What on-demand adds to every minibatch on the host and moves no bytes: the engine's own, by the number of units.

`docs/studies/own_price.py` measures it, of processes that share memory on a CPU (docs/engine/measured.md). Beside a GPU
nobody has: the same Python runs there. Stock collectives have none of it.
"""

from odcsim.model import Model

ORIGIN = "the engine's host work, measured with processes of a CPU and not beside a GPU"
# To settle and to publish, both with the work around them; 2 to 4 devices made no difference.
CONSTANT, UNIT = 6e-4, 1.7e-4


def seconds(model: Model) -> float:
    return CONSTANT + UNIT * (model.layers + 1)
