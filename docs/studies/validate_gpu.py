"""Try on one NVIDIA GPU what is claimed of it, and write what came out: `make validate-gpu`. No GPU has run it yet.

    python docs/studies/validate_gpu.py [--only STEP] [--keep DIR] [-o docs/validation-gpu.md]

Each step has a process and a limit of its own, and one that fails does not stop the others. What steps found is kept in
a folder: the same command goes on with those that are missing, and `--only` does one of them again. Clocks and other
settings are told as they are found, and never set. Exit status: 0 where every step that can be asked here has passed, 1
where one has not, 3 where there is no GPU.
"""

import argparse
import datetime
import io
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from agreement import table
from gpu_record import (
    DEVICES,
    DTYPE,
    LONGEST,
    MODEL,
    Row,
    compared,
    moved,
    overlap,
    runs,
    uniform,
)

from odc_engine.doctor.probes.base import Absent
from odc_engine.doctor.probes.driver import first_gpu
from odc_engine.doctor.probes.selftest import NO_GPU, ended

ROOT = Path(__file__).parents[2]
# A step each: one backend that hangs shall not use up the time of the others.
TESTS = tuple(
    f"test_{name}" for name in ("gpu_kernels", "gpu_threads", "shared_queue", "gpu_cuda_ipc", "gpu_nvshmem", "gpu_nccl")
)
PAGE, KEEP = ROOT / "docs/validation-gpu.md", ROOT / "validation-gpu.partial"
MB = 1 << 20
SIZES = (1 * MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB, 1024 * MB)


@dataclass(frozen=True, slots=True)
class Result:
    """What a step came to: did it reach what it has to, and what the page shows of it."""

    step: str
    good: bool | None  # None: it cannot be asked here
    seconds: float
    text: str
    date: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """`run(folder)` says whether all was well, and what the page shows. `limit`: seconds after which it is ended."""

    name: str
    asks: str
    limit: float
    run: Callable[[Path], tuple[bool, str]]


def said(command: Sequence[str]) -> tuple[int, str]:
    """Said again as it comes, so that the log has the last words of a command that is ended."""
    found = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert isinstance(process.stdout, io.BufferedReader)
        while words := process.stdout.read1():
            sys.stdout.buffer.write(words)
            sys.stdout.buffer.flush()
            found += words
    return process.returncode, found.decode(errors="replace").strip()


def machine(_: Path) -> tuple[bool, str]:
    """Clocks and limits are what somebody else has set, or nobody."""
    asked = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem,power.limit,mig.mode.current"
    code, text = said(["nvidia-smi", f"--query-gpu={asked}", "--format=csv"])
    import torch

    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {sys.version.split()[0]}"
    return code == 0, f"{fenced(text)}\n\n{versions}"


def selftest(_: Path) -> tuple[bool, str]:
    code, text = said([sys.executable, "-m", "odc_engine", "doctor", "--gpu-selftest"])
    return code == 0, fenced(text)


def tests(file: str, _: Path) -> tuple[bool, str]:
    code, text = said(
        [sys.executable, "-m", "pytest", "-v", "-m", "gpu", str(next((ROOT / "tests").rglob(f"{file}.py")))]
    )
    last = text.splitlines()[-30:]
    if code == 0 and " passed" not in last[-1]:
        raise Absent(f"No test of {file} can run: {last[-1].strip('= ')}")
    return code == 0, fenced("\n".join(last))


def bandwidth(_: Path) -> tuple[bool, str]:
    from odc_engine.doctor.probes.kernels import rates

    return moved({size: rates(size) for size in SIZES})


def exchange(_: Path) -> tuple[bool, str]:
    """Reached where every sum was right: what links reach is to be read, and has no bound."""
    told = ["bandwidth", "--backend", "cuda_ipc", "--devices", str(several())]
    code, text = said([sys.executable, "-m", "odc_engine", *told])
    return code == 0, fenced(text)


def several() -> int:
    """GPUs, one for each process."""
    import torch

    if (count := torch.cuda.device_count()) < 2:
        raise Absent("Processes that share a GPU take turns on it, and here is one")
    return min(count, 8)


def tuning(folder: Path) -> tuple[bool, str]:
    """A recommendation: the engine's launch stays as it is. Reached where the chosen one reaches its bounds."""
    from odc_engine.measuring import tuning as launches

    code, text = said([sys.executable, "-m", "odc_engine", "tune", "-o", str(folder / "launch.json")])
    return code == 0 and launches.reached(folder / "launch.json"), fenced(text)


def profile(folder: Path) -> tuple[bool, str]:
    return profiled(folder / "profile.json", DEVICES, "threads", "cuda")


def processes(folder: Path) -> tuple[bool, str]:
    return profiled(folder / "processes.json", several(), "cuda_ipc", "cpu")


def nccl(folder: Path) -> tuple[bool, str]:
    return profiled(folder / "nccl.json", several(), "torch", "cuda")


def profiled(path: Path, devices: int, backend: str, device: str) -> tuple[bool, str]:
    """Goes on where an earlier call was ended."""
    from odc_engine import backends
    from odc_engine.measuring import profile as profiles
    from odc_engine.measuring.plan import Plan
    from odcsim import catalog
    from odcsim.recipe import Recipe

    plan = Plan(
        model=catalog.model(MODEL),
        devices=(devices,),
        backend=backends.chosen(backend, device),
        most=LONGEST,
        quick=True,
        recipe=Recipe(dtype=DTYPE),
    )
    report = profiles.measured(plan, path)
    return report.good, fenced("\n".join(report.lines()))


def longalign(folder: Path) -> tuple[bool, str]:
    return compared(*runs(folder, "longalign", (Row("collective", "lb-micro"), Row("on-demand", "lb-mini"))))


def rivals(folder: Path) -> tuple[bool, str]:
    """As `longalign`, of processes with a GPU each, and with NCCL for the second rival."""
    own = {"backend": "cuda_ipc", "device": "cpu", "known": "processes.json"}
    rows = Row("collective", "lb-micro", **own), Row("on-demand", "lb-mini", **own)
    return compared(
        *runs(folder, "longalign", (*rows, Row("collective", "lb-micro", "torch", known="nccl.json")), several())
    )


def pushes(folder: Path) -> tuple[bool, str]:
    """Of the runs of the comparison."""
    from odcsim import timeline

    kept = sorted(folder.glob("longalign-on-demand-threads-*.npz"))
    if not kept:
        return False, "the step `longalign` has left no timelines"
    return overlap([timeline.read(path) for path in kept])


def even(folder: Path) -> tuple[bool, str]:
    """The same schedule under both, so nobody gains by another packing."""
    return uniform(*runs(folder, "even", (Row("collective", "lb-micro"), Row("on-demand", "lb-micro"))))


STEPS = (
    Step("machine", "what this is", 60, machine),
    Step("selftest", "does what the engine relies on hold here", 580, selftest),
    *(Step(file, "as far as it needs a GPU", 580, partial(tests, file)) for file in TESTS),
    Step("bandwidth", "kernels against a plain copy of the same run", 180, bandwidth),
    Step("exchange", "how fast GPUs gather and push, against NCCL and their own copy", 300, exchange),
    Step("tuning", "how programs should share the kernels' work", 300, tuning),
    Step("profile", "what this GPU takes, in four groups of its SMs", 580, profile),
    Step("processes", "what a GPU takes as a device by itself, beside others of its machine", 580, processes),
    Step("nccl", "what NCCL takes between the same GPUs", 580, nccl),
    Step("longalign", "uneven lengths, predicted and measured", 480, longalign),
    Step("rivals", "the same with a GPU for each device, and against NCCL", 580, rivals),
    Step("pushes", "how much of pushes lies beside backward", 60, pushes),
    Step("even", "what on-demand costs where nothing is to be gained", 300, even),
)


def fenced(text: str) -> str:
    return f"```text\n{text}\n```"


def attempt(step: Step, folder: Path) -> None:
    """In this process. Whatever goes wrong is the step's result."""
    start = time.perf_counter()
    good: bool | None
    try:
        good, text = step.run(folder)
    except Absent as absent:
        good, text = None, f"{absent}."
    except Exception:
        good, text = False, fenced(traceback.format_exc(limit=-3).strip())
    keep(Result(step.name, good, time.perf_counter() - start, text, datetime.date.today().isoformat()), folder)


def keep(result: Result, folder: Path) -> None:
    path = folder / f"{result.step}.result.json"
    path.with_suffix(".new").write_text(json.dumps(asdict(result), indent=1))
    path.with_suffix(".new").replace(path)


def kept(folder: Path) -> dict[str, Result]:
    every = (json.loads(path.read_text()) for path in folder.glob("*.result.json"))
    return {result.step: result for result in (Result(**entry) for entry in every)}


def apart(step: Step, folder: Path) -> None:
    """In a process of its own, since what goes wrong on a GPU takes its process along."""
    (folder / f"{step.name}.result.json").unlink(missing_ok=True)
    log = folder / f"{step.name}.log"
    start = time.perf_counter()
    command = [sys.executable, str(Path(__file__)), "--inside", step.name, "--keep", str(folder)]
    with log.open("wb") as out:
        code = ended(command, out, step.limit)
    if step.name not in kept(folder):
        why = f"no end within {step.limit:g} s" if code is None else f"ended with exit status {code}"
        last = log.read_text(errors="replace")[-2000:]
        text = f"{why}; its last words:\n\n{fenced(last)}"
        keep(Result(step.name, False, time.perf_counter() - start, text, datetime.date.today().isoformat()), folder)


def page(found: dict[str, Result], steps: Sequence[Step] = STEPS) -> str:
    """The record. A step that has not run is there by name, so that nobody takes what is missing for passed."""
    marks = {True: "reached", False: "**not reached**", None: "cannot be asked here"}
    rows = []
    for step in steps:
        came = found.get(step.name)
        told = [marks[came.good], f"{came.seconds:.0f} s"] if came else ["not run", ""]
        rows.append([f"`{step.name}`", step.asks, *told])
    parts = [
        "# Validation on a GPU",
        "Written by `make validate-gpu` (docs/studies/validate_gpu.py). Clocks and limits are as they were found.",
        table(("step", "question", "result", "took"), rows),
    ]
    for step in steps:
        if (result := found.get(step.name)) is not None:
            parts += [f"## {step.name}", f"{step.asks.capitalize()}? {result.date}.", result.text]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=names, metavar="STEP", help=f"one of {', '.join(names)}; done anew")
    parser.add_argument("--keep", type=Path, default=KEEP, metavar="DIR", help=f"what steps found ({KEEP.name})")
    parser.add_argument("--inside", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("-o", dest="page", type=Path, default=PAGE, metavar="PAGE")
    args = parser.parse_args(arguments)
    try:
        first_gpu()
    except Absent as absent:
        print(f"validate-gpu: {absent}", file=sys.stderr)
        return NO_GPU
    args.keep.mkdir(parents=True, exist_ok=True)
    by_name = {step.name: step for step in STEPS}
    if args.inside:
        attempt(by_name[args.inside], args.keep)
        return 0
    good = {name for name, result in kept(args.keep).items() if result.good}
    for step in [by_name[args.only]] if args.only else [s for s in STEPS if s.name not in good]:
        print(f"{step.name} ...", file=sys.stderr, flush=True)
        apart(step, args.keep)
        args.page.write_text(page(kept(args.keep)))
    found = kept(args.keep)
    args.page.write_text(page(found))
    return 0 if all(name in found and found[name].good is not False for name in names) else 1


if __name__ == "__main__":
    sys.exit(main())
