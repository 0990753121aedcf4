"""How far real runs are from what `odc_engine profile --quick` predicts, minutes later.

    python docs/studies/quick.py [--rounds N]

Each round measures two profiles of `tiny` on two devices, one with its spells of compute spread over its time, as the
command does, and one with them one behind the other; in turn the one and the other first. Then schedules that no fit
has seen are run for real, under both syncs. A prediction is off by the logarithm of all its seconds over all measured.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from guess import guess
from page_table import table

from odc_engine import backends
from odc_engine.job import Job
from odc_engine.measuring import profile as profiles
from odc_engine.measuring.profile import Leg
from odc_engine.measuring.survey import Survey
from odc_engine.runs.run import run
from odcsim import balance, catalog, timeline
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.fitting import fit
from odcsim.profile import Profile
from odcsim.recipe import Recipe
from odcsim.results.metrics import usage
from odcsim.schedule import Header, Schedule, ScheduleFile

LONGEST, DEVICES, SAMPLES, MINIBATCHES = 256, 2, 12, 4
WAYS = (("collective", "lb-micro"), ("on-demand", "lb-mini"))
MACHINE = Cluster(DEVICES, DEVICES, 1.0, 1.0, DEVICES)


def spread(legs: Sequence[Leg]) -> list[Leg]:
    return list(legs)


def in_a_row(legs: Sequence[Leg]) -> list[Leg]:
    """All that is compute as usual first."""
    return sorted(legs, key=lambda leg: not leg.name.startswith("compute"))


ORDERS = (in_a_row, spread)


@dataclass(frozen=True, slots=True)
class Found:
    """Of one prediction of one run."""

    order: str
    sync: str
    off: float
    low: float  # the profile's ends, as logarithms
    high: float
    fits: float  # what the fit alone leaves open, without drift


def measured(survey: Survey, order) -> fit.FitReport:  # type: ignore[no-untyped-def]
    legs = profiles.legs(survey)
    found = {leg.name: profiles.measure(survey, leg) for leg in order(legs)}
    return fit.examine(profiles.together([found[leg.name] for leg in legs]))


def cost_of(profile: Profile) -> Cost:
    """Of a machine whose devices swing as they were seen to."""
    machine = replace(MACHINE, swing=profile.swing, spell=profile.spell) if profile.swing else MACHINE
    return Cost(catalog.model("tiny"), profile, machine, Recipe(sync="on-demand"))


def planned(cost: Cost, balancer: str, seed: int) -> ScheduleFile:
    rng, schedules = np.random.default_rng(seed), []
    for _ in range(MINIBATCHES):
        lengths = np.clip(rng.lognormal(4.5, 0.8, SAMPLES), 8, LONGEST).astype(np.int64)
        devices = balance.balance(balancer, lengths, cost.sample_seconds(lengths), DEVICES, LONGEST)
        schedules.append(Schedule.of(lengths.tolist(), devices))
    header = Header(balancer, "tiny", "held out", LONGEST, DEVICES, seed)
    return ScheduleFile(header, tuple(schedules)).sealed()


def ran(file: ScheduleFile, cost: Cost, sync: str, path: Path) -> float:
    """Seconds of all its minibatches, for real."""
    job = Job(file.schedules, cost.by(sync=sync), backends.USUAL, emulate=False, timeout=300.0, seed=0)
    if run(file, job, str(path), quiet=True):
        raise SystemExit("a run failed, see above")
    return float(usage(timeline.read(path)).makespan.sum())


def round_of(number: int, folder: Path) -> list[Found]:
    survey = Survey(catalog.model("tiny"), quick=True, most=LONGEST, seed=number)
    orders = ORDERS if number % 2 else ORDERS[::-1]
    reports = {order.__name__: measured(survey, order) for order in orders}
    plain = Cost(catalog.model("tiny"), next(iter(reports.values())).profile, MACHINE, Recipe(sync="on-demand"))
    found = []
    for sync, balancer in WAYS:
        file = planned(plain, balancer, 100 + number)
        seconds = ran(file, plain, sync, folder / "run.npz")
        for name, report in reports.items():
            off = float(np.log(guess(cost_of(report.profile), file, sync).makespan.sum() / seconds))
            low, high = -np.log(report.profile.low), np.log(report.profile.high)
            alone = float(np.sqrt(max(0.0, high**2 - report.drift.reach**2)))
            found.append(Found(name, sync, off, -low, high, alone))
            print(f"{number} {sync} {name}: {off:+.3f}, interval {-high:+.3f} to {low:+.3f}", flush=True)
    return found


def lines(found: Sequence[Found]) -> list[list[str]]:
    rows = []
    for order in ORDERS:
        mine = [one for one in found if one.order == order.__name__]
        off = np.array([one.off for one in mine])
        held = np.mean([-one.high <= one.off <= -one.low for one in mine])
        alone = np.mean([abs(one.off) <= one.fits for one in mine])
        width = np.mean([one.high - one.low for one in mine])
        rows.append([order.__name__.replace("_", " "), str(len(mine)), f"{off.mean():+.1%}",
                     f"{np.sqrt((off**2).mean()):.1%}", f"{np.median(abs(off)):.1%}", f"{alone:.0%}", f"{held:.0%}",
                     f"{width:.2f}"])  # fmt: skip
    return rows


HEAD = ("spells", "predictions", "mean", "root mean square", "median size", "held by the fit alone", "held", "width")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8, metavar="N", help="of two profiles and two runs (8)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="odc-") as folder:
        found = [one for number in range(args.rounds) for one in round_of(number, Path(folder))]
    print(table(HEAD, lines(found), figures=True))


if __name__ == "__main__":
    main()
