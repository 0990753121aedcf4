"""Group ranks by machine: those that can open each other's files in memory and have the same network.

Containers on one host are machines of their own, unless they share both.
"""

import platform
from pathlib import Path

import torch.distributed as dist

from odc_engine.backends.collectives import agreed

_SHARED = ("pid", "net")  # kinds of namespaces


def here() -> str:
    """Return a value that all processes of this machine share, and no others."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return platform.node()
    return " ".join([boot.read_text().strip(), *(str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in _SHARED)])


def numbers_of(group: dist.ProcessGroup | None) -> tuple[int, ...]:
    """Return a machine number per rank, counted from 0 in rank order."""
    mine = agreed(group, here)
    told = [mine] * dist.get_world_size(group)
    dist.all_gather_object(told, mine, group=group)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(told))}
    return tuple(numbers[name] for name in told)


def several(group: dist.ProcessGroup | None) -> bool:
    """Whether ranks are on more than one machine."""
    return len(set(numbers_of(group))) > 1


def runs(machines: tuple[int, ...]) -> tuple[range, ...]:
    """Of each device, the unbroken run of devices around it that are on its machine."""
    found: list[range] = []
    for device, machine in enumerate(machines):
        start = device
        while start and machines[start - 1] == machine:
            start -= 1
        stop = device + 1
        while stop < len(machines) and machines[stop] == machine:
            stop += 1
        found.append(range(start, stop))
    return tuple(found)
