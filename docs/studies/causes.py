"""Causes of waiting that are put into runs of stock FSDP2, and what `odcsim diagnose` makes of their traces.

    python docs/studies/causes.py --record tests/odcsim/observed/fixtures    # a run of each cause, as small files
    python docs/studies/causes.py --live 30 [--seed 1] [--ranks 2] [--page]    # runs with drawn causes, each diagnosed

What is true is computed from what was put in and what each rank measured by itself (causes_run.py): the share of the
step that ranks were idle, and for each cause how much less they would be without it, by replaying the meetings. The
cause is the one that costs most; none where that is less than a twentieth of the step. The table stands
in docs/validation.md.
"""

import argparse
import gzip
import json
import math
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from causes_run import LAYERS, Asked, Injected, run

CASES = {
    "none": Injected(),
    "lengths": Injected(lengths=0.6),
    "device": Injected(device=1.5),
    "network": Injected(network=16),
    "loader": Injected(loader=0.12),
    "collector": Injected(collector=0.3),
    "all": Injected(lengths=0.4, device=1.3, network=6, loader=0.06, collector=0.2),
}
PART = {"lengths": "lengths", "device": "device", "network": "transfer", "loader": "loader", "collector": "collector"}
WORDS = {
    "none": "nothing",
    "lengths": "uneven lengths",
    "device": "a slow rank",
    "network": "a slow network",
    "loader": "a slow loader",
    "collector": "garbage collection",
    "all": "all at once",
}
PAGE = Path(__file__).parents[1] / "validation.md"
BEGIN, END = "<!-- causes -->", "<!-- end of causes -->"
NAMED = 0.05  # of the step, from which on there is a cause
WINDOWS = [1 / (3 * LAYERS)] * LAYERS + [2 / (3 * LAYERS)] * LAYERS  # of a microbatch's compute, between two meetings
SHORT = 10.0  # microseconds of an operator inside another one that a fixture leaves out
KEPT = ("Input Dims", "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Rank", "Name")
Steps = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Truth:
    """What was true of a run."""

    cause: str  # of PART's values; "" where none costs a twentieth
    idle: float
    step: float  # seconds
    lost: Mapping[str, float]  # seconds of a step in which ranks would not be idle without it, in the mean


def truth_of(records: Sequence[Steps], injected: Injected) -> Truth:
    """`records` of each rank. Without network: as if all that moves took no time."""
    walls = np.array([[s["end"] - s["begin"] for s in steps] for steps in records])
    blocked = [[sum(s["done"]) - sum(s["came"]) + s["loader"] + s["collector"] for s in steps] for steps in records]
    whole = _replayed(records, injected)
    lost = {PART[name]: whole - _replayed(records, injected, without=name) for name in PART if name != "network"}
    lost["transfer"] = float(np.mean([_moving(steps) for steps in zip(*records, strict=True)]))
    step = float(walls.mean())
    worst = max(lost, key=lambda name: lost[name])
    return Truth(worst if lost[worst] > NAMED * step else "", float(np.sum(blocked) / walls.sum()), step, lost)


def _moving(ranks: Steps) -> float:
    """Seconds in which bytes moved, since the last rank had come."""
    came = np.array([s["came"] for s in ranks]).max(axis=0)
    return float(np.clip(np.array([s["done"] for s in ranks]) - came, 0, None).sum(axis=1).mean())


def _replayed(records: Sequence[Steps], injected: Injected, without: str = "") -> float:
    """Idle seconds of a step of ranks that meet behind each layer's pass, from what was put in alone."""
    worked = np.array([[s["worked"] for s in steps] for steps in records])  # [rank, step, microbatch]
    held = np.array([[s["lengths"] for s in steps] for steps in records], dtype=float)
    paces = worked.sum(axis=(1, 2)) / held.sum(axis=(1, 2))
    if without == "device":
        paces[:] = paces.min()
    if without == "lengths":
        held[:] = held.mean()
    late = np.zeros_like(held)
    if without != "loader":
        late += injected.loader
    if without != "collector":
        late[:, :, 1] += [[s["collector"] for s in steps] for steps in records]
    busy = held * paces[:, None, None]
    behind = np.multiply.outer(np.array(WINDOWS), busy)
    behind[0] += late
    return float(behind.max(axis=1).sum(axis=(0, 2)).mean() - busy.sum(axis=2).mean())


def records_of(folder: Path, ranks: int) -> list[Steps]:
    return [json.loads((folder / f"record-rank{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]


def recorded(home: Path) -> None:
    """Traces of one run of each cause, without what no reader needs, and what was true of them."""
    every: dict[str, Any] = {
        "made by": "docs/studies/causes.py --record",
        "machine": f"{_processor()}, CPU, gloo",
        "date": time.strftime("%Y-%m-%d"),
    }
    runs: dict[str, Any] = {}
    for name, injected in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            asked = Asked(injected, folder)
            run(asked)
            for rank in range(asked.ranks):
                text = json.dumps(trimmed(json.loads(Path(folder, f"rank{rank}.json").read_text(encoding="utf-8"))))
                (home / f"{name}-rank{rank}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
            records = records_of(Path(folder), asked.ranks)
        runs[name] = {"injected": asdict(injected), **asdict(truth_of(records, injected)), "ranks": _by_rank(records)}
        print(name, {k: v for k, v in runs[name].items() if k not in ("ranks", "injected")}, flush=True)
    (home / "truth.json").write_text(json.dumps(every | {"runs": runs}, indent=1) + "\n", encoding="utf-8")


def _by_rank(records: Sequence[Steps]) -> list[dict[str, Any]]:
    """What each rank measured, in the mean of its steps, and its microbatches' lengths."""
    return [
        {
            **{name: round(float(np.mean([s[name] for s in steps])), 6) for name in ("compute", "loader", "collector")},
            "blocked": round(float(np.mean([sum(s["done"]) - sum(s["came"]) for s in steps])), 6),
            "lengths": [s["lengths"] for s in steps],
        }
        for steps in records
    ]


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores {names[0]}" if names else platform.processor()


def trimmed(trace: dict[str, Any]) -> dict[str, Any]:
    """Without flows, arguments that nobody reads, and the shortest operators inside others."""
    events, ends = [], {}
    spans = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
    for event in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
        inside = event["ts"] + event["dur"] <= ends.get(event["tid"], -math.inf)
        if event.get("cat") == "cpu_op" and not inside:
            ends[event["tid"]] = event["ts"] + event["dur"]
        if event.get("cat") == "cpu_op" and inside and event["dur"] < SHORT:
            continue
        args = {name: value for name, value in event.get("args", {}).items() if name in KEPT}
        events.append({k: v for k, v in event.items() if k != "args"} | ({"args": args} if args else {}))
    events += [e for e in trace["traceEvents"] if e.get("ph") == "M"]
    about = {k: v for k, v in trace.items() if k not in ("traceEvents", "traceName", "host_name", "trace_id")}
    return about | {"traceEvents": events}


def drawn(number: int, seed: int) -> tuple[str, Injected]:
    """A cause, or all or none, and how much of it."""
    draw = np.random.default_rng((seed, number))
    name = list(CASES)[number % len(CASES)]
    much = float(draw.uniform(0.8, 1.5))
    usual = CASES[name]
    return name, replace(
        usual,
        lengths=usual.lengths * much,
        device=1 + (usual.device - 1) * much,
        network=round(usual.network * much),
        loader=usual.loader * much,
        collector=usual.collector * much,
        slow=int(draw.integers(2)),
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """One run: what was true, and what was found."""

    injected: str
    truth: Truth
    found: str
    idle: float

    @property
    def right(self) -> bool:
        return self.found == self.truth.cause

    @property
    def near(self) -> bool:
        return abs(self.idle - self.truth.idle) <= 0.02

    def __str__(self) -> str:
        marks = f"{'yes' if self.right else 'NO':<5}  {'yes' if self.near else 'NO'}"
        words = f"{self.injected:<9}  {self.truth.cause or 'none':<9}  {self.found or 'none':<9}"
        return f"{words}  {100 * self.truth.idle:>5.1f} %  {100 * self.idle:>5.1f} %  {marks}"


def named(found: Any) -> str:
    """The part that costs most, of those that are no work of a device; none below a twentieth of the step."""
    worst = max((part for part in found.parts if part.name not in ("compute", "padding")), key=lambda part: part.share)
    return worst.name if worst.share > NAMED else ""


def idle_of(found: Any) -> float:
    return 1.0 - sum(part.share for part in found.parts if part.name in ("compute", "padding"))


def judged(number: int, asked: argparse.Namespace) -> Judged:
    from odcsim.decide.diagnosis.breakdown import break_down
    from odcsim.observed.run_files import read

    name, injected = drawn(number, asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        run(Asked(injected, folder, ranks=asked.ranks, steps=asked.steps, seed=number))
        found = break_down(read([str(Path(folder, f"rank{rank}.json")) for rank in range(asked.ranks)]))
        truth = truth_of(records_of(Path(folder), asked.ranks), injected)
    return Judged(name, truth, named(found), idle_of(found))


def lived(asked: argparse.Namespace) -> list[Judged]:
    print("put in     true       found      idle     found    cause  within 2 points")
    every = []
    for number in range(asked.live):
        every.append(judged(number, asked))
        print(every[-1], flush=True)
    print(told(every))
    return every


def told(every: Sequence[Judged]) -> str:
    right, near = sum(one.right for one in every), sum(one.near for one in every)
    return f"{right} of {len(every)} causes are named rightly, {near} idle shares are within 2 points"


def table(every: Sequence[Judged], asked: argparse.Namespace) -> str:
    """For the page: a line for each cause that was put in."""
    words = f"--live {asked.live} --seed {asked.seed} --ranks {asked.ranks} --steps {asked.steps}"
    lines = [
        f"`python docs/studies/causes.py {words}`, {time.strftime('%Y-%m-%d')}, {_processor()}, CPU, gloo:",
        f"{told(every)}.",
        "",
        "| put in | runs | cause named rightly | idle within 2 points | idle, true | off by at most |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in CASES:
        if ran := [one for one in every if one.injected == name]:
            idle = [one.truth.idle for one in ran]
            off = max(abs(one.idle - one.truth.idle) for one in ran)
            counts = f"{len(ran)} | {sum(one.right for one in ran)} | {sum(one.near for one in ran)}"
            shares = f"{100 * min(idle):.0f} to {100 * max(idle):.0f} %"
            lines.append(f"| {WORDS[name]} | {counts} | {shares} | {100 * off:.1f} points |")
    return "\n".join(lines)


def page(every: Sequence[Judged], asked: argparse.Namespace) -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(every, asked)}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="FOLDER")
    parser.add_argument("--live", type=int, default=0, metavar="N", help="runs")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--page", action="store_true", help="put the table of --live into docs/validation.md")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.record:
        recorded(Path(asked.record))
    if asked.live:
        every = lived(asked)
        if asked.page:
            page(every, asked)


if __name__ == "__main__":
    main()
