"""What FSDP2 has been told to do with gradients, and what of it holds for sums."""

from collections.abc import Iterator, Sequence
from typing import Any

from odc_engine.fsdp.groups import Group
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError


def scale(group: Group, devices: int, *, average: bool) -> float:
    """What a unit's sums are multiplied with: 1, or what stock FSDP2 would."""
    settings = group.settings()
    if settings.get("_all_reduce_hook") is not None:
        raise InputError(f"unit {group.name} has an all-reduce hook", fix="change .grad after settle() instead")
    factor = settings["gradient_divide_factor"]
    if average:
        return 1 / (factor or devices)
    if factor not in (None, 1.0):
        problem = f"unit {group.name} divides gradients by {factor:g}, and OnDemand gives sums"
        raise InputError(problem, fix="OnDemand(average=True) divides as FSDP2 does")
    return 1.0


class Settings:
    """How units communicate while an OnDemand has them. Others may tell FSDP2 otherwise."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._settings: list[dict[str, Any]] = [unit.group.settings() for unit in units]

    def otherwise(self, unit: Unit) -> Iterator[InputError]:
        now, told = unit.group.settings(), self._settings[unit.index]
        for name in told:
            if now[name] != told[name]:
                yield InputError(
                    f"FSDP2 was told to communicate otherwise for {unit.name} ({name.strip('_')})",
                    fix="tell it before OnDemand is made",
                )
