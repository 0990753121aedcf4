"""The assignments that look at no cost: what a training run does before anybody balances it."""

from odcsim.heuristics.balancer import Balancer, Deal, Work


def native(work: Work) -> Deal:
    """The right one as the baseline of an untouched data loader: sample i to device i mod N, one per microbatch."""
    samples, devices = len(work.tokens), work.devices
    return _alike([[[i] for i in range(device, samples, devices)] for device in range(devices)])


def local_sort(work: Work) -> Deal:
    """The right one where samples must stay on their device: as native, but every device runs its longest sample first.

    Long samples then tend to meet long ones, which saves a collective run some of its waiting.
    """
    lengths, devices = work.tokens.tolist(), work.devices
    turns = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    slots: list[list[list[int]]] = [[] for _ in range(devices)]
    for i in turns:
        slots[i % devices].append([i])
    return _alike(slots)


def _alike(slots: list[list[list[int]]]) -> Deal:
    """Where samples do not divide by devices, the devices with fewer end on an empty microbatch: every step is met."""
    most = max(map(len, slots))
    return Deal([device + [[] for _ in range(most - len(device))] for device in slots])


NATIVE = Balancer("native", native, "one sample per microbatch, as they come", by_cost=False, even=False)
LOCAL_SORT = Balancer(
    "local-sort", local_sort, "as native, the longest first on each device", by_cost=False, even=False
)
