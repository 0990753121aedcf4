"""One GPU as several devices: do green contexts of one split have SMs of their own, and does work of different lengths
in them end at different times?"""

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odc_engine.doctor.probes.base import FAILED, OK, Answer
from odc_engine.doctor.probes.driver import need, need_torch
from odc_engine.errors import FOR_GPUS
from odc_engine.places.queues import queues

if TYPE_CHECKING:
    from torch import Tensor

    from odc_engine.places.green import Partition

DEVICES = 4
SIDE, REPEATS = 4096, 20  # of the matrices, and multiplications of the shortest share
ROUNDS = 3  # the best of them: a thread's first multiplication may find its library not ready, or get it memory
PROGRAMS = 8192  # enough that each SM gets some


def probe() -> Answer:
    os.environ.update(queues(os.environ))  # as a run does
    gpu = need_torch()
    need("cuda.bindings.driver", FOR_GPUS)
    from odc_engine.places import green

    parts = green.partitions(DEVICES, gpu.sms // DEVICES // 8 * 8)
    alone = _multiplied(parts[:1], [REPEATS])[0]
    together = _multiplied(parts, [REPEATS] * DEVICES)
    unequal = _multiplied(parts, [REPEATS * (i + 1) for i in range(DEVICES)])
    data: dict[str, Any] = {
        "sms": [p.sms for p in parts],
        "seconds_alone": alone,
        "seconds_together": together,
        "seconds_unequal": unequal,
        "interference": max(together) / alone,
    }
    shared = _shared(parts, data)
    found = (
        f"{DEVICES} x {parts[0].sms} of {gpu.sms} SMs{'' if shared is None else f', {shared} in two of them'}; the same"
        f" work takes {data['interference']:.2f} times as long with all busy; shares of 1 to {DEVICES} end at "
        + ", ".join(f"{s / unequal[-1]:.0%}" for s in unequal)
    )
    # In turn instead of at once, all would take DEVICES times as long, and end together.
    good = not shared and data["interference"] < 1.5 and unequal[0] < 0.6 * unequal[-1]
    return Answer(OK if good else FAILED, found, data)


def _multiplied(parts: "Sequence[Partition]", repeats: Sequence[int]) -> list[float]:
    """Seconds from a common start until each partition has done its multiplications, in the round that ended first."""
    return min((_round(parts, repeats) for _ in range(ROUNDS)), key=max)


def _round(parts: "Sequence[Partition]", repeats: Sequence[int]) -> list[float]:
    """Each partition is given its work by a thread, and starts at a mark of the first one's stream."""
    import torch

    matrices = [torch.randn(2, SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in parts]
    event: Any = torch.cuda.Event  # torch has no types for it
    start, *ends = (event(enable_timing=True) for _ in range(1 + len(parts)))
    ready = threading.Barrier(len(parts))
    torch.cuda.synchronize()
    start.record(parts[0].stream)

    def work(i: int, two: "Tensor") -> None:
        with torch.cuda.stream(parts[i].stream):
            out = torch.empty_like(two[0])
            ready.wait()
            parts[i].stream.wait_event(start)
            for _ in range(repeats[i]):
                torch.mm(two[0], two[1], out=out)
            ends[i].record(parts[i].stream)
            parts[i].stream.synchronize()

    threads = [threading.Thread(target=work, args=(i, two)) for i, two in enumerate(matrices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [start.elapsed_time(end) / 1000 for end in ends]


def _shared(parts: "Sequence[Partition]", data: dict[str, Any]) -> int | None:
    """How many SMs did work of more than one partition. None where Triton is not there to look."""
    try:
        from odc_engine.kernels.where import sms
    except ImportError:
        return None
    import torch

    seen = []
    for part in parts:
        out = torch.full((PROGRAMS,), -1, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(part.stream):
            sms[(PROGRAMS,)](out)
            part.stream.synchronize()
        seen.append(set(out.tolist()))
    data["sms_seen"] = [len(each) for each in seen]
    return sum(map(len, seen)) - len(set().union(*seen))
