"""Hold predictions against real runs on this machine, and write what came out: `make validate`.

    python docs/studies/validate.py [--stages WORD] [--keep DIR] [-o docs/validation.md]

Profiles are measured first, by `odc_engine profile`. Then schedules that no fit has seen are predicted and run, under
every sync and balancer that suits it: on two devices with real compute (a few of them without recompute, too), on four
and eight with emulated compute.

With --keep, DIR gets what a stage measured (MODEL-BACKEND.json before its runs, STAGE-between.json between them), every
timeline, and `cases.json` after each stage. Profiles and cases of other stages that lie there are taken as they are, so
that `--stages real --keep DIR` measures one stage anew and writes both pages: summaries into PAGE.md, and every
schedule into PAGE-runs.md.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from agreement import Case, kept, results, schedules
from drift import steady
from guess import guess, without
from mixed import only, restored
from scatter import scatter
from stages import LONGEST, SEED, STAGES, Stage, planned, way, with_others

from odc_engine import backends
from odc_engine.job import Job
from odc_engine.measuring import profile as profiles
from odc_engine.measuring import recorded
from odc_engine.measuring.survey import Survey
from odc_engine.runs.run import run
from odcsim import catalog, measurements, timeline
from odcsim.catalog.estimates.recompute import under
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.executors.simulation import simulate
from odcsim.fitting import fit
from odcsim.measurements import Measurements
from odcsim.profile import Polynomial
from odcsim.recipe import Recipe
from odcsim.results.metrics import usage
from odcsim.results.validation import validate
from odcsim.schedule import ScheduleFile
from odcsim.support.outputs import check_writable, write_text
from odcsim.timeline import Timeline

PAGE = Path(__file__).parents[1] / "validation.md"
BEGIN, END = "<!-- begin results -->", "<!-- end results -->"
PICTURE = "images/validation.svg"  # beside the page
# A made-up machine for emulated compute: at least 5 ms for each step, beside which a wait's own error is small.
EMULATED = {
    "forward": Polynomial(8e-3, 8e-5, 3e-8),
    "backward": Polynomial(2.4e-2, 2.4e-4, 1e-7),
    "head": Polynomial(8e-3, 1.6e-4),
    "embed": Polynomial(5e-3),
}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run_once(stage: Stage, cost: Cost, sync: str, file: ScheduleFile, places: list[int], path: Path) -> Timeline:
    """Run the file's minibatches in another order, and put what came out back into the file's."""
    mixed = ScheduleFile(file.header, tuple(file.schedules[n] for n in places)).sealed()
    job = Job(
        schedules=mixed.schedules,
        cost=cost.by(sync=sync),
        backend=backends.chosen(stage.backend),
        emulate=stage.emulate,
        timeout=60.0,
        seed=SEED,
    )
    if run(mixed, job, str(path), quiet=True):
        raise SystemExit("a run failed, see above")
    return restored(timeline.read(path), places, file.header.digest)


def held(stage: Stage, known: Measurements, folder: Path) -> list[Case]:
    """Run every schedule and predict it. Repeats of one sync lie between those of the others."""
    before = cost_of(stage, known)
    plans = {sync: planned(stage, before, sync) for sync in stage.syncs}
    files = {sync: with_others(stage, file) for sync, (file, _) in plans.items()}
    runs: dict[str, list[Timeline]] = {sync: [] for sync in stage.syncs}
    fresh = []
    for number in range(stage.repeats):
        for sync, file in files.items():
            own, total = len(plans[sync][1]), len(file.schedules)
            path = folder / f"{stage.name}-{sync}-{number}.npz"
            line = run_once(stage, before, sync, file, way(file, own, number), path)
            runs[sync].append(line)
            if sync in backends.chosen(stage.backend).profiled:
                others = only(line, range(own, total))
                fresh.append(recorded.rows(others, file.schedules, before.model, before.recipe.dtype))
            say(f"{stage.name}: {sync}, run {number + 1} of {stage.repeats} done, {own} schedules")
    if not stage.emulate:
        known = renewed(known, fresh)
        measurements.write(known, folder / f"{stage.name}-between.json")
    cost, machine = cost_of(stage, known), f"{known.date}, {known.hardware}, {known.versions}"
    return [
        case
        for sync, (_, cases) in plans.items()
        for case in judged(stage, sync, cost, before, files[sync], cases, runs[sync], machine)
    ]


def renewed(known: Measurements, fresh: Sequence[recorded.Rows]) -> Measurements:
    """What was measured between the runs in the place of what was measured before them, wherever that is the same."""
    anew = {row.kind for rows in fresh for row in rows.compute}
    old = replace(
        known,
        compute=tuple(row for row in known.compute if row.alone or row.kind not in anew),
        transfers=tuple(row for row in known.transfers if not row.computing),
        constants=(),
    )
    found = [replace(known, compute=rows.compute, transfers=rows.transfers, constants=rows.constants) for rows in fresh]
    return profiles.together([old, *found])


def judged(
    stage: Stage,
    sync: str,
    cost: Cost,
    before: Cost,
    whole: ScheduleFile,
    cases: list[tuple[str, int, str]],
    runs: list[Timeline],
    machine: str,
) -> list[Case]:
    """Predictions beside what was measured."""
    told, measured = guess(cost, whole, sync), [usage(line) for line in runs]
    less = {name: guess(other, whole, sync).makespan for name, other in without(cost).items()}
    less["measuring between the runs"] = guess(before, whole, sync).makespan
    spans = np.array([one.makespan for one in measured])
    calmed = steady(spans, [way(whole, len(cases), number) for number in range(len(runs))], len(cases))
    idle = np.median([1 - one.compute / one.makespan / stage.devices for one in measured], axis=0)
    calm = replace(cost, cluster=one_machine(stage.devices))
    kinds = validate(simulate(whole, calm.by(sync=sync)), runs).minibatches
    return [
        Case(
            stage.name,
            lengths,
            draw,
            sync,
            balancer,
            float(told.makespan[n]),
            tuple(spans[:, n].tolist()),
            tuple(calmed[:, n].tolist()),
            float(100 * (told.idle[n] - idle[n])),
            f"{kinds[n].furthest} {1e3 * kinds[n].furthest_seconds:+.0f} ms",
            {name: float(seconds[n]) for name, seconds in less.items()},
            machine,
        )
        for n, (lengths, draw, balancer) in enumerate(cases)
    ]


def survey(stage: Stage, seed: int) -> Survey:
    others = tuple(s.devices for s in STAGES if s.emulate and s.backend == stage.backend)
    return Survey(
        model=catalog.model(stage.model),
        devices=(2, *others),
        backend=backends.chosen(stage.backend),
        most=LONGEST,
        quick=not stage.emulate,
        seed=seed,
    )


def measured(stage: Stage, folder: Path) -> Measurements:
    """The stage's machine, as `odc_engine profile` measures it."""
    path = folder / f"{stage.model}-{stage.backend}.json"
    if not path.exists():
        found = []
        first = survey(stage, SEED + 1)
        for leg in (leg for leg in profiles.legs(first) if leg.recipe.recomputes or not stage.emulate):
            found.append(profiles.measure(first, leg))
            say(f"profile of {stage.model} on {stage.backend}: {leg.name} done")
        measurements.write(profiles.together(found), path)
    return measurements.read(path)


def cost_of(stage: Stage, known: Measurements) -> Cost:
    """By what was measured; of emulated compute everything else. Devices swing as much as they were seen to."""
    found, machine = fit.examine(known).profile, one_machine(stage.devices)
    if stage.emulate:
        found = replace(found, **EMULATED)
    elif found.swing:
        machine = replace(machine, swing=found.swing, spell=found.spell)
    model, recipe = catalog.model(stage.model), Recipe(recompute="full" if stage.recompute else "none")
    return Cost(model, under(found, model, stage.recompute), machine, recipe)


def one_machine(devices: int) -> Cluster:
    return Cluster(devices, devices, 1.0, 1.0, devices)


def appendix(page: Path) -> Path:
    """The page of every schedule, beside the page of results."""
    return page.with_name(f"{page.stem}-runs{page.suffix}")


def write(page: Path, text: str) -> None:
    """Put the results where they belong, and leave what is written around them."""
    before, _, rest = page.read_text().partition(BEGIN) if page.exists() else ("", "", "")
    write_text(page, f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2] or chr(10)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stages", default="", metavar="WORD", help="only stages whose name holds it")
    parser.add_argument("--keep", metavar="DIR", help="keep everything there, and take what other stages left")
    parser.add_argument("-o", dest="page", type=Path, default=PAGE, metavar="PAGE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="odc-") as temporary:
        check_writable(args.page)
        check_writable(appendix(args.page))
        folder = Path(args.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        chosen = [stage for stage in STAGES if args.stages in stage.name]
        if not chosen:
            parser.error(f"no stage's name holds '{args.stages}'")
        old = folder / "cases.json"
        cases = [case for case in kept(old) if case.stage not in {stage.name for stage in chosen}]
        for stage in chosen:
            cases += held(stage, measured(stage, folder), folder)
            write_text(old, json.dumps([asdict(case) for case in cases], indent=1))
    write(args.page, results(cases))
    write(appendix(args.page), schedules(cases))
    picture = args.page.parent / PICTURE
    picture.parent.mkdir(exist_ok=True)
    scatter(cases, picture)
    say(f"wrote {args.page}")


if __name__ == "__main__":
    main()
