"""What people do to a model between two minibatches, one habit each: its sentence is its docstring, its order the code.

Each is followed by devices and by one process (users.py). `EVERY` has them by name, in the order of the modules.
"""

import importlib
from collections.abc import Callable
from typing import Any

from users import Habit, User

EVERY: dict[str, Habit] = {}
ROOMS = {
    "attached": "Loops with `odc.attach(optimizer)`",
    "turns": "Attached: several optimizers in turn, and `zero_grad()` at other times",
    "ways_out": "Refused habits, and habits with their fix applied",
    "order": "By hand: the order of backward, settle, clip, step and publish",
    "steps": "Other optimizers, and steps with several backward passes",
    "forgotten": "Forgotten calls, and gradients read too early",
    "gradients": "Gradients from other sources, kept, or left out",
    "frozen": "Frozen parameters",
    "weights": "Weights changed other than by an optimizer step",
    "checkpoints": "Checkpoints of optimizer states by `torch.distributed.checkpoint`",
    "replaced": "Parts of the model replaced, added or removed",
    "training": "Training modes",
    "settings": "Settings of FSDP2, and other code that changes them",
    "interrupted": "Interruptions, and ranks that are late",
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
