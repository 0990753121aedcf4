"""The assignments that look at no cost: what a training run does before anybody balances it."""

Slots = list[list[list[int]]]  # device -> microbatch -> samples


def native(lengths: list[int], devices: int) -> Slots:
    """The right one as the baseline of an untouched data loader: sample i to device i mod N, one per microbatch."""
    return _alike([[[i] for i in range(device, len(lengths), devices)] for device in range(devices)])


def local_sort(lengths: list[int], devices: int) -> Slots:
    """The right one where samples must stay on their device: as native, but every device runs its longest sample first.

    Long samples then tend to meet long ones, which saves a collective run some of its waiting.
    """
    turns = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    slots: Slots = [[] for _ in range(devices)]
    for i in turns:
        slots[i % devices].append([i])
    return _alike(slots)


def _alike(slots: Slots) -> Slots:
    """Where samples do not divide by devices, the devices with fewer end on an empty microbatch: every step is met."""
    most = max(map(len, slots))
    return [device + [[] for _ in range(most - len(device))] for device in slots]
