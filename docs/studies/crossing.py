"""Both sides of a crossing, by the engine: the lead of on-demand as lengths become more alike, predicted and run.

    python docs/studies/crossing.py [--minibatches 3]

Compute is emulated: layers wait as long as the profile says. Everything else is real: transfers, meetings, and what the
engine itself takes. Both sides run the same minibatches, each by its best balancer.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from queues import SECONDS

from odc_engine.job import job_of
from odc_engine.runs import run
from odcsim import profile, timeline
from odcsim.decide.asking import ask
from odcsim.decide.break_even import cv, stretch
from odcsim.decide.decision import NOTABLE
from odcsim.decide.setting import Setting, plan
from odcsim.executors.simulation import simulate
from odcsim.reading import load
from odcsim.results.metrics import usage
from odcsim.schedule import ScheduleFile
from odcsim.support import tables

DEVICES, SAMPLES = 4, 4  # samples of each device
POWERS = (0.0, 0.1, 0.3, 1.0)  # of lengths over their mean
SIDES = {"collective": ("sorted-slice", "lb-micro"), "on-demand": ("lb-mini",)}
HEAD = ("variation", "lead: predicted", "engine", "  pays: predicted, engine")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minibatches", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for row in (HEAD, *rows(Path(folder), args.minibatches)):
            print(*tables.lines([row], (9, 17, 9, 0)), flush=True)


def rows(folder: Path, minibatches: int) -> Iterator[tuple[str, ...]]:
    profile.write(SECONDS, folder / "profile.json")
    for power in POWERS:
        trace = stretch(load("longalign"), power)
        asked = {"gpu": "a100", "profile": str(folder / "profile.json"), "devices": DEVICES, "minibatch": SAMPLES}
        setting = ask(trace, "nano", **asked, minibatches=minibatches, max_tokens=trace.longest)
        (before, measured_before), (after, measured_after) = (side(folder, setting, sync) for sync in SIDES)
        leads = before / after, measured_before / measured_after
        said = ["yes" if lead >= NOTABLE else "no" for lead in leads]
        yield f"{cv(trace):.2f}", f"{leads[0]:.3f}", f"{leads[1]:.3f}", f"  {said[0]}, {said[1]}"


def side(folder: Path, setting: Setting, sync: str) -> tuple[float, float]:
    """Seconds of the side's best balancer, as des predicts them and as the engine has them."""
    files = [plan(setting, name) for name in SIDES[sync]]
    predicted = [_seconds(simulate(file, setting.cost.by(sync=sync))) for file in files]
    best = predicted.index(min(predicted))
    return predicted[best], _seconds(engine(folder, files[best], sync))


def engine(folder: Path, file: ScheduleFile, sync: str) -> timeline.Timeline:
    job = job_of(file, sync=sync, backend="threads", emulate=True, profile=str(folder / "profile.json"))
    output = str(folder / "measured.npz")
    if run.run(file, job, output, quiet=True):
        raise SystemExit("the engine failed")
    return timeline.read(output)


def _seconds(ran: timeline.Timeline) -> float:
    return float(usage(ran).makespan.sum())


if __name__ == "__main__":
    main()
