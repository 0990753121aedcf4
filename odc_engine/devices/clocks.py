"""How far this machine's clock is from device 0's. Times of one machine's processes need none of this: they share it.

Device 0 is asked for its time over and over. The quickest answer tells most: its time was read somewhere between the
question and the answer, so half of what that took is the largest error there can be. Clocks drift apart afterwards, by
some microseconds a second.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

ROUNDS = 20
Clock = Callable[[], float]


def offset(group: dist.ProcessGroup | None = None, clock: Clock = time.perf_counter) -> float:
    """Return the seconds to add to this clock to get rank 0's. All ranks call it together."""
    found = 0.0
    for device in range(1, dist.get_world_size(group)):
        if dist.get_rank(group) == 0:
            _answer(device, group, clock)
        elif dist.get_rank(group) == device:
            found = _asked(group, clock)
    return found


def _answer(device: int, group: dist.ProcessGroup | None, clock: Clock) -> None:
    for _ in range(ROUNDS):
        dist.recv(torch.empty(1, dtype=torch.float64), group=group, group_src=device)
        dist.send(torch.tensor([clock()], dtype=torch.float64), group=group, group_dst=device)


def _asked(group: dist.ProcessGroup | None, clock: Clock) -> float:
    told, best = torch.empty(1, dtype=torch.float64), (float("inf"), 0.0)
    for _ in range(ROUNDS):
        start = clock()
        dist.send(told, group=group, group_dst=0)
        dist.recv(told, group=group, group_src=0)
        end = clock()
        best = min(best, (end - start, float(told) - (start + end) / 2))
    return best[1]
