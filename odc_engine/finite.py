"""Gradients that are not finite, reported with device, microbatch and unit before they reach anybody's sum."""

import torch
from torch import Tensor, nn

from odc_engine.errors import BadGradient


class Microbatches:
    """Which microbatches a unit's push is of: those whose forward has begun since the one before."""

    def __init__(self, model: nn.Module, units: int) -> None:
        self._begun, self._pushed = 0, [0] * units
        self._hook = model.register_forward_pre_hook(self._begin)

    def _begin(self, *_: object) -> None:
        self._begun += torch.is_grad_enabled()

    def of_push(self, unit: int) -> range:
        first, self._pushed[unit] = self._pushed[unit], self._begun
        return range(first, self._begun)

    def clear(self) -> None:
        """The next minibatch begins."""
        self._begun, self._pushed = 0, [0] * len(self._pushed)

    def close(self) -> None:
        self._hook.remove()


def check(gradients: Tensor, unit: str, device: int, microbatches: range) -> None:
    """Raise BadGradient. A sum is not finite where any of its terms is not, and takes a third of the time."""
    if bool(torch.isfinite(gradients.sum(dtype=torch.float32))):
        return
    which = f"microbatch {microbatches[0]}" if microbatches else "a second backward pass"
    if len(microbatches) > 1:
        which = f"one of microbatches {microbatches[0]} to {microbatches[-1]}"
    raise BadGradient(f"a gradient of {unit} is not finite (device {device}, {which})")
