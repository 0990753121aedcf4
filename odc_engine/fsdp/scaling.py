"""Factor on sums of gradients: FSDP2 gives means, or can be set to divide by another number."""

from odc_engine.fsdp.groups import Group
from odcsim.errors import InputError


def scale(group: Group, devices: int, *, average: bool) -> float:
    """Return the factor on a unit's sums: stock FSDP2's, or 1."""
    settings = group.settings()
    if settings.get("_all_reduce_hook") is not None:
        raise InputError(f"unit {group.name} has an all-reduce hook", fix="change .grad after settle() instead")
    factor = settings["gradient_divide_factor"]
    if average:
        return 1 / (factor or devices)
    if factor not in (None, 1.0):
        problem = f"unit {group.name} divides gradients by {factor:g}, and OnDemand(average=False) gives sums"
        raise InputError(problem, fix="leave average=False out to divide as FSDP2 does")
    return 1.0
