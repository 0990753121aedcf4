"""Hold predictions against real runs on this machine, and write what came out: `make validate`.

    python docs/validate.py [-o docs/validation.md]

Profiles are measured first, by `odc_engine profile`. Then schedules that no fit has seen are predicted and run, under
every sync and balancer that suits it: on two devices with real compute, on four and eight with emulated compute.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from odc_engine import profile as profiles
from odc_engine.run import run
from odc_engine.worker import Job
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


@dataclass(frozen=True, slots=True)
class Case:
    """One held-out minibatch under one sync, and what came out."""

    stage: str
    lengths: str
    draw: int
    sync: str
    balancer: str
    predicted: float
    measured: tuple[float, ...]  # of each run
    idle_points: float
    furthest: str
    without: dict[str, float]  # predicted with a term of the model left out

    @property
    def truth(self) -> float:
        return float(np.median(self.measured))

    @property
    def error(self) -> float:
        return self.predicted / self.truth - 1

    @property
    def noise(self) -> float:
        """How far two runs lie apart, in the median of all pairs."""
        gaps = [abs(a - b) for a, b in combinations(self.measured, 2)]
        return float(np.median(gaps)) / self.truth if gaps else 0.0


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


def groups(cases: Sequence[Case], *names: str) -> dict[tuple[str, ...], list[Case]]:
    found: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        found.setdefault(tuple(getattr(case, name) for name in names), []).append(case)
    return found


def ordered(cases: Sequence[Case]) -> tuple[int, int, list[str], float]:
    """Of all pairs of alternatives for the same samples that differ by more than noise: how many, how many are
    predicted in the right order, which are not, and how far off the predicted ratio is in the median."""
    asked, right, wrong, off = 0, 0, [], []
    for (lengths,), alike in groups(cases, "lengths").items():
        every = groups(alike, "sync", "balancer")
        for one, other in combinations(every, 2):
            spans = [np.sum([c.measured for c in every[key]], axis=0) for key in (one, other)]
            guess = [sum(c.predicted for c in every[key]) for key in (one, other)]
            if len(every[one]) != len(every[other]):
                continue
            if not apart(*spans):
                continue
            truth, told = float(np.median(spans[0]) / np.median(spans[1])), guess[0] / guess[1]
            asked += 1
            off.append(abs(told / truth - 1))
            if (truth - 1) * (told - 1) > 0:
                right += 1
            else:
                names = " against ".join(f"{sync} + {balancer}" for sync, balancer in (one, other))
                wrong.append(f"{lengths}: {names}, predicted {told:.3f}, measured {truth:.3f}")
    return asked, right, wrong, float(np.median(off)) if off else 0.0


def apart(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two alternatives differ by more than noise: every run of one is faster than every run of the other."""
    return bool(one.max() < other.min() or other.max() < one.min())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def errors(cases: Sequence[Case]) -> list[str]:
    size, noise = np.abs([c.error for c in cases]), [c.noise for c in cases]
    idle = np.abs([c.idle_points for c in cases])
    return [
        f"{len(cases)}",
        f"{np.mean([c.error for c in cases]):+.1%}",
        f"{np.median(size):.1%}",
        f"{np.quantile(size, 0.9):.1%}",
        f"{size.max():.1%}",
        f"{np.median(noise):.1%}",
        f"{np.max(noise):.1%}",
        f"{np.median(idle):.1f}",
        f"{idle.max():.1f}",
    ]


ERRORS = ("schedules", "mean", "median", "p90", "worst", "noise median", "noise worst", "idle median", "idle worst")


def terms(cases: Sequence[Case]) -> str:
    """Median and worst error with one term left out, against the same runs."""
    stages = groups(cases, "stage", "sync")
    rows = []
    for name in ("", *cases[0].without):
        cells = []
        for of in stages.values():
            size = np.abs([(c.without[name] if name else c.predicted) / c.truth - 1 for c in of])
            cells.append(f"{np.median(size):.1%}, {size.max():.1%}")
        rows.append([f"without {name}" if name else "all terms", *cells])
    return table(("median, worst error", *(f"{stage}, {sync}" for stage, sync in stages)), rows)


def results(cases: Sequence[Case], known: Measurements) -> str:
    """Everything that the page shows of a run."""
    told_runs = " or ".join(sorted({f"{len(c.measured)} runs" for c in cases}, reverse=True))
    told = [f"{known.date}, {known.hardware}, {known.versions}. The median of {told_runs} counts as measured."]
    told += [
        "",
        "### All schedules",
        "",
        table(("stage", *ERRORS), [[n, *errors(of)] for (n,), of in groups(cases, "stage").items()]),
    ]
    told += [
        "",
        table(("stage", "sync", *ERRORS), [[*k, *errors(of)] for k, of in groups(cases, "stage", "sync").items()]),
    ]
    told += ["", "### Which alternative wins", ""]
    rows, wrong = [], []
    for (stage,), of in groups(cases, "stage").items():
        asked, right, missed, off = ordered(of)
        rows.append([stage, str(asked), str(right), f"{off:.1%}"])
        wrong += [f"- {stage}, {line}" for line in missed]
    told += [table(("stage", "pairs that differ", "in the right order", "ratio off, median"), rows), "", *wrong]
    told += ["", "### What each term of the model is worth", "", terms(cases)]
    told += ["", "### Worst first", ""]
    worst = sorted(cases, key=lambda c: -abs(c.error))[:15]
    head = (
        "stage",
        "lengths",
        "sync",
        "balancer",
        "predicted s",
        "measured s",
        "error",
        "noise",
        "idle points",
        "furthest off",
    )
    told += [table(head, [row(c) for c in worst]), "", "### Every schedule", "", table(head, [row(c) for c in cases])]
    return "\n".join(told)


def row(c: Case) -> list[str]:
    numbers = f"{c.predicted:.3f}", f"{c.truth:.3f}", f"{c.error:+.1%}", f"{c.noise:.1%}", f"{c.idle_points:+.1f}"
    return [c.stage, f"{c.lengths} {c.draw}", c.sync, c.balancer, *numbers, c.furthest]


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
