"""What sums of gradients are multiplied with: FSDP2 can be told to give means, or to divide by something else."""

from odc_engine.fsdp.groups import Group
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
