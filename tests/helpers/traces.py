"""Traces of GPUs as torch.profiler exports them, of a run that is made up: what ranks did is known to a microsecond.

A rank's units compute one after another, each when its all-gather is done; the gather of the next begins with it, on
NCCL's stream, and ends on all ranks at once. Reduce-scatters follow the backward's units, the optimizer follows all.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase

from odcsim.observed.run import Doing

HOST, DEVICE = 4000, 0  # process ids
MAIN, AUTOGRAD, COMPUTE, NCCL = 4000, 4001, 7, 20  # threads and streams
LAYER = 1_000_000  # elements of a unit
BYTES = 100  # microseconds that they take
UPDATE = 37


@dataclass(frozen=True)
class MadeStep:
    """One step of one rank, in microseconds."""

    microbatches: Sequence[Sequence[int]]  # seconds of each unit: forwards, then as many backwards
    tokens: Sequence[int]
    loading: int = 0
    collecting: int = 0
    late: int = 0  # before the first unit of the last microbatch, while nothing is under way
    moving: int = 0  # a copy from the host before the first unit


@dataclass
class MadeRank:
    """What it did: kinds with where they begin and end, and its collectives."""

    did: list[tuple[Doing, int, int]] = field(default_factory=list)
    came: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    windows: list[tuple[int, int]] = field(default_factory=list)
    computed: list[list[int]] = field(default_factory=list)  # of each step, microseconds of each microbatch
    events: list[dict] = field(default_factory=list)
    free: int = 0  # when its device has done all
    launches: int = 0


@dataclass(frozen=True)
class MadeRun:
    ranks: Sequence[MadeRank]

    def kinds(self, rank: int, step: int) -> list[Doing]:
        """Of every microsecond of the step."""
        made = self.ranks[rank]
        low, high = made.windows[step]
        found = [Doing.HOST] * (high - low)
        for kind, begin, end in sorted(made.did, key=lambda did: -did[0]):
            found[max(begin - low, 0) : max(end - low, 0)] = [kind] * (min(end, high) - max(begin, low))
        working = [i for i, kind in enumerate(found) if kind <= Doing.STAGE]
        return [
            Doing.EDGE if kind == Doing.HOST and not working[0] <= i <= working[-1] else kind
            for i, kind in enumerate(found)
        ]


def made(steps: Sequence[Sequence[MadeStep]], *, ahead: int = 0, told: bool = True, deferred: bool = False) -> MadeRun:
    """`steps`: of each, every rank's. `ahead`: microseconds in which a host launches before its device begins."""
    run = MadeRun([MadeRank(free=100) for _ in steps[0]])
    for number, step in enumerate(steps):
        _step(run, number, step, ahead, told, deferred)
    for rank in run.ranks:
        low, high = rank.windows[-1]
        rank.windows[-1] = low, max(high, rank.free)
    return run


def _step(run: MadeRun, number: int, step: Sequence[MadeStep], ahead: int, told: bool, deferred: bool) -> None:
    count, units = len(step[0].microbatches), len(step[0].microbatches[0])
    begins = [rank.free - ahead for rank in run.ranks]
    clocks = []
    for rank, own, begin in zip(run.ranks, step, begins, strict=True):
        loaded = begin + own.loading
        _host(rank, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, loaded, Doing.LOADER)
        _host(rank, "gc", loaded, loaded + own.collecting, Doing.COLLECTOR)
        clock = max(rank.free, loaded + own.collecting) + 5
        if own.moving:
            _device(rank, "Memcpy HtoD", clock, clock + own.moving, Doing.TRANSFER, ahead, cat="gpu_memcpy")
            clock += own.moving
        clocks.append(clock)
        rank.windows.append((max(begin, rank.free) if number else begin, 0))
        rank.computed.append([])
    for microbatch in range(count):
        last = microbatch == count - 1
        for i, own in enumerate(step if last else ()):
            clocks[i] += own.late
        clocks = _microbatch(run, step, microbatch, units, clocks, ahead, told, last or not deferred)
    for rank, clock, begin in zip(run.ranks, clocks, begins, strict=True):
        update = max(clock, rank.done[-1])
        rank.free = update + UPDATE
        _device(rank, "multi_tensor_apply_kernel", update, rank.free, Doing.COMPUTE, ahead)
        rank.events.append(_span("user_annotation", "Optimizer.step#AdamW.step", update - ahead, 30, HOST, MAIN))
        end = rank.free - ahead
        rank.events.append(_span("user_annotation", f"ProfilerStep#{number + 5}", begin, end - begin, HOST, MAIN))
        if number:
            rank.windows[-2] = rank.windows[-2][0], rank.windows[-1][0]
        rank.windows[-1] = rank.windows[-1][0], end


def _microbatch(run, step, number, units, clocks, ahead, told, scatters):
    """When each rank's device has computed all of it."""
    for rank, own, clock in zip(run.ranks, step, clocks, strict=True):
        rank.computed[-1].append(sum(own.microbatches[number]))
        rank.events.append(_span("user_annotation", "FSDP::root_pre_forward", clock - ahead - 3, 2, HOST, MAIN))
        dims = {"Input Dims": [[1000, 16], [1, own.tokens[number]], [], [], []]}
        rank.events.append(_span("cpu_op", "aten::embedding", clock - ahead, 1, HOST, MAIN, **dims))
    ready = list(clocks)
    for unit in range(units):
        if unit == 0:
            gathered = _meet(run, "AllGather", "_allgather_base", ready, ahead, told)
        begins = [max(clock, gathered) for clock in clocks]
        backward = unit >= units // 2
        for i, (rank, own) in enumerate(zip(run.ranks, step, strict=True)):
            clocks[i] = begins[i] + own.microbatches[number][unit]
            grid = [own.tokens[number], unit, 1]
            _device(rank, "gemm", begins[i], clocks[i], Doing.COMPUTE, ahead, grid=grid, block=[128, 1, 1])
            if backward:
                _backward(rank, begins[i] - ahead - 1)
            elif unit + 1 == units // 2:
                _backward(rank, clocks[i] - ahead - 1)
        if unit + 1 < units:
            turning = unit + 1 == units // 2  # its gather comes with the backward
            gathered = _meet(run, "AllGather", "_allgather_base", clocks if turning else begins, ahead, told)
        if backward and scatters:
            _meet(run, "ReduceScatter", "_reduce_scatter_base", clocks, ahead, told, begins)
    return clocks


def _meet(run: MadeRun, kernel: str, name: str, ready: Sequence[int], ahead: int, told: bool, launched=None) -> int:
    came = [max(at, rank.done[-1] if rank.done else 0) for at, rank in zip(ready, run.ranks, strict=True)]
    done = max(came) + BYTES
    for rank, begin, launch in zip(run.ranks, came, launched or came, strict=True):
        args = {"Collective name": name, "In msg nelems": LAYER // len(run.ranks), "Out msg nelems": LAYER}
        args |= {"Group size": len(run.ranks), "dtype": "BFloat16", "Process Group Name": "0", "Seq": len(rank.done)}
        kernel_name = f"ncclDevKernel_{kernel}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        lead = begin - launch + ahead
        _device(rank, kernel_name, begin, done, Doing.MEETING, lead, stream=NCCL, **(args if told else {}))
        rank.came.append(begin)
        rank.done.append(done)
    return done


def _backward(rank: MadeRank, begin: int) -> None:
    name = "autograd::engine::evaluate_function: MmBackward0"
    rank.events.append(_span("cpu_op", name, begin, 2, HOST, AUTOGRAD))


def _host(rank: MadeRank, name: str, begin: int, end: int, kind: Doing) -> None:
    if begin < end:
        rank.events.append(_span("user_annotation", name, begin, end - begin, HOST, MAIN))
        rank.did.append((kind, begin, end))


def _device(rank, name, begin, end, kind, ahead, *, cat="kernel", stream=COMPUTE, **args):
    rank.launches += 1
    number = {"correlation": rank.launches}
    rank.events.append(_span("cuda_runtime", "cudaLaunchKernel", begin - ahead, 1, HOST, MAIN, **number))
    rank.events.append(_span(cat, name, begin, end - begin, DEVICE, stream, stream=stream, **number, **args))
    rank.did.append((kind, begin, end))


def _span(cat: str, name: str, begin: float, dur: float, pid: int, tid: int, **args: object) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": begin, "dur": dur, "args": args}


def trace(run: MadeRun, rank: int, *, skew: float = 0.0, world: int = 0) -> dict:
    """As JSON has it; `skew`: microseconds that the rank's clock is ahead."""
    events = [{**event, "ts": event["ts"] + skew} for event in run.ranks[rank].events]
    about = {"backend": "nccl", "rank": rank, "world_size": world or len(run.ranks)}
    return {"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}


def write(run: MadeRun, folder: Path, skews: Sequence[float]) -> list[Path]:
    paths = [folder / f"rank{rank}.json" for rank in range(len(run.ranks))]
    for rank, (path, skew) in enumerate(zip(paths, skews, strict=True)):
        path.write_text(json.dumps(trace(run, rank, skew=skew)))
    return paths


def files(folder: Path, *contents: dict) -> list[Path]:
    """One for each, whose name tells no rank."""
    paths = [folder / f"{letter}.json" for letter in ascii_lowercase[: len(contents)]]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(json.dumps(content))
    return paths
