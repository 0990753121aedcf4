"""Seconds from PyTorch profiler traces of an FSDP run on GPUs, together with the lengths that each step held.

What a trace tells: how long a device's kernels computed in each step, apart from NCCL's and the optimizer's; how long
NCCL's all-gathers and reduce-scatters took, of which the shortest waited least; the optimizer step. What it does not:
forward from backward (kernels carry no such name), gaps that the host leaves between kernels, one-sided transfers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.fitting.events import (
    ABOUT,
    MICRO,
    OPTIMIZER,
    STEP,
    TOLD,
    is_collective,
    noted,
    numbered,
    read_batches,
    shortest,
    timed,
)
from odcsim.fitting.fit import FitReport, examine
from odcsim.fitting.microbatch_logs import read_lengths, split_in_words
from odcsim.measurements import Compute, Constant, Measurements
from odcsim.measurements import timed as sized
from odcsim.model import Model
from odcsim.recipe import USUAL, Recipe
from odcsim.support import budget

MARKS = ("gpu_user_annotation", "user_annotation")  # the device's own first: the host runs ahead of its kernels
SPAN = 1000  # bytes of a kernel, with what is made of it
SIZED = ("all-gather", "reduce-scatter")  # what a profile has seconds of by size
NOTES = (
    "From PyTorch profiler traces: seconds in which kernels ran, without NCCL's and the optimizer's; what the host "
    "leaves between them is not in it. Given to equal layers, {}; the constant counts as compute. Collectives: the "
    "shortest of each size, which waited least. One-sided transfers are not in a trace."
)


@dataclass(frozen=True, slots=True)
class DeviceTrace:
    """What one device's trace tells."""

    device: int
    devices: int
    steps: dict[int, float]  # seconds of compute in each profiler step
    transfers: tuple[tuple[str, int, int, float], ...]  # kind, devices, bytes, seconds
    optimizer: tuple[float, ...]


def read_trace(path: Path | str) -> DeviceTrace:
    path = Path(path)
    spans: list[dict[str, Any]] = []

    def take(events: list[dict[str, Any]]) -> None:
        for event in events:
            marks = event.get("cat") in MARKS and str(event.get("name", "")).startswith((STEP, OPTIMIZER))
            if not (marks or event.get("cat") == "kernel") or not timed(event):
                continue
            args = event.get("args")
            notes = {name: args[name] for name in TOLD if name in args} if isinstance(args, dict) else None
            kept = {name: event.get(name) for name in ("cat", "name", "ts", "dur")}
            spans.append(kept | ({"args": notes} if notes else {}))
        budget.check(SPAN * len(spans), f"{len(spans):,} kernels and more", path)

    about = read_batches(path, take).get(ABOUT)
    kernels = [e for e in spans if e["cat"] == "kernel"]
    if not kernels:
        raise InputError("holds no kernels", where=str(path), fix="profile with ProfilerActivity.CUDA on a GPU")
    ranges = _ranges(spans, STEP)
    if not ranges:
        raise InputError(f"holds no {STEP} ranges", where=str(path), fix="call profiler.step() after each step")
    optimizer = _ranges(spans, OPTIMIZER)
    mine = [k for k in kernels if not is_collective(str(k.get("name", "")))]
    busy = _union((k["ts"], k["ts"] + k["dur"]) for k in mine)
    for _, low, high in optimizer:  # which is measured by itself
        sides = [side for begin, end in busy for side in ((begin, min(end, low)), (max(begin, high), end))]
        busy = [(begin, end) for begin, end in sides if begin < end]
    transfers = list[tuple[str, int, int, float]]()
    for kernel in kernels:  # with what torch notes beside it
        call, took = noted(kernel.get("args")), MICRO * float(kernel["dur"])
        known = is_collective(str(kernel.get("name", ""))) and call.kind in SIZED and call.bytes and call.ranks
        if known and sized(took):
            transfers.append((call.kind, call.ranks, call.bytes, took))
    steps = {
        numbered(name, path): MICRO * sum(max(0.0, min(end, high) - max(begin, low)) for begin, end in busy)
        for name, low, high in ranges
    }
    who = [about.get(key) if isinstance(about, dict) else None for key in ("rank", "world_size")]
    return DeviceTrace(
        device=who[0] if type(who[0]) is int else 0,
        devices=who[1] if type(who[1]) is int else 1,
        steps=steps,
        transfers=tuple(transfers),
        optimizer=tuple(MICRO * (end - begin) for _, begin, end in optimizer),
    )


def fit_traces(
    traces: list[DeviceTrace], lengths: Path | str, model: Model, gpu: str, *, recipe: Recipe = USUAL
) -> FitReport:
    """A profile from traces of one or more devices of a run, and a CSV file of what each step held."""
    contents = read_lengths(lengths, one=len(traces) == 1)
    rows = []
    for trace in traces:
        for step, seconds in sorted(trace.steps.items()):
            key = (0 if len(traces) == 1 and trace.device not in {d for d, _ in contents} else trace.device, step)
            if key not in contents:
                problem = f"no lengths of step {step} on device {trace.device}"
                raise InputError(problem, where=str(lengths), fix="give a row for each microbatch of each step traced")
            if not sized(seconds):
                ran = f"kernels ran for {seconds:g} s" if seconds else "no kernel ran"
                raise InputError(f"{ran} in step {step}", where=str(lengths), fix="trace whole steps")
            every = [n for microbatch in contents[key] for n in microbatch]
            squares = float(model.squares(np.array(every)).sum())
            rows.append(Compute("microbatch", sum(every), squares, seconds, max(every), len(contents[key])))
    constants = [Constant("optimizer", t.devices, s) for t in traces for s in t.optimizer if sized(s)]
    hardware = f"{len(traces)} traces of {max(t.devices for t in traces)} devices"
    notes = NOTES.format(split_in_words(recipe))
    measurements = Measurements(
        model.name,
        gpu,
        tuple(rows),
        shortest([call for trace in traces for call in trace.transfers]),
        tuple(constants),
        hardware,
        transport="NCCL",
        notes=notes,
    )
    return examine(measurements, model.layers, recipe=recipe)


def _ranges(spans: list[dict[str, Any]], prefix: str) -> list[tuple[str, float, float]]:
    """Ranges with this name."""
    for category in MARKS:
        named = [s for s in spans if s.get("cat") == category and str(s.get("name", "")).startswith(prefix)]
        if named:
            return [(str(s["name"]), float(s["ts"]), float(s["ts"] + s["dur"])) for s in named]
    return []


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Kernels of several streams overlap; time in which any ran counts once."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
