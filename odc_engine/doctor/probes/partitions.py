"""One GPU as several devices: do green contexts of one split have SMs of their own, and does work of different lengths
in them end at different times?"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from odc_engine.doctor.probes.base import FAILED, OK, Answer, Hearing
from odc_engine.doctor.probes.together import ends

if TYPE_CHECKING:
    from odc_engine.places.green import Partition

DEVICES = 4
SIDE, REPEATS = 4096, 20  # of the matrices, and multiplications of the shortest share
SMALL = 128  # side of a matrix on a CPU
ROUNDS = 3  # the best of them: a thread's first multiplication may find its library not ready, or get it memory
PROGRAMS = 8192  # enough that each SM gets some


def probe(hearing: Hearing) -> Answer:
    parts = [] if hearing.stands_in else _parts()
    streams: list[Any] = [part.stream for part in parts] or [None] * DEVICES
    works = _multiplications(len(streams), *hearing.size(("cuda", SIDE), ("cpu", SMALL)))
    alone = _best(streams[:1], works, [REPEATS])[0]
    together = _best(streams, works, [REPEATS] * DEVICES)
    unequal = _best(streams, works, [REPEATS * (i + 1) for i in range(DEVICES)])
    interference = max(together) / alone
    hearing.note(seconds_alone=alone, seconds_together=together, seconds_unequal=unequal, interference=interference)
    found = (
        f"the same work takes {interference:.2f} times as long with all busy; shares of 1 to {DEVICES} end at "
        f"{', '.join(f'{s / unequal[-1]:.0%}' for s in unequal)}"
    )
    if hearing.stands_in:  # a CPU may have no core for each
        return Answer(OK, f"{DEVICES} threads: {found}")
    shared, split = _split(hearing, parts)
    # In turn instead of at once, all would take DEVICES times as long, and end together.
    good = not shared and interference < 1.5 and unequal[0] < 0.6 * unequal[-1]
    return Answer(OK if good else FAILED, f"{split}; {found}")


def _parts() -> "Sequence[Partition]":
    from odc_engine.places import green

    return green.partitions(DEVICES, green.share(DEVICES))


def _multiplications(count: int, where: str, side: int) -> list[Any]:
    import torch

    kind = torch.float32 if where == "cpu" else torch.bfloat16
    pairs = [torch.randn(2, side, side, device=where, dtype=kind) for _ in range(count)]
    return [partial(torch.mm, two[0], two[1], out=torch.empty_like(two[0])) for two in pairs]


def _best(streams: Sequence[Any], works: Sequence[Any], repeats: Sequence[int]) -> list[float]:
    """Seconds from a common start until each has done its multiplications, in the round that ended first."""
    given = list(zip(works, repeats, strict=False))
    return min((ends(streams, given) for _ in range(ROUNDS)), key=max)


def _split(hearing: Hearing, parts: "Sequence[Partition]") -> tuple[int | None, str]:
    """How many SMs did work of more than one partition, None where Triton is not there to look; and that in words."""
    import torch

    every = torch.cuda.get_device_properties(0).multi_processor_count
    told = f"{DEVICES} x {parts[0].sms} of {every} SMs"
    hearing.note(sms=[part.sms for part in parts])
    try:
        from odc_engine.kernels.where import sms
    except ImportError:
        return None, told
    seen = []
    for part in parts:
        out = torch.full((PROGRAMS,), -1, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(part.stream):
            sms[(PROGRAMS,)](out)
            part.stream.synchronize()
        seen.append(set(out.tolist()))
    hearing.note(sms_seen=[len(each) for each in seen])
    shared = sum(map(len, seen)) - len(set().union(*seen))
    return shared, f"{told}, {shared} in two of them"
