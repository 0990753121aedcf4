"""The Triton kernels on tensors of this GPU: right bytes, and rates beside a plain copy's."""

from collections.abc import Callable
from functools import partial
from typing import Any

from odc_engine.doctor.probes.base import FAILED, OK, Absent, Answer, Hearing

MB = 1 << 20
SIZES, DEVICES, ROUNDS = (256 * MB, 16 * MB, 64 * MB, 1 * MB, 1024 * MB), 4, 30
CASES, ODD, SMALL = 40, 10_007, 301  # elements of a shard, of which nothing is aligned
WRITERS, SLOTS = 8, 5 << 29  # bytes of slots: the last ones begin behind 2 GiB, and behind 4 of twice as many
LONG, PER_ELEMENT = (1 << 29) + 37, 4 * (4 + 2 + 1)  # bytes of each device's, with what is compared
FILLED, SMALL_ROOM = 0.8, 4 << 30  # of what is free; a CPU's is not touched


def probe(hearing: Hearing) -> Answer:
    right = checked(hearing.size(ODD, SMALL), hearing.device)
    hearing.note(right=right)
    if wrong := [name for name, good in right.items() if not good]:
        return Answer(FAILED, f"wrong bytes: {', '.join(wrong)}")
    if wrong := _drawn(hearing):
        return Answer(FAILED, f"wrong: {'; '.join(wrong[:3])}", {"wrong": wrong})
    if hearing.stands_in:
        return Answer(OK, "all right")
    from odc_engine.kernels import copies

    told = []
    for size in SIZES:
        every = rates(size)
        hearing.note(**{f"bytes_per_second_of_{size // MB}_MB": every, "copies": copies.counts()})
        shares = ", ".join(f"{name} {rate / every['copy']:.0%}" for name, rate in every.items() if name != "copy")
        told.append(f"{size // MB} MB: copy {every['copy'] / 1e9:.0f} GB/s (read and written), of which {shares}")
    return Answer(OK, f"all right; {told[0]}", {"told": told})


def large(hearing: Hearing) -> Answer:
    """Units whose slots end behind 2 and 4 GiB, and a dense tensor of over 2^31 elements: what 32 bits do not count.
    Where memory is short, as large as there is room for. A CPU touches the slots' first bytes alone."""
    from odc_engine.doctor.probes import shards
    from odc_engine.kernels import transfers

    room = int(FILLED * (SMALL_ROOM if hearing.stands_in else _free()))
    ends = [end for end in (SLOTS, 2 * SLOTS) if end <= room]
    elements = min(hearing.size(LONG, SMALL), room // PER_ELEMENT)
    if not ends:
        raise Absent(f"there is room for {room / 1e9:.1f} GB, and slots that pass 2 GiB take {SLOTS / 1e9:.1f}")
    for end in ends:
        shards.check_far_apart(transfers, hearing.device, WRITERS, end // WRITERS)
        hearing.note(slots_end_at=end)
    shards.check_long(transfers, hearing.device, elements)
    told = f"slots of up to {ends[-1] / 2**30:.1f} GiB, shards of {elements} elements for {DEVICES} devices"
    return Answer(OK, f"all right: {told}", {"elements": elements, "room": room})


def _free() -> int:
    """Bytes of the GPU."""
    import torch

    return int(torch.cuda.mem_get_info()[0])


def _drawn(hearing: Hearing) -> list[str]:
    """What does not hold of cases that are drawn: odd sizes and places, launches, dtypes."""
    from odc_engine.doctor.probes import shards
    from odc_engine.kernels import transfers

    laws: dict[str, Callable[[], None]] = {}
    for seed in range(hearing.size(CASES, 2)):
        case = shards.drawn(seed, hearing.device, *hearing.size((20_000, (256, 4096), (1, 600)), (99, (64,), (1, 7))))
        laws |= {
            f"gather of {case}": partial(shards.check_gather, transfers, case),
            f"add of {case}": partial(shards.check_add, transfers, case, seed % 4),
            f"write of {case}": partial(shards.check_write, transfers, case, 1 + seed % 3),
            f"total of {case}": partial(shards.check_total, transfers, case, [(1 + seed + i) % 4 for i in range(4)]),
        }
    if not hearing.stands_in:
        laws["many streams"] = partial(shards.check_streams, transfers)
        laws["rounding"] = partial(shards.check_rounding, transfers)
    wrong = []
    for name, law in laws.items():
        try:
            law()
        except AssertionError:
            wrong.append(name)
    hearing.note(cases=len(laws), wrong=wrong)
    return wrong


def checked(n: int, where: str) -> dict[str, bool]:
    """Small whole numbers, whose sums are exact."""
    import torch

    from odc_engine.kernels import transfers

    arenas = [torch.zeros(n, device=where) for _ in range(DEVICES)]
    place = transfers.Shards(transfers.table([a.data_ptr() for a in arenas], where), 1, 0, n)
    whole = (torch.arange(DEVICES * n, device=where) % 100).float()
    expected, out = whole.view(DEVICES, n), torch.zeros_like(whole)
    right = {}
    transfers.write(place, whole, first=True)
    right["write"] = torch.equal(torch.stack(arenas), expected)
    transfers.gather(place, out, torch.float32)
    right["gather"] = torch.equal(out, whole)
    transfers.add(place, whole.bfloat16())
    right["add"] = torch.equal(torch.stack(arenas), 2 * expected)
    slots = torch.zeros(DEVICES, n + 1, device=where)
    slots[:, :n] = expected
    transfers.total(slots, DEVICES, n, out[:n])
    right["total"] = torch.equal(out[:n], expected.sum(0))
    return right


def rates(size: int) -> dict[str, float]:
    """Bytes read and written in a second, moving `size` at a time. An atomic sum passes over memory three times."""
    import torch

    from odc_engine.kernels import transfers
    from odc_engine.kernels.copies import Parts

    n = size // 4 // DEVICES
    whole, spare = torch.randn(2, DEVICES * n, device="cuda")
    arenas = torch.randn(DEVICES, n, device="cuda")  # a GPU moves zeros faster
    place = transfers.Shards(transfers.table([a.data_ptr() for a in arenas], "cuda"), 0, 0, n)
    parts = Parts(list(arenas))
    moves: dict[str, tuple[int, Callable[[], Any]]] = {
        "copy": (2, lambda: spare.copy_(whole)),
        "gather": (2, lambda: parts.collect(spare)),
        "write": (2, lambda: transfers.write(place, whole, first=True)),
        "add": (3, lambda: transfers.add(place, whole)),
    }
    return {name: passes * size / fastest(move) for name, (passes, move) in moves.items()}


def fastest(move: Callable[[], Any]) -> float:
    """Seconds of one move in the best round."""
    from odc_engine.places.streams import lasted

    return min(lasted(move, 1) for _ in range(ROUNDS))
