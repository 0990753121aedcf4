"""What a process finds of links between GPUs. It imports nothing that takes long: each machine is a process."""

from dataclasses import astuple

from odc_engine.backends import links
from odc_engine.backends.links import GpuLinks, PlacedGpu
from odcsim.errors import InputError


def from_first(others):
    """What a process finds of its first GPU, and of its ways to GPUs on these buses."""
    mine = links.seen(0)
    there = [PlacedGpu(f"0000:{0x1B + number:02X}:00.0", f"uuid {number}", "NVIDIA Fake") for number in others]
    return [astuple(links.link(mine, one)) for one in [mine, *there]]


def every_way(count):
    """Between all GPUs that a process sees: what is refused, why none can add, and whether two are apart."""
    gpus = [links.seen(number) for number in range(count)]
    found = GpuLinks(tuple(gpus), tuple(tuple(links.link(one, other) for other in gpus) for one in gpus))
    try:
        found.refuse_torn()
    except InputError as error:
        return [str(error), found.why_not_add(), found.elsewhere(0, 1)]
    return ["", found.why_not_add(), found.elsewhere(0, 1)]
