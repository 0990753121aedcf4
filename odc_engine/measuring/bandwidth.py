"""How fast devices of this machine gather and push, against collectives over the same memory, gloo or NCCL, and plain
copying.

Rates count the bytes of the full tensor, all shards together, over the time of the slowest device. A copy reads and
writes each byte once, and so does a gather. A push reads the gradients, and reads and writes the sums: three passes for
the copy's two, so it cannot reach a copy's rate where memory is the limit. Times are of single processes, all at work
at once, each kept on one core as far as there are cores, or with a GPU, which copies within its own memory.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from odc_engine import backends
from odc_engine.backends.backend import Processes, Use
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.measuring.ground import GROUNDS, Bench, Ground
from odc_engine.measuring.survey import check_rates
from odc_engine.runs import launch
from odc_engine.runs.run import with_gpus
from odcsim.support import tables
from odcsim.support.outputs import write_text

TIMEOUT = 600.0
LEAST = 5  # rounds; a machine with something else to do interrupts most of them, so the best one counts
CEILINGS = tuple(ground.ceiling for ground in GROUNDS.values())


@dataclass(frozen=True, slots=True)
class Rate:
    """One way to move bytes, at its best round."""

    way: str
    devices: int
    bytes: int  # of the full tensor
    seconds: float  # of the slowest device in the best round
    gb_per_second: float
    of_memcpy: float  # over the rate at which all devices copy at once, in the same run


def bandwidth(
    devices: Sequence[int],
    sizes: Sequence[int],
    as_json: bool,
    backend: Processes = backends.USUAL,
    page: Path | None = None,
) -> int:
    """Measure, print, and draw where a page is asked for. Not 0 where a device failed."""
    check_rates(devices, sizes)
    use = Use(max(devices))
    for needed in (backend, backend.rival):
        if needed is not None:
            needed.needs(use)
    every: list[Rate] = []
    for n in devices:
        code, found = rates(n, sizes, backend)
        if code:
            return code
        if found and not as_json:
            print(as_text(found), flush=True)
        every += found
    report = {"schema": 1, "hardware": with_gpus(backend.hardware(use)), "rates": [asdict(r) for r in every]}
    if every and as_json:
        print(json.dumps(report, indent=2))
    if every and page:
        write_page(report, page)
    return 0


def write_page(report: dict[str, Any], path: Path) -> None:
    """The picture of what was measured, in one file."""
    from odcsim import plots  # plotly comes with it

    title = "How fast devices gather and push"
    figure = plots.embed(plots.bandwidth(report["rates"], report["hardware"]), "bandwidth")
    write_text(path, plots.document(title, [f"<h1>{title}</h1>", figure], script=plots.script()))


def rates(devices: int, sizes: Sequence[int], backend: Processes = backends.USUAL) -> tuple[int, list[Rate]]:
    """Start devices and measure. The exit code, and what was found; under torchrun device 0 alone has it."""
    with tempfile.TemporaryDirectory(prefix="odc-") as folder:
        path = Path(folder) / "rates.json"
        env = backend.env(Use(devices))
        code = launch.run(_measure, devices, TIMEOUT, tuple(sizes), str(path), backend, env=env)
        return code, [Rate(**entry) for entry in json.loads(path.read_text())] if path.exists() else []


def _measure(memory: SharedMemory, sizes: tuple[int, ...], path: str, backend: Processes) -> None:
    rates: list[Rate] = []
    pin(memory.rank)
    ground = GROUNDS[backend.device](backend, memory)
    for size in sizes:
        rates += measured(size, ground)
        if memory.rank == 0 and sys.stderr.isatty():
            print(f"{dist.get_world_size()} devices: {_named(size)} done", file=sys.stderr, flush=True)
    if memory.rank == 0:
        Path(path).write_text(json.dumps([asdict(r) for r in rates]))
    ground.close()


def pin(rank: int) -> None:
    """Keep this thread on a core of its own where there are enough. Threads that gloo has started stay free."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def measured(size: int, ground: Ground) -> list[Rate]:
    """Every way at one size. All devices call it together; each gets the rates."""
    bench = Bench(size, ground)
    ways = bench.ways()
    rounds = max(LEAST, min(ground.rounds, (1 << 29) // size))
    seconds = torch.zeros(len(ways), rounds, dtype=torch.float64)
    try:
        bench.prove()
        for r in range(rounds):  # round by round, so that a busy spell of the machine hits all ways alike
            for i, (move, repeats) in enumerate(ways.values()):
                seconds[i, r] = bench.timed(move, repeats)
    finally:
        bench.close()
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    best = dict(zip(ways, seconds.amin(dim=1).tolist(), strict=True))
    devices = dist.get_world_size()
    return [Rate(way, devices, size, s, size / s / 1e9, best[ground.ceiling] / s) for way, s in best.items()]


def _named(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def as_text(rates: Sequence[Rate]) -> str:
    """Two tables of one number of devices: rates, and rates over plain copying."""
    sizes = list(dict.fromkeys(r.bytes for r in rates))
    ways = list(dict.fromkeys(r.way for r in rates))
    found = {(r.way, r.bytes): r for r in rates}
    [ceiling] = set(ways) & set(CEILINGS)
    below = ways[ways.index(ceiling) + 1 :]
    head, widths = list(map(_named, sizes)), [-20, *[9] * len(sizes)]
    speeds = [[w, *(f"{found[w, s].gb_per_second:.2f}" for s in sizes)] for w in ways]
    shares = [[w, *(f"{found[w, s].of_memcpy:.0%}" for s in sizes)] for w in below]
    return "\n".join(
        [
            *tables.lines([[f"{rates[0].devices} devices, GB/s", *head], *speeds], widths),
            "",
            *tables.lines([[f"over {ceiling}", *head]], [-23, 6, *widths[2:]]),
            *tables.lines(shares, widths),
            "",
        ]
    )
