"""What on-demand adds to every minibatch on the host and moves no bytes: the engine's own, by the number of units.

`docs/studies/own_price.py` measures it, of processes that share memory on a CPU (docs/engine/measured.md). Beside a GPU
nobody has: the same Python runs there. Stock collectives have none of it.
"""

from odcsim.model import Model

ORIGIN = "the engine's host work, measured with processes of a CPU and not beside a GPU"
# To settle, to publish and to meet again; 2 or 4 devices make little difference.
CONSTANT, UNIT = 8e-4, 2e-4


def seconds(model: Model) -> float:
    return CONSTANT + UNIT * (model.layers + 1)
