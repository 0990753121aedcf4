"""How a GPU's programs should share the kernels' work: what runs launch under a small grid of launches, each beside a
plain copy of as many bytes in the same run: `odc_engine tune`.

It recommends and changes nothing. There are two launches to set. Pushes run beside compute (`transfers.USUAL`): atomic
sums under `locked`, and under `slots` all pushes behind a minibatch's second. They are told by the bytes that they move
in a second by which matrix products take longer for them, and that decides. Slots are added up when all pushes are done
(`transfers.ALONE`), near ones by a merge, those of other nodes by a total, and how fast those are decides. Gathers and
first writes are batches of copies, the same under every launch, and no kernel's.

Rates count bytes read and written. A copy, a gather and a slot's first write pass over memory twice, a sum on top three
times, a total or a merge of W slots W + 1 times. Up to tens of MB a GPU's cache holds all of it, the copy's bytes as
well as the kernels': shares are fair, but rates say nothing of memory.
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
PER_SM = (4, 2, 1)  # programs of what runs alone
PASSES = {"copy": 2, "gather": 2, "write": 2, "write on top": 3, "add": 3, "total": DEVICES + 1, "merge": DEVICES + 1}
BESIDE = {way: f"{way} beside products" for way in ("add", "write on top")}  # what compute pays for
SUMS = ("total", "merge")  # of all writers: so much of the bytes that others move is one device's
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
Rate = Callable[[int, Tried], Rates]
Ways = Mapping[str, Callable[[], Any]]  # calls, by what they do


@dataclass(frozen=True, slots=True)
class Tuned:
    """The launch that the engine has, what every one reaches, and the ways that decide."""

    usual: Tried
    found: Found
    ways: tuple[str, ...]

    @property
    def chosen(self) -> Tried:
        """The usual one where none is clearly faster; else the smallest of those about as fast as the fastest."""
        best = max(map(self.score, self.found))
        good = [launch for launch in self.found if self.score(launch) >= (1 - ALIKE) * best]
        smallest = min(good, key=lambda launch: (launch.programs * launch.warps, launch))
        return self.usual if self.usual in good else smallest

    def score(self, launch: Tried) -> float:
        """The geometric mean of shares of the copy, over all sizes, of the ways that decide."""
        shares = [share(rates, way) for rates in self.found[launch].values() for way in self.ways]
        return math.exp(sum(map(math.log, shares)) / len(shares))


def tune(output: Path) -> int:
    """Time, print, and write what came out. 3 where there is no GPU."""
    check_writable(output)
    try:
        gpu = need_torch()
        need("triton", FOR_GPUS)
    except Absent as absent:
        print(f"odc_engine tune: {absent}", file=sys.stderr)
        return NO_GPU
    pushes, sums = beside_compute(grid(gpu.sms), SIZES, rates), alone(grid_alone(gpu.sms), SIZES, rates_alone)
    print(as_text(pushes, sums))
    write_text(output, json.dumps(as_json(pushes, sums, gpu.name), indent=1) + "\n")
    return 0


def grid(sms: int) -> list[Tried]:
    """One program for each SM, or for some SMs together: those that have one do not multiply matrices meanwhile."""
    return [Tried(sms // every, warps, block) for block, every, warps in product(BLOCKS, PER_PROGRAM, WARPS)]


def grid_alone(sms: int) -> list[Tried]:
    return [Tried(sms * each, warps, block) for block, each, warps in product(BLOCKS, PER_SM, WARPS)]


def beside_compute(launches: Sequence[Tried], sizes: Sequence[int], rate: Rate) -> Tuned:
    """Of what is launched while a device computes."""
    from odc_engine.kernels.transfers import USUAL

    return _timed(USUAL, launches, sizes, rate, tuple(BESIDE.values()))


def alone(launches: Sequence[Tried], sizes: Sequence[int], rate: Rate) -> Tuned:
    """Of what is launched when all pushes are done."""
    from odc_engine.kernels.transfers import ALONE

    return _timed(ALONE, launches, sizes, rate, SUMS)


def _timed(had: Any, launches: Sequence[Tried], sizes: Sequence[int], rate: Rate, ways: tuple[str, ...]) -> Tuned:
    """Size by size, so that a GPU whose clocks drift does so for all."""
    usual = Tried(had.programs, had.warps, had.block)
    every = list(dict.fromkeys([usual, *launches]))
    found: dict[Tried, dict[int, Rates]] = {launch: {} for launch in every}
    for size in sizes:
        for launch in every:
            found[launch][size] = rate(size, launch)
    return Tuned(usual, found, ways)


def share(rates: Rates, way: str) -> float:
    return rates[way] / rates["copy"]


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


def as_text(pushes: Tuned, sums: Tuned) -> str:
    """Of each size and kernel the copy's rate, and the shares of it that three launches reach."""
    lines = ["beside compute:", *_shares(pushes), "", "alone:", *_shares(sums), ""]
    lines.append("block x programs x warps; shares are of the copy's bytes read and written in a second")
    lines += short(pushes.found[pushes.chosen]) or [
        f"{' and '.join(BOUNDED)} reach {OF_COPY:.0%} from {FROM // MB} MB on"
    ]
    return "\n".join(lines)


def _shares(tuned: Tuned) -> list[str]:
    found, pick = tuned.found, tuned.chosen
    rows = [["", "size", "copy GB/s", f"usual {tuned.usual}", f"chosen {pick}", "best of all"]]
    for way in (way for way in next(iter(found[tuned.usual].values())) if way != "copy"):
        for size, rates in found[tuned.usual].items():
            best = max(found, key=lambda launch: share(found[launch][size], way))
            told = [f"{share(found[launch][size], way):.0%}" for launch in (tuned.usual, pick, best)]
            rows.append([way, f"{size // MB} MB", f"{rates['copy'] / 1e9:.0f}", *told[:2], f"{told[2]} {best}"])
    return tables.lines(rows, tables.fitted(rows))


def as_json(pushes: Tuned, sums: Tuned, hardware: str) -> dict[str, Any]:
    told = {"schema": 1, "hardware": hardware, "date": datetime.date.today().isoformat()}
    return {**told, **_told(pushes), "alone": _told(sums)}


def _told(tuned: Tuned) -> dict[str, Any]:
    rows = [
        {**asdict(launch), "bytes": size, "bytes_per_second": dict(rates)}
        for launch, by_size in tuned.found.items()
        for size, rates in by_size.items()
    ]
    return {"chosen": asdict(tuned.chosen), "usual": asdict(tuned.usual), "rates": rows}


def rates(size: int, launch: Tried) -> dict[str, float]:
    """Bytes that pushes read and write in a second, moving `size` bytes of fp32, and copies with them."""
    ways = pushing(size, launch)
    lost = {name: beside(ways[way], PASSES[way] * size) for way, name in BESIDE.items()}
    return _rates(size, ways) | lost


def rates_alone(size: int, launch: Tried) -> dict[str, float]:
    """Bytes that sums of all writers' slots read and write in a second, where these hold `size` bytes of fp32."""
    return _rates(size, summing(size, launch))


def _rates(size: int, ways: Ways) -> dict[str, float]:
    from odc_engine.doctor.probes.kernels import fastest

    moved, repeats = dict.fromkeys(SUMS, size // DEVICES), min(16, max(1, 64 * MB // size))
    return {name: PASSES[name] * moved.get(name, size) / fastest(move, repeats) for name, move in ways.items()}


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
    for move in (*pushing(size, launch, "cpu").values(), *summing(size, launch, "cpu").values()):
        move()
    return dict.fromkeys((*PASSES, *BESIDE.values()), 1.0)


def pushing(size: int, tried: Tried, where: str = "cuda") -> Ways:
    """Calls that each move so many bytes between a whole tensor and arenas, as gathers and pushes do."""
    import torch

    from odc_engine.kernels import transfers
    from odc_engine.kernels.copies import Parts

    launch, n = transfers.Launch(tried.block, tried.programs, tried.warps), size // 4 // DEVICES
    whole, spare = torch.randn(2, DEVICES * n, device=where)
    arenas = list(torch.randn(DEVICES, n, device=where))  # a GPU moves zeros faster
    table = transfers.table([arena.data_ptr() for arena in arenas], where)
    place = transfers.Shards(table, 0, 0, n)

    def call(kernel: Callable[..., None], **how: Any) -> Callable[[], Any]:
        def move() -> list[Any]:
            kernel(place, whole, launch=launch, **how)
            return arenas  # known to kernels by address alone, so somebody has to keep them

        return move

    parts = Parts(arenas)
    return {
        "copy": lambda: spare.copy_(whole),
        "gather": lambda: parts.collect(spare),
        "write": lambda: parts.spread(whole),
        "write on top": call(transfers.write, first=False),
        "add": call(transfers.add),
    }


def summing(size: int, tried: Tried, where: str = "cuda") -> Ways:
    """Calls that add up slots of so many bytes of fp32, after a minibatch of one push and of several."""
    import torch

    from odc_engine.kernels import transfers

    launch, n = transfers.Launch(tried.block, tried.programs, tried.warps), size // 4 // DEVICES
    whole, spare = torch.randn(2, DEVICES * n, device=where)
    slots = torch.randn(DEVICES * n, device=where)
    came = torch.randn(2 * DEVICES * n, device=where).bfloat16().view(torch.uint8)  # two gradients of 16 bits in each
    counts = torch.tensor([[0, -1], *[[2, 0]] * (DEVICES - 1)], dtype=torch.int32, device=where)
    return {
        "copy": lambda: spare.copy_(whole),
        "total": lambda: transfers.total(slots, DEVICES, n, spare[:n], launch),
        "merge": lambda: transfers.merge(came, counts, n, 0, launch),
    }
