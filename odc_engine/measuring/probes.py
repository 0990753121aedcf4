"""Probes that ask how much: what `make validate-gpu` measures. Each leaves its files in the folder of the hearing, as
they come, and goes on with what is there already."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from odc_engine.backends import cuda_ipc, nccl, threads
from odc_engine.backends.backend import Backend
from odc_engine.doctor.probes.base import CPU, FAILED, OK, Absent, Answer, Hearing
from odc_engine.job import Job
from odc_engine.measuring import rivals
from odc_engine.measuring.rivals import Contest, Rival, Runs
from odc_engine.measuring.survey import Survey
from odcsim import catalog, profile, timeline
from odcsim.catalog import fits
from odcsim.errors import InputError
from odcsim.fitting import fit, measurements
from odcsim.profile import Profile
from odcsim.recipe import Recipe

CONTEST = Contest("qwen2.5-0.5b", 4, 32768, 4, 2, "bfloat16")  # 44 GB in all, with slots
SMALL = Contest("nano", 2, 256, 2, 1, "float32")
PROFILE, WHOLE = "profile.json", "whole.json"
MEASURED = ".measured.json"  # what a profile was fitted to
OVERLAP, OVERHEAD = 0.80, 0.02
COLLECTIVE, SORTED, ON_DEMAND, ALIKE = (
    ("collective", "lb-micro"),
    ("collective", "sorted-slice"),
    ("on-demand", "lb-mini"),
    ("on-demand", "lb-micro"),
)
ROWS = {"cuda": threads.CUDA, CPU: threads.CPU}


def contestants(name: str, device: str) -> tuple[Rival, ...]:
    """Who runs against whom in a probe of this name."""
    row = ROWS[device]
    processes, library = (cuda_ipc.ROW, "processes.json"), (nccl.ROW, "nccl.json")
    return {
        "longalign": (
            Rival(*COLLECTIVE, row),
            Rival(*SORTED, row),
            Rival(*COLLECTIVE, row, best=True),
            Rival(*ON_DEMAND, row),
        ),
        # One schedule under both, so that nobody gains by another packing.
        "even": (Rival(*COLLECTIVE, row), Rival(*ALIKE, row)),
        "against-nccl": (
            Rival(*COLLECTIVE, *processes),
            Rival(*ON_DEMAND, *processes),
            Rival(*COLLECTIVE, *library),
            Rival(*COLLECTIVE, *library, best=True),
        ),
    }[name]


def profile_of_parts(hearing: Hearing) -> Answer:
    """What this GPU takes, in four groups of its SMs."""
    contest = hearing.size(CONTEST, SMALL)
    return _profiled(hearing, PROFILE, contest, ROWS[hearing.device], contest.devices)


def profile_of_processes(hearing: Hearing) -> Answer:
    return _profiled(hearing, "processes.json", CONTEST, cuda_ipc.ROW, several())


def profile_of_nccl(hearing: Hearing) -> Answer:
    return _profiled(hearing, "nccl.json", CONTEST, nccl.ROW, several())


def several() -> int:
    """GPUs, one for each process."""
    import torch

    if (count := torch.cuda.device_count()) < 2:
        raise Absent("processes that share a GPU take turns on it, and here is one")
    return min(count, 8)


def whole(hearing: Hearing) -> Answer:
    """What all of this GPU takes for a microbatch, of a dozen shapes: a catalogue's seconds."""
    from odc_engine.measuring.whole import measured

    contest = hearing.size(CONTEST, SMALL)
    found = measured(contest, hearing.device, hearing.folder)
    measurements.write(found, hearing.folder / (WHOLE + MEASURED))
    return _fitted(hearing, found, WHOLE)


def longalign(hearing: Hearing) -> Answer:
    """Uneven lengths: on-demand with lb-mini against collectives, which pack as suits them."""
    return _compared(hearing, "longalign", contestants("longalign", hearing.device))


def even(hearing: Hearing) -> Answer:
    """Samples that are all alike: what on-demand costs where nothing is to be gained."""
    answer = _compared(hearing, "even", contestants("even", hearing.device))
    collective, on_demand = (float(np.median(of)) for of in answer.data["runs"].values())
    overhead = on_demand / collective - 1
    told = f"on-demand takes {overhead:+.1%}, bound {OVERHEAD:+.0%}"
    return Answer(OK, told, answer.data | {"overhead": overhead} | _judged(hearing, overhead <= OVERHEAD))


def pushes(hearing: Hearing) -> Answer:
    """How much of pushes lies beside backward, in the runs of `longalign`."""
    ours = rivals.one_sided(contestants("longalign", hearing.device))
    paths = sorted(hearing.folder.glob(f"longalign-{ours.stem}-*.npz"))
    if not paths:
        raise Absent("the probe `longalign` has left no timelines")  # whatever it failed by is told there
    lines = [timeline.read(path) for path in paths]
    share, total = rivals.hidden(lines)
    told = f"{share:.1%} of the time of layers' pushes lies beside backward, of {total:.3f} s on all devices together"
    return Answer(
        OK, f"{told}; bound {OVERLAP:.0%}", {"share": share, "seconds": total} | _judged(hearing, share >= OVERLAP)
    )


def against_nccl(hearing: Hearing) -> Answer:
    """As `longalign`, of processes with a GPU each, and with NCCL for another rival."""
    return _compared(hearing, "longalign", contestants("against-nccl", hearing.device), several())


def exchange(hearing: Hearing) -> Answer:
    """How fast GPUs gather and push, against NCCL and their own copy."""
    from odc_engine.measuring.bandwidth import rates

    devices, every = several(), []
    for size in (16 << 20, 256 << 20, 1 << 20, 64 << 20):
        code, found = rates(devices, [size], cuda_ipc.ROW)
        if code:
            return Answer(FAILED, "a sum was wrong, or a device failed, see its log")
        every += [asdict(rate) for rate in found]
        hearing.note(rates=every)
    return Answer(OK, f"{len(every)} rates between {devices} devices")


def _judged(hearing: Hearing, reached: bool) -> dict[str, bool]:
    """Whether a bound is. Those are a GPU's: a CPU that stands in has none."""
    return {} if hearing.stands_in else {"reached": reached}


def _profiled(hearing: Hearing, name: str, contest: Contest, row: Backend, devices: int) -> Answer:
    """Goes on where an earlier call was ended."""
    from odc_engine.measuring import profile as profiles

    survey = Survey(
        model=catalog.model(contest.model),
        devices=(devices,),
        backend=row,
        most=contest.longest,
        quick=True,
        recipe=Recipe(dtype=contest.dtype),
    )
    survey.check()
    survey.check_here()
    folder = profiles.partial(hearing.folder / name)
    folder.mkdir(exist_ok=True)
    found = profiles.taken(survey, folder, lambda piece: hearing.note(piece=piece))
    measurements.write(found, hearing.folder / (name + MEASURED))
    return _fitted(hearing, found, name)


def _fitted(hearing: Hearing, found: measurements.Measurements, name: str) -> Answer:
    """Measurements are worth keeping where they cannot be fitted, too."""
    count = len(found.compute) + len(found.transfers) + len(found.constants)
    try:
        report = fit.examine(found)
    except ImportError as error:
        return Answer(OK, f"{count} measurements, not fitted here ({error})")
    profile.write(report.profile, hearing.folder / name)
    lines = report.lines()
    told = f"{count} measurements, {len(report.unexplained)} of them not explained by the fit"
    return Answer(OK, told, {"lines": lines} | _judged(hearing, report.good))


def _known(hearing: Hearing, rival: Rival, contest: Contest) -> Profile:
    """What weighs samples. Where nobody has measured it, the catalogue: a probe that failed stops no other."""
    try:
        return profile.read(hearing.folder / rival.known)
    except InputError:
        hearing.note(weighed_by="the catalogue")
        return fits.choose(catalog.model(contest.model), catalog.gpu("h200"), contest.devices)


def _compared(hearing: Hearing, lengths: str, against: Sequence[Rival], devices: int = 0) -> Answer:
    contest = hearing.size(CONTEST, SMALL)
    contest = replace(contest, devices=devices or contest.devices)
    costs = {rival: rivals.cost_of(contest, _known(hearing, rival, contest)) for rival in against}
    runs = Runs(hearing.folder, lengths, rivals.planned(contest, costs[against[0]], lengths, against))

    def done(rival: Rival, number: int, seconds: float) -> None:
        hearing.note(**{f"{rival.name} {number if number >= 0 else 'to warm up'}": seconds})

    runs.run({rival: _job(hearing, rival, costs[rival], contest) for rival in against}, done)
    took = {rival.name: rivals.seconds(lines).tolist() for rival, lines in runs.kept().items()}
    medians = {name: float(np.median(seconds)) for name, seconds in took.items()}
    ours = rivals.one_sided(against).name
    ratios = {name: median / medians[ours] for name, median in medians.items() if name != ours}
    told = "; ".join(f"{ratio:.3f} times as fast as {name}" for name, ratio in ratios.items())
    return Answer(OK, f"on-demand is {told}", {"runs": took, "ratios": ratios})


def _job(hearing: Hearing, rival: Rival, cost: Any, contest: Contest) -> Job:
    return Job(
        schedules=(),
        cost=cost.by(**rival.choices, dtype=contest.dtype),
        backend=rival.backend,
        emulate=False,
        timeout=hearing.patience,
        seed=rivals.SEED,
    )
