"""Which parameters a gradient has reached on this device. What nobody uses keeps `.grad` None: AdamW would decay it."""

import functools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from odc_engine.fsdp.units import Unit, whole_parameters


class Used:
    """Watches the whole parameters of all units, which exist only from their first gather on."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._flags = [torch.zeros(len(unit.trainable), dtype=torch.uint8) for unit in units]
        self._unpushed = [[False] * len(unit.trainable) for unit in units]
        self._handles: list[RemovableHandle] = []

    def watch(self, unit: Unit) -> None:
        """Have each whole parameter tell when a gradient reaches it. Called in forward, any number of times."""
        trainable = {piece.name: i for i, piece in enumerate(unit.trainable)}
        for name, parameter in whole_parameters(unit):
            if name in trainable and getattr(parameter, "odc_watched", None) is not self._handles:
                parameter.odc_watched = self._handles  # type: ignore[attr-defined]  # it lives as long as the model
                note = functools.partial(self._note, unit.index, trainable[name])
                self._handles.append(cast(Any, parameter).register_post_accumulate_grad_hook(note))

    def _note(self, unit: int, piece: int, _: Tensor) -> None:
        self._flags[unit][piece] = 1
        self._unpushed[unit][piece] = True

    def reached(self, unit: int) -> list[bool]:
        """Which of a unit's trainable parameters, since this was asked last."""
        reached = self._unpushed[unit]
        self._unpushed[unit] = [False] * len(reached)
        return reached

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
