"""Track which parameters got a gradient on this rank. An unused parameter keeps `.grad` None: AdamW would decay it."""

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor

from odc_engine.fsdp.graph_breaks import uncompiled
from odc_engine.fsdp.units import Unit


class ReachedParameters:
    """The parameters with gradients in one minibatch."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._flags = [torch.zeros(len(unit.trainable), dtype=torch.uint8, device="cpu") for unit in units]
        self._unpushed = [[False] * len(unit.trainable) for unit in units]

    def note(self, unit: int, piece: int) -> None:
        self._unpushed[unit][piece] = True

    def any_unpushed(self, unit: int) -> bool:
        return any(self._unpushed[unit])

    def collect(self, unit: int) -> list[bool]:
        """Return a unit's trainable parameters that got a gradient since the last call: the next push sends them."""
        reached = self._unpushed[unit]
        self._flags[unit] |= torch.tensor(reached, dtype=torch.uint8, device="cpu")
        self._unpushed[unit] = [False] * len(reached)
        return reached

    def lose_unpushed(self) -> None:
        self._unpushed = [[False] * len(reached) for reached in self._unpushed]

    def lose_pushed(self) -> None:
        for flags in self._flags:
            flags.zero_()

    def flags(self) -> Tensor:
        """Return one byte per trainable parameter of all units."""
        return torch.cat(self._flags) if self._flags else torch.zeros(0, dtype=torch.uint8, device="cpu")


def watch(units: Sequence[Unit], now: Callable[[], ReachedParameters]) -> Callable[[], None]:
    """Note when a gradient reaches a whole parameter, however it is used. Returns a call that ends this."""
    watches = ExitStack()
    for unit in units:
        for i, piece in enumerate(unit.trainable):
            note = uncompiled(functools.partial(_note, now, unit.index, i))
            watches.callback(cast(Any, piece.managed.whole).register_post_accumulate_grad_hook(note).remove)
    return watches.close


def _note(now: Callable[[], ReachedParameters], unit: int, piece: int, _: Tensor) -> None:
    now().note(unit, piece)
