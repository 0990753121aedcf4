"""Hold predictions against real runs on this machine, and write what came out: `make validate`.

    python docs/validate.py [-o docs/validation.md]

Profiles are measured first, by `odc_engine profile`. Then schedules that no fit has seen are predicted and run, under
every sync and balancer that suits it: on two devices with real compute, on four and eight with emulated compute.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from agreement import Case, results

from odc_engine import profile as profiles
from odc_engine.job import Job
from odc_engine.run import run
from odcsim import balance, catalog, fit, load, measurements, timeline
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.measurements import Measurements
from odcsim.metrics import usage
from odcsim.profile import TRANSFERS, Polynomial, Profile
from odcsim.schedule import Header, Schedule, ScheduleFile
from odcsim.simulation import Simulation, simulate
from odcsim.timeline import Timeline
from odcsim.validation import validate

PAGE = Path(__file__).parent / "validation.md"
TRACES = ("longalign", "swe-smith", "aime-rl")
LONGEST, SHORTEST = 512, 16  # tokens: named traces are scaled down until their longest sample has so many
MINIBATCH = 4  # samples per device
SYNCS = ("collective", "on-demand")
SEED = 20260
# A made-up machine for emulated compute: at least 5 ms for each step, beside which a wait's own error is small.
EMULATED = {
    "forward": Polynomial(8e-3, 8e-5, 3e-8),
    "backward": Polynomial(2.4e-2, 2.4e-4, 1e-7),
    "head": Polynomial(8e-3, 1.6e-4),
    "embed": Polynomial(5e-3),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One machine that predictions are held against."""

    name: str
    devices: int
    model: str
    backend: str
    emulate: bool
    drawn: int  # minibatches of each distribution
    repeats: int


STAGES = (
    Stage("real", 2, "tiny", "shm", False, 1, 3),
    Stage("executor check, 4 devices", 4, "nano", "threads", True, 1, 3),
    Stage("executor check, 8 devices", 8, "nano", "threads", True, 1, 3),
)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def held_out(devices: int, draws: int) -> dict[str, list[np.ndarray]]:
    """Minibatches of three distributions, and pathological ones."""
    count, drawn = MINIBATCH * devices, {}
    for name in TRACES:
        trace = load(name)
        drawn[name] = [
            np.clip(trace.take(ids) * LONGEST // trace.longest, SHORTEST, LONGEST)
            for ids in trace.minibatches(count, draws, seed=SEED)
        ]
    one = np.full(count, 2 * SHORTEST)
    one[count // 2] = LONGEST
    drawn["one long among short"] = [one]
    drawn["all alike"] = [np.full(count, 240)]
    drawn["fewer than devices"] = [np.linspace(200, LONGEST, devices - 1).astype(np.int64)]
    return drawn


def planned(stage: Stage, cost: Cost, sync: str) -> tuple[ScheduleFile, list[tuple[str, int, str]]]:
    """Every minibatch planned by every balancer that suits the sync, in one file: one start of the devices."""
    schedules, cases = [], []
    for name, minibatches in held_out(stage.devices, stage.drawn).items():
        for draw, lengths in enumerate(minibatches):
            for balancer in balance.NAMES:
                if not balance.runs_with(balancer, sync):
                    continue
                devices = balance.balance(balancer, lengths, cost.sample_seconds(lengths), stage.devices, LONGEST)
                if all(all(device) for device in devices):  # the engine runs no microbatch without samples
                    schedules.append(Schedule(tuple(lengths.tolist()), devices))
                    cases.append((name, draw, balancer))
    header = Header("several", stage.model, "the profile's", LONGEST, stage.devices, SEED)
    return ScheduleFile(header, tuple(schedules)).sealed(), cases


def held(stage: Stage, known: Measurements, folder: Path) -> list[Case]:
    """Run every schedule and predict it. Repeats of one sync lie between those of the other, and where compute is real,
    more of the profile is measured between them: a host's speed drifts by more than a model's error."""
    cost = Cost(catalog.model(stage.model), fitted(stage, known), one_machine(stage.devices))
    files = {sync: planned(stage, cost, sync) for sync in SYNCS}
    runs: dict[str, list[Timeline]] = {sync: [] for sync in SYNCS}
    for number in range(stage.repeats):
        for sync, (file, cases) in files.items():
            if not stage.emulate:
                known = profiles.together([known, again(stage, number)])
            job = Job(file.schedules, cost, sync, stage.backend, "locked", "fsdp2", stage.emulate, 60.0, SEED)
            path = folder / f"{stage.name}-{sync}-{number}.npz"
            if run(file, job, str(path), quiet=True):
                raise SystemExit("a run failed, see above")
            runs[sync].append(timeline.read(path))
            say(f"{stage.name}: {sync}, run {number + 1} of {stage.repeats} done, {len(cases)} schedules")
    used = fitted(stage, known)
    cost = replace(cost, profile=used)
    found = []
    for sync, (file, cases) in files.items():
        less = {name: makespans(replace(cost, profile=p), file, sync) for name, p in without(used).items()}
        judged = validate(simulate(file, Simulation(cost, sync)), runs[sync])
        spans = np.array([usage(line).makespan for line in runs[sync]])
        for (lengths, draw, balancer), m in zip(cases, judged.minibatches, strict=True):
            measured = tuple(spans[:, m.minibatch].tolist())
            told = f"{m.furthest} {1e3 * m.furthest_seconds:+.0f} ms"
            other = {name: float(spans[m.minibatch]) for name, spans in less.items()}
            guess = m.predicted_seconds, measured, m.idle_error_points, told, other
            found.append(Case(stage.name, lengths, draw, sync, balancer, *guess))
    return found


def makespans(cost: Cost, file: ScheduleFile, sync: str) -> np.ndarray:
    return usage(simulate(file, Simulation(cost, sync))).makespan


def without(used: Profile) -> dict[str, Profile]:
    """The profile with one term left out at a time."""

    def dropped(*kinds: str) -> Profile:
        return replace(
            used, timings=tuple(replace(t, constant=0.0, per_byte=0.0) if t.kind in kinds else t for t in used.timings)
        )

    alike = {name: replace(getattr(used, name), sample=0.0) for name in ("forward", "backward", "head", "embed")}
    squares = {name: replace(getattr(used, name), quadratic=0.0) for name in ("forward", "backward")}
    return {
        "work between steps": dropped("overhead"),
        "a constant for each sample": replace(used, **alike),
        "squares of lengths": replace(used, **squares),
        "transfers": dropped(*TRANSFERS),
        "transfers slowed by compute": replace(used, timings=tuple(replace(t, slowdown=1.0) for t in used.timings)),
        "optimizer, publishing, meetings": dropped("optimizer", "publish", "meeting"),
    }


def plan(stage: Stage, seed: int) -> profiles.Plan:
    others = tuple(s.devices for s in STAGES if s.emulate and s.backend == stage.backend)
    return profiles.Plan(
        catalog.model(stage.model), (2, *others), stage.backend, LONGEST, quick=not stage.emulate, seed=seed
    )


def measured(stage: Stage, folder: Path) -> Measurements:
    """The stage's machine, as `odc_engine profile` measures it."""
    path = folder / f"{stage.model}-{stage.backend}.json"
    if not path.exists():
        found = []
        first = plan(stage, SEED + 1)
        for piece in profiles.pieces(first):
            found.append(profiles.measure(first, piece))
            say(f"profile of {stage.model} on {stage.backend}: {piece.name} done")
        measurements.write(profiles.together(found), path)
    return measurements.read(path)


def again(stage: Stage, number: int) -> Measurements:
    """Every packing once more."""
    other = plan(stage, SEED + 10 + number)
    return profiles.measure(other, profiles.pieces(other)[0])


def fitted(stage: Stage, known: Measurements) -> Profile:
    found = fit.examine(known).profile
    return replace(found, **EMULATED) if stage.emulate else found


def one_machine(devices: int) -> Cluster:
    return Cluster(devices, devices, 1.0, 1.0, devices)


def write(page: Path, text: str) -> None:
    """Put the results where they belong, and leave what is written around them."""
    before, _, rest = page.read_text().partition(BEGIN) if page.exists() else ("", "", "")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2] or chr(10)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stages", default="", metavar="WORD", help="only stages whose name holds it")
    parser.add_argument("--keep", metavar="DIR", help="keep everything there, and take what other stages left")
    parser.add_argument("-o", dest="page", type=Path, default=PAGE, metavar="PAGE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="odc-") as temporary:
        folder = Path(args.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        stages = [stage for stage in STAGES if args.stages in stage.name]
        old = folder / "cases.json"
        cases = [Case(**case) for case in json.loads(old.read_text())] if old.exists() else []
        cases = [case for case in cases if args.stages not in case.stage]
        for stage in stages:
            known = measured(stage, folder)
            cases += held(stage, known, folder)
        old.write_text(json.dumps([asdict(case) for case in cases], indent=1))
    write(args.page, results(cases, known))
    say(f"wrote {args.page}")


BEGIN, END = "<!-- begin results -->", "<!-- end results -->"


if __name__ == "__main__":
    main()
