"""The Triton kernels on tensors of this GPU: right bytes, and rates beside a plain copy's."""

from collections.abc import Callable
from typing import Any

from odc_engine.doctor.probes.base import FAILED, OK, Answer
from odc_engine.doctor.probes.driver import need, need_torch
from odc_engine.errors import FOR_GPUS

MB = 1 << 20
SIZE, DEVICES, ROUNDS = 256 * MB, 4, 30
ODD = 10_007  # elements of a shard, of which nothing is aligned


def probe() -> Answer:
    need_torch()
    need("triton", FOR_GPUS)
    wrong = [name for name, right in checked(ODD, "cuda").items() if not right]
    if wrong:
        return Answer(FAILED, f"wrong bytes: {', '.join(wrong)}")
    every = rates(SIZE)
    told = ", ".join(f"{name} {rate / every['copy']:.0%}" for name, rate in every.items() if name != "copy")
    found = f"all right; {SIZE // MB} MB: copy {every['copy'] / 1e9:.0f} GB/s (read and written), of which {told}"
    return Answer(OK, found, {"bytes": SIZE, "bytes_per_second": every})


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

    n = size // 4 // DEVICES
    whole, spare = torch.zeros(2, DEVICES * n, device="cuda")
    arenas = torch.zeros(DEVICES, n, device="cuda")
    place = transfers.Shards(transfers.table([a.data_ptr() for a in arenas], "cuda"), 0, 0, n)
    moves: dict[str, tuple[int, Callable[[], Any]]] = {
        "copy": (2, lambda: spare.copy_(whole)),
        "gather": (2, lambda: transfers.gather(place, spare, torch.float32)),
        "write": (2, lambda: transfers.write(place, whole, first=True)),
        "add": (3, lambda: transfers.add(place, whole)),
    }
    return {name: passes * size / fastest(move) for name, (passes, move) in moves.items()}


def fastest(move: Callable[[], Any], repeats: int = 1) -> float:
    """Seconds of one move in the best round."""
    from odc_engine.places.streams import lasted

    return min(lasted(move, repeats) for _ in range(ROUNDS))
