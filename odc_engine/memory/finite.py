"""Check gradients for NaN and infinity, and report rank, microbatch and unit before they are added to a sum."""

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
        self._later: list[tuple[Tensor, str, int, range]] = []

    def check(self, gradients: Tensor, unit: str, device: int, microbatches: range) -> None:
        if gradients.is_cuda:
            self._later.append((gradients.sum(dtype=torch.float32), unit, device, microbatches))
        else:
            check(gradients, unit, device, microbatches, self._way_out)

    def settle(self) -> None:
        """Raise BadGradient for the first bad one, before the sum is used."""
        later, self._later = self._later, []
        if later and not torch.isfinite(torch.stack([total for total, *_ in later])).all():
            for total, unit, device, microbatches in later:
                check(total, unit, device, microbatches, self._way_out)


def check(gradients: Tensor, unit: str, device: int, microbatches: range, way_out: str = "") -> None:
    """Raise BadGradient. A sum is not finite where any of its terms is not, and takes a third of the time."""
    if bool(torch.isfinite(gradients.sum(dtype=torch.float32))):
        return
    which = f"microbatch {microbatches[0]}" if microbatches else "a second backward pass"
    if len(microbatches) > 1:
        which = f"one of microbatches {microbatches[0]} to {microbatches[-1]}"
    told = f"a gradient of {unit} is not finite (device {device}, {which})"
    raise BadGradient(f"{told}; {way_out}" if way_out else told)
