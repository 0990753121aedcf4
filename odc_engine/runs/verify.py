"""Verify a backend on this machine: compare a schedule's gradients with those of one process in fp64."""

import json
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from odc_engine.devices.run_device import RunDevice, drawn
from odc_engine.errors import EngineError
from odc_engine.job import Job
from odc_engine.packed import synthetic
from odc_engine.runs.start import check, on_devices
from odcsim.schedule import Schedule, ScheduleFile

BOUND = 1e-5  # fp32: what different orders of summation explain, with a margin


@dataclass(frozen=True, slots=True)
class Verdict:
    """The largest difference over the largest reference value, per parameter and over all."""

    max_relative_error: float
    bound: float
    ok: bool
    parameters: dict[str, float]


def verify(file: ScheduleFile, job: Job, as_json: bool) -> int:
    """Check every minibatch of the file with the same weights. Rank 0 prints the verdict. Returns nonzero beyond
    BOUND."""
    check(file, job)
    return on_devices(job, _verify, job, as_json)


def _verify(device: RunDevice, job: Job, as_json: bool) -> None:
    worst: dict[str, float] = {}
    for schedule in job.schedules:
        device.gradients(schedule)
        mine = device.whole_gradients()
        if device.rank == 0:
            reference = reference_gradients(job, schedule)
            for name, error in relative_errors(mine, reference).items():
                worst[name] = max(error, worst.get(name, 0.0))
        device.publish()
    device.close()
    if device.rank == 0:
        _report(Verdict(max(worst.values()), BOUND, max(worst.values()) <= BOUND, worst), as_json)


def reference_gradients(job: Job, schedule: Schedule) -> dict[str, Tensor]:
    """Return the minibatch's gradients of one process in fp64, one microbatch after the other."""
    model = drawn(job).cpu().double()
    for microbatch in schedule.contents():
        model(synthetic(schedule, microbatch, job.cost.model.vocab, job.seed)).backward()
    zero = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    return {name: zero[name] if p.grad is None else p.grad for name, p in model.named_parameters()}


def relative_errors(mine: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    """Largest |difference| over largest |reference| of each parameter; NaN counts as infinite."""
    errors = {}
    for name, expected in reference.items():
        scale = float(expected.abs().max()) if expected.numel() else 0.0
        difference = float((mine[name].double() - expected).abs().max()) if expected.numel() else 0.0
        relative = difference / scale if scale else difference
        errors[name] = relative if relative == relative else float("inf")
    return errors


def _report(verdict: Verdict, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"schema": 1, **asdict(verdict)}, indent=2), flush=True)
    else:
        for name, error in sorted(verdict.parameters.items(), key=lambda item: -item[1]):
            print(f"{error:10.2e}  {name}")
        word = "equal to" if verdict.ok else "NOT equal to"
        print(
            f"gradients {word} one process in fp64: largest relative error {verdict.max_relative_error:.2e}", flush=True
        )
    if not verdict.ok:
        raise EngineError(f"gradients differ by {verdict.max_relative_error:.2e}, more than {BOUND:g}")
