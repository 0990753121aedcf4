"""Both sides of a crossing over the network, by the engine: the lead of on-demand as cards become slower.

    python docs/studies/crossing_network.py [--minibatches 4]

Two nodes of two devices, which are processes of this machine behind cards of one rate (far_cards.py); layers wait as
long as the profile says. On demand a device pulls all that lies in the other node through its own card. A collective's
ring passes less through it, so that its cards carry as much more in a second. Both sides run the same minibatches, each
by its best balancer.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from crossing import SAMPLES, SIDES
from far import DEVICES, NODE, predicted
from far_cards import Behind
from queues import SECONDS

from odc_engine.job import Job, job_of
from odc_engine.runs import run
from odcsim import profile, timeline
from odcsim.decide.asking import ask
from odcsim.decide.decision import NOTABLE
from odcsim.decide.setting import Setting, plan
from odcsim.executors.simulation import simulate
from odcsim.reading import load
from odcsim.results.metrics import usage
from odcsim.schedule import ScheduleFile
from odcsim.support import tables

RATES = (1e6, 2e6, 3e6, 5e6, 50e6)  # of a card, bytes in a second
# The bytes that a device pulls from the other node, over those that a ring passes through each of a node's cards.
LESS = {"on-demand": 1.0, "collective": NODE * (DEVICES - NODE) / (DEVICES - 1)}
HEAD = ("card, MB/s", "lead: predicted", "engine", "  pays: predicted, engine")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minibatches", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for row in (HEAD, *rows(Path(folder), args.minibatches)):
            print(*tables.lines([row], (10, 17, 9, 0)), flush=True)


def rows(folder: Path, minibatches: int) -> Iterator[tuple[str, ...]]:
    profile.write(SECONDS, folder / "profile.json")
    trace = load("longalign")
    asked = {"gpu": "a100", "profile": str(folder / "profile.json"), "devices": DEVICES, "minibatch": SAMPLES}
    setting = ask(trace, "nano", **asked, minibatches=minibatches, max_tokens=trace.longest)
    for rate in RATES:
        (before, measured_before), (after, measured_after) = (side(folder, setting, sync, rate) for sync in SIDES)
        leads = before / after, measured_before / measured_after
        said = ["yes" if lead >= NOTABLE else "no" for lead in leads]
        yield f"{rate / 1e6:.0f}", f"{leads[0]:.3f}", f"{leads[1]:.3f}", f"  {said[0]}, {said[1]}"


def side(folder: Path, setting: Setting, sync: str, rate: float) -> tuple[float, float]:
    """Seconds of the side's best balancer, as des predicts them and as the engine has them."""
    best = min((ahead(folder, plan(setting, name), sync, rate) for name in SIDES[sync]), key=itemgetter(0))
    seconds, file, job = best
    output = str(folder / "measured.npz")
    if run.run(file, replace(job, backend=Behind("behind", node=NODE, rate=rate * LESS[sync])), output, quiet=True):
        raise SystemExit("the engine failed")
    return seconds, _seconds(timeline.read(output))


def ahead(folder: Path, file: ScheduleFile, sync: str, rate: float) -> tuple[float, ScheduleFile, Job]:
    # By slots, since a network adds nothing to a sum.
    job = job_of(file, sync=sync, accumulate="slots", emulate=True, profile=str(folder / "profile.json"))
    return _seconds(simulate(file, predicted(job, rate).by(sync=sync))), file, job


def _seconds(ran: timeline.Timeline) -> float:
    return float(usage(ran).makespan.sum())


if __name__ == "__main__":
    main()
