"""What people do to a model between two minibatches, one habit each: its sentence is its docstring, its order the code.

Each is followed by devices and by one process (users.py). `EVERY` has them by name, in the order of the modules.
"""

import importlib
from collections.abc import Callable
from typing import Any

from users import Habit, User

EVERY: dict[str, Habit] = {}
ROOMS = {
    "attached": "Loops that know nothing of the engine: `odc.attach(optimizer)`",
    "ways_out": "Attached: what is refused, and its way out taken",
    "order": "By hand: the order of backward, settle, clip, step and publish",
    "steps": "Optimizers of other kinds, and steps of more than one backward pass",
    "forgotten": "What is forgotten, and what is looked at too early",
    "gradients": "Gradients that come another way, stay, or are left out",
    "frozen": "Frozen parameters",
    "weights": "Weights that change otherwise than by a step",
    "checkpoints": "States of optimizers saved and loaded by `torch.distributed.checkpoint`",
    "replaced": "Parts of the model that are replaced, added or taken away",
    "training": "Modes of training",
    "settings": "Settings of FSDP2, and other hands in it",
    "interrupted": "What is interrupted, and who comes late",
}


def habit(**how: Any) -> Callable[[Callable[[User], None]], Callable[[User], None]]:
    def kept(follow: Callable[[User], None]) -> Callable[[User], None]:
        EVERY[f"{follow.__module__.rpartition('.')[2]}: {follow.__name__}"] = Habit(follow, **how)
        return follow

    return kept


def sentence(habit: Habit) -> str:
    return " ".join((habit.follow.__doc__ or "").split())


for _room in ROOMS:
    importlib.import_module(f"habits.{_room}")
