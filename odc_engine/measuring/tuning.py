"""How a GPU's programs should share the kernels' work: every kernel under a small grid of launches, each beside a plain
copy of as many bytes in the same run: `odc_engine tune`.

It recommends and changes nothing: the engine launches as `transfers.USUAL` says. Rates count bytes read and written. A
copy, a gather and a slot's first write pass over memory twice, a sum on top three times, a total of W slots W + 1
times. Gathers and first writes that do not convert are batches of copies, the same under every launch. `beside
products` are bytes that are gathered in a second by which matrix products take longer for it: what is recommended goes
by that. Up to tens of MB a GPU's cache holds all of it, the copy's bytes as well as the kernels': shares are fair,
but rates say nothing of memory.
"""

import datetime
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from odc_engine.doctor.probes.base import Absent
from odc_engine.doctor.probes.driver import need, need_torch
from odc_engine.doctor.probes.selftest import NO_GPU
from odc_engine.errors import FOR_GPUS
from odcsim.support import tables
from odcsim.support.files import check_writable, write_text

MB = 1 << 20
SIZES = (1 * MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB)
BLOCKS, PER_PROGRAM, WARPS = (4096, 8192), (16, 8, 4, 2, 1), (8, 16)
DEVICES = 4  # arenas in one GPU's memory: this is about the kernels and not about links
CONVERTING, BESIDE = "gather to bf16", "beside products"
PASSES = {"copy": 2, "gather": 2, CONVERTING: 3 / 2, "write": 2, "write on top": 3, "add": 3, "total": DEVICES + 1}
SIDE, PRODUCTS, ROUNDS = 8192, 6, 3  # of matrices that are multiplied meanwhile, how many, and how often all of it
NOISE = 0.01  # of the products' time: a transfer that costs them less is told to cost as much
BOUNDED = ("gather", "write")  # these shall reach OF_COPY of the copy, from FROM bytes on
OF_COPY, FROM = 0.85, 16 * MB
ALIKE = 0.02  # launches that differ by less are taken as equally fast: the smaller one leaves more to compute


@dataclass(frozen=True, slots=True, order=True)
class Tried:
    """A launch (`transfers.Launch`, which needs Triton to be looked at)."""

    programs: int
    warps: int
    block: int

    def __str__(self) -> str:
        return f"{self.block} x {self.programs} x {self.warps}"


Rates = Mapping[str, float]  # bytes a second of each way, the copy among them
Found = Mapping[Tried, Mapping[int, Rates]]  # by size


def tune(output: Path) -> int:
    """Time, print, and write what came out. 3 where there is no GPU."""
    check_writable(output)
    try:
        gpu = need_torch()
        need("triton", FOR_GPUS)
    except Absent as absent:
        print(f"odc_engine tune: {absent}", file=sys.stderr)
        return NO_GPU
    usual, found = timed(grid(gpu.sms), SIZES, rates)
    print(as_text(usual, found))
    write_text(output, json.dumps(as_json(usual, found, gpu.name), indent=1) + "\n")
    return 0


def grid(sms: int) -> list[Tried]:
    """One program for each SM, or for some SMs together: those that have one do not multiply matrices meanwhile."""
    return [Tried(sms // every, warps, block) for block, every, warps in product(BLOCKS, PER_PROGRAM, WARPS)]


def timed(
    launches: Sequence[Tried], sizes: Sequence[int], rate: Callable[[int, Tried], Rates]
) -> tuple[Tried, dict[Tried, dict[int, Rates]]]:
    """The usual launch, and what every one reaches. Size by size, so that a GPU whose clocks drift does so for all."""
    from odc_engine.kernels.transfers import USUAL

    usual = Tried(USUAL.programs, USUAL.warps, USUAL.block)
    every = list(dict.fromkeys([usual, *launches]))
    found: dict[Tried, dict[int, Rates]] = {launch: {} for launch in every}
    for size in sizes:
        for launch in every:
            found[launch][size] = rate(size, launch)
    return usual, found


def share(rates: Rates, way: str) -> float:
    return rates[way] / rates["copy"]


def score(by_size: Mapping[int, Rates]) -> float:
    """The geometric mean of shares of the copy, over all sizes: of what a transfer costs compute beside it, where that
    is known, else of all kernels alone."""
    ways = next(iter(by_size.values()))
    kept = {BESIDE} if BESIDE in ways else set(ways) - {"copy"}
    shares = [share(rates, way) for rates in by_size.values() for way in kept]
    return math.exp(sum(map(math.log, shares)) / len(shares))


def chosen(usual: Tried, found: Found) -> Tried:
    """The usual one where none is clearly faster; else the smallest of those that are about as fast as the fastest."""
    best = max(map(score, found.values()))
    good = [launch for launch, by_size in found.items() if score(by_size) >= (1 - ALIKE) * best]
    return usual if usual in good else min(good, key=lambda launch: (launch.programs * launch.warps, launch))


def short(by_size: Mapping[int, Rates]) -> list[str]:
    """What does not reach its bound."""
    return [
        f"{way} of {size // MB} MB: {share(rates, way):.0%} of the copy"
        for size, rates in by_size.items()
        for way in BOUNDED
        if size >= FROM and share(rates, way) < OF_COPY
    ]


def reached(path: Path) -> bool:
    """Whether the launch that such a file recommends reaches all bounds."""
    told = json.loads(path.read_text())
    pick = told["chosen"]
    rows = [row for row in told["rates"] if {name: row[name] for name in pick} == pick]
    return not short({row["bytes"]: row["bytes_per_second"] for row in rows})


def as_text(usual: Tried, found: Found) -> str:
    """Of each size and kernel the copy's rate, and the shares of it that three launches reach."""
    pick = chosen(usual, found)
    head = ["", "size", "copy GB/s", f"usual {usual}", f"chosen {pick}", "best of all"]
    rows = [head]
    for way in (way for way in next(iter(found[usual].values())) if way != "copy"):
        for size, rates in found[usual].items():
            best = max(found, key=lambda launch: share(found[launch][size], way))
            shares = (share(found[launch][size], way) for launch in (usual, pick, best))
            told = [f"{each:.0%}" for each in shares]
            rows.append([way, f"{size // MB} MB", f"{rates['copy'] / 1e9:.0f}", *told[:2], f"{told[2]} {best}"])
    lines = tables.lines(rows, tables.fitted(rows))
    lines.append("block x programs x warps; shares are of the copy's bytes read and written in a second")
    lines += short(found[pick]) or [f"{' and '.join(BOUNDED)} reach {OF_COPY:.0%} from {FROM // MB} MB on"]
    return "\n".join(lines)


def as_json(usual: Tried, found: Found, hardware: str) -> dict[str, Any]:
    rows = [
        {**asdict(launch), "bytes": size, "bytes_per_second": dict(rates)}
        for launch, by_size in found.items()
        for size, rates in by_size.items()
    ]
    told = {"schema": 1, "hardware": hardware, "date": datetime.date.today().isoformat()}
    return {**told, "chosen": asdict(chosen(usual, found)), "usual": asdict(usual), "rates": rows}


def rates(size: int, launch: Tried) -> dict[str, float]:
    """Bytes that each way reads and writes in a second, moving `size` bytes of fp32."""
    from odc_engine.doctor.probes.kernels import fastest

    moved, repeats, ways = {"total": size // DEVICES}, min(16, max(1, 64 * MB // size)), moves(size, launch)
    told = {name: PASSES[name] * moved.get(name, size) / fastest(move, repeats) for name, move in ways.items()}
    return {**told, BESIDE: beside(ways[CONVERTING], PASSES[CONVERTING] * size)}


def beside(move: Callable[[], Any], moved: float) -> float:
    """Bytes that are moved in a second by which matrix products take longer for it, on a stream that goes before
    theirs. Half of their time could hide it."""
    import torch

    from odc_engine.doctor.probes.kernels import fastest
    from odc_engine.doctor.probes.together import ends

    stream: Any = torch.cuda.Stream  # torch has no types for it
    one, other = torch.randn(2, SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    out, usual, first = torch.empty_like(one), stream(), stream(priority=-1)
    products = (lambda: torch.mm(one, other, out=out), PRODUCTS)
    alone = min(ends([usual], [products])[0] for _ in range(ROUNDS))
    times = max(1, round(alone / 2 / fastest(move)))
    both = min(max(ends([usual, first], [products, (move, times)])) for _ in range(ROUNDS))
    return per_second_lost(times * moved, alone, both)


def per_second_lost(moved: float, alone: float, both: float) -> float:
    return moved / max(both - alone, NOISE * alone)


def interpreted(size: int, launch: Tried) -> dict[str, float]:
    """Each way's calls once, interpreted on a CPU, where they take no time that means anything."""
    for move in moves(size, launch, "cpu").values():
        move()
    return dict.fromkeys(PASSES, 1.0)


def moves(size: int, tried: Tried, where: str = "cuda") -> dict[str, Callable[[], Any]]:
    """Calls that each move so many bytes."""
    import torch

    from odc_engine.kernels import transfers
    from odc_engine.kernels.copies import Parts

    launch, n = transfers.Launch(tried.block, tried.programs, tried.warps), size // 4 // DEVICES
    whole, spare = torch.randn(2, DEVICES * n, device=where)
    half, arenas = spare.bfloat16(), list(torch.randn(DEVICES, n, device=where))  # a GPU moves zeros faster
    slots = torch.randn(DEVICES * n, device=where)
    table = transfers.table([arena.data_ptr() for arena in arenas], where)
    place = transfers.Shards(table, 0, 0, n)

    def call(kernel: Callable[..., None], *args: Any, **how: Any) -> Callable[[], Any]:
        def move() -> list[Any]:
            kernel(*args, **how)
            return arenas  # known to kernels by address alone, so somebody has to keep them

        return move

    parts = Parts(arenas)
    return {
        "copy": lambda: spare.copy_(whole),
        "gather": lambda: parts.collect(spare),
        CONVERTING: call(transfers.gather, place, half, torch.float32, launch),
        "write": lambda: parts.spread(whole),
        "write on top": call(transfers.write, place, whole, first=False, launch=launch),
        "add": call(transfers.add, place, whole, launch),
        "total": call(transfers.total, slots, DEVICES, n, spare[:n], launch),
    }
