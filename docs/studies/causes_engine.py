"""The engine's own runs, with what others wait for put in, and what is true of them.

    python docs/studies/causes_engine.py FOLDER    # a timeline, its schedule file and truth.json of each case

Two processes over shared memory. Compute is emulated: a layer waits so many seconds for each token, so that a device's
seconds of compute are known from the schedule alone. All else of a timeline was measured.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from odc_engine.job import Job, job_of
from odc_engine.runs.run import run
from odcsim import schedule, timeline
from odcsim.profile import Polynomial
from odcsim.schedule import Header, Schedule, ScheduleFile

SECONDS = 4e-3  # of a layer's forward pass for each token; the backward one takes twice that
LAYERS = 2  # of nano
EVEN = ((24, 24, 24), (24, 24, 24))
UNEVEN = ((40, 12, 24), (12, 20, 12))
SLOW = 1.5
MINIBATCHES = 4
NAMED = 0.05  # of the step, from which on there is a cause


@dataclass(frozen=True, slots=True)
class EngineCase:
    """Tokens of each device's microbatches, how much slower device 1 is, and the sync."""

    tokens: tuple[tuple[int, ...], ...]
    slow: float
    sync: str


CASES = {
    f"{name}-{sync}": EngineCase(tokens, slow, sync)
    for sync in ("collective", "on-demand")
    for name, tokens, slow in (("none", EVEN, 1.0), ("lengths", UNEVEN, 1.0), ("device", EVEN, SLOW))
}


def file_of(case: EngineCase) -> ScheduleFile:
    lengths = tuple(tokens for device in case.tokens for tokens in device)
    numbers = iter(range(len(lengths)))
    devices = tuple(tuple((next(numbers),) for _ in device) for device in case.tokens)
    header = Header("by hand", "nano", "by hand", max(lengths), len(devices), seed=0)
    return ScheduleFile(header, (Schedule.of(lengths, devices),) * MINIBATCHES)


def job(case: EngineCase, file: ScheduleFile) -> Job:
    made = job_of(file, sync=case.sync)
    layer, none = Polynomial(linear=SECONDS), Polynomial()
    profile = replace(made.cost.profile, forward=layer, backward=Polynomial(linear=2 * SECONDS), head=none, embed=none)
    cluster = replace(made.cost.cluster, slow=((1, case.slow),) if case.slow != 1 else ())
    return replace(made, emulate=True, cost=replace(made.cost, profile=profile, cluster=cluster))


def truth_of(case: EngineCase, ran: timeline.Timeline) -> Mapping[str, Any]:
    """Idle is what is not compute. Lengths cost what is left of it at equal pace."""
    tokens = np.array(case.tokens, dtype=float)
    worked = 3 * SECONDS * LAYERS * tokens * np.array([[1.0], [case.slow]])
    step = float(np.mean([block.had.max(axis=0).max(axis=-1) for block in ran.blocks]))
    met = worked.max(axis=0).sum() if case.sync == "collective" else worked.sum(axis=1).max()
    waited = float(met - worked.sum(axis=1).mean())
    cause = "" if waited < NAMED * step else "device" if case.slow != 1 else "lengths"
    return {"cause": cause, "idle": 1 - float(worked.sum(axis=1).mean()) / step, "step": step, "waited": waited}


def main(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    told = {}
    for name, case in CASES.items():
        file = file_of(case)
        schedule.write(file, path := home / f"{name}.jsonl")
        read = schedule.read(path)
        if run(read, job(case, read), str(home / f"{name}.npz"), quiet=True):
            sys.exit(f"{name} failed")
        told[name] = asdict(case) | dict(truth_of(case, timeline.read(home / f"{name}.npz")))
        print(name, told[name], flush=True)
    (home / "truth.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    main(Path(parser.parse_args().folder))
