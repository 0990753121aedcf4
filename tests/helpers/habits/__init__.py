"""What people do to a model between two minibatches, one habit each: its sentence is its docstring, its order the code.

Each is followed by devices and by one process (users.py). `EVERY` has them by name, in the order of the modules.
"""

import importlib
import re
from collections.abc import Callable
from functools import partial
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
Follow = Callable[[User], None]


def habit(**how: Any) -> Callable[[Follow], Follow]:
    def kept(follow: Follow) -> Follow:
        EVERY[f"{follow.__module__.rpartition('.')[2]}: {follow.__name__}"] = Habit(follow, **how)
        return follow

    return kept


def in_words(module: str, *more: Follow, **how: Any) -> Callable[[str], None]:
    """Habits of nothing but what `User.do` knows: a name, words and, in this line or the next, the sentence."""

    def kept(text: str) -> None:
        for name, words, sentence in re.findall(r"^(\w+): (.+?)(?: \| |\n +)(.+)$", text, re.MULTILINE):
            follow = partial(_done, words=words, more=more)
            follow.__doc__ = sentence
            EVERY[f"{module.rpartition('.')[2]}: {name}"] = Habit(follow, **how)

    return kept


def _done(user: User, words: str, more: tuple[Follow, ...]) -> None:
    user.do(words, *more)


def sentence(habit: Habit) -> str:
    return " ".join((habit.follow.__doc__ or "").split())


for _room in ROOMS:
    importlib.import_module(f"habits.{_room}")
