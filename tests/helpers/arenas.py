"""Arenas of devices that are threads of the test's own process."""

import threading

import torch
from hypothesis import strategies as st

from odc_engine.backends.threads.memory import Team, ThreadMemory
from odc_engine.memory.arena import UnitShape

DTYPES = [torch.float32, torch.bfloat16]


def on_every_device(devices, work, timeout=10.0):
    """What `work(memory)` returns on each of so many threads."""
    team, found = Team(devices, timeout), {}
    threads = [
        threading.Thread(target=lambda rank=rank: found.update({rank: work(ThreadMemory(team, rank))}))
        for rank in range(devices)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == devices, "a device failed"
    return [found[rank] for rank in range(devices)]


units = st.lists(
    st.builds(UnitShape, st.just("unit"), st.integers(0, 70), st.integers(0, 70), st.sampled_from(DTYPES)),
    min_size=1,
    max_size=4,
)
