"""Which parameters a gradient has reached on this device. What nobody uses keeps `.grad` None: AdamW would decay it."""

import functools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from odc_engine.fsdp.graph_breaks import uncompiled
from odc_engine.fsdp.units import Unit


class Used:
    """Has each whole parameter of all units tell when a gradient reaches it, however it is used."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._flags = [torch.zeros(len(unit.trainable), dtype=torch.uint8) for unit in units]
        self._unpushed = [[False] * len(unit.trainable) for unit in units]
        self._handles: list[RemovableHandle] = []
        for unit in units:
            for i, piece in enumerate(unit.trainable):
                note = uncompiled(functools.partial(self._note, unit.index, i))
                self._handles.append(cast(Any, piece.managed.whole).register_post_accumulate_grad_hook(note))

    def _note(self, unit: int, piece: int, _: Tensor) -> None:
        self._flags[unit][piece] = 1
        self._unpushed[unit][piece] = True

    def reached(self, unit: int) -> list[bool]:
        """Which of a unit's trainable parameters, since this was asked last."""
        reached = self._unpushed[unit]
        self._unpushed[unit] = [False] * len(reached)
        return reached

    def start_anew(self) -> None:
        """What was reached and not pushed is lost."""
        self._unpushed = [[False] * len(reached) for reached in self._unpushed]

    @property
    def count(self) -> int:
        return sum(len(flags) for flags in self._flags)

    def flags(self) -> Tensor:
        """A byte for each trainable parameter of all units."""
        return torch.cat(self._flags) if self._flags else torch.zeros(0, dtype=torch.uint8)

    def clear(self) -> None:
        for flags in self._flags:
            flags.zero_()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
