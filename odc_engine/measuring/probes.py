"""Probes that ask how much: what `make validate-gpu` measures. Each leaves its files in the folder of the hearing, as
they come, and goes on with what is there already."""

from dataclasses import asdict

from odc_engine.backends import cuda_ipc, nccl
from odc_engine.backends.backend import Backend
from odc_engine.doctor.probes.base import FAILED, OK, Absent, Answer, Hearing
from odc_engine.measuring.survey import Survey
from odcsim import catalog, profile
from odcsim.fitting import fit, measurements
from odcsim.recipe import Recipe

MODEL, SMALL = "qwen2.5-0.5b", "nano"
LONGEST, FEW = 32768, 256  # tokens of the fullest microbatch
DTYPES = ("bfloat16", "float32")  # on a GPU, and on a CPU that stands in for it
WHOLE = "whole.json"
MEASURED = ".measured.json"  # what a profile was fitted to


def profile_of_processes(hearing: Hearing) -> Answer:
    return _profiled(hearing, "processes.json", cuda_ipc.ROW, several())


def profile_of_nccl(hearing: Hearing) -> Answer:
    return _profiled(hearing, "nccl.json", nccl.ROW, several())


def several() -> int:
    """GPUs, one for each process."""
    import torch

    if (count := torch.cuda.device_count()) < 2:
        raise Absent("processes that share a GPU take turns on it, and here is one")
    return min(count, 8)


def whole(hearing: Hearing) -> Answer:
    """What all of this GPU takes for a microbatch, of a dozen shapes: a catalogue's seconds."""
    from odc_engine.measuring.whole import measured

    model = catalog.model(hearing.size(MODEL, SMALL))
    found = measured(model, hearing.size(LONGEST, FEW), hearing.size(*DTYPES), hearing.device, hearing.folder)
    measurements.write(found, hearing.folder / (WHOLE + MEASURED))
    return _fitted(hearing, found, WHOLE)


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


def _profiled(hearing: Hearing, name: str, row: Backend, devices: int) -> Answer:
    """Goes on where an earlier call was ended."""
    from odc_engine.measuring import profile as profiles

    survey = Survey(
        model=catalog.model(MODEL),
        devices=(devices,),
        backend=row,
        most=LONGEST,
        quick=True,
        recipe=Recipe(dtype=DTYPES[0]),
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
