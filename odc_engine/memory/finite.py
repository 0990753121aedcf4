"""Check gradients for NaN and infinity, and report rank, microbatch and unit before they are added to a sum."""

import math

import torch
from torch import Tensor

from odc_engine.errors import BadGradient


class Microbatches:
    """Know the microbatches to which a push of a unit belongs: those whose forward began since the unit's last push."""

    def __init__(self, units: int) -> None:
        self._begun, self._pushed = 0, [0] * units

    def begin(self) -> None:
        """Note a forward of the whole model."""
        self._begun += torch.is_grad_enabled()

    def of_push(self, unit: int) -> range:
        first, self._pushed[unit] = self._pushed[unit], self._begun
        return range(first, self._begun)


class Checks:
    """Check at once on a CPU. On a GPU a check would wait for it, so that all results are read together."""

    def __init__(self, way_out: str = "") -> None:
        self._way_out = way_out
        self._later: list[tuple[Tensor, Tensor, str, int, range]] = []  # the smallest value, the largest, and of what

    def check(self, gradients: Tensor, unit: str, device: int, microbatches: range) -> None:
        if not gradients.numel():
            return
        # A NaN becomes both, and nothing overflows, as a sum would. One pass over memory, as for a sum.
        smallest, largest = gradients.aminmax()
        if gradients.is_cuda:
            self._later.append((smallest, largest, unit, device, microbatches))
        else:
            self._judge(smallest, largest, unit, device, microbatches)

    def settle(self) -> None:
        """Raise BadGradient for the first bad one, before the sum is used."""
        later, self._later = self._later, []
        if later and not torch.isfinite(torch.stack([end for each in later for end in each[:2]])).all():
            for each in later:
                self._judge(*each)

    def _judge(self, smallest: Tensor, largest: Tensor, unit: str, device: int, microbatches: range) -> None:
        if math.isfinite(smallest) and math.isfinite(largest):
            return
        which = f"microbatch {microbatches[0]}" if microbatches else "a second backward pass"
        if len(microbatches) > 1:
            which = f"one of microbatches {microbatches[0]} to {microbatches[-1]}"
        problem = f"a gradient of {unit} is not finite (device {device}, {which})"
        raise BadGradient(f"{problem}; {self._way_out}" if self._way_out else problem)
