"""What splitting outliers over several devices would buy, as docs/split.md.

    python docs/studies/split.py [--draws 50] [-o docs/split.md]

`section()` is the text alone, for a page that holds more.
"""

import argparse
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import page_table

from odcsim.balance import SPLIT
from odcsim.decide.asking import ask
from odcsim.decide.evaluate import measure
from odcsim.decide.setting import plan
from odcsim.executors.simulation import Simulation
from odcsim.results.metrics import Usage
from odcsim.support.files import write_text
from odcsim.support.progress import progress

DEVICES, MODEL, GPU = 64, "r1-distill-qwen-7b", "h100"
TRACES = ("longalign", "swe-smith", "azure-chat", "sharegpt")
SIZES = (1, 2, 4, 8)
OVERHEADS = (0.05, 0.15)
DRAWS = 50

TEXT = """{mark} Context parallelism for the longest samples

How much faster would training be if context parallelism split the few longest samples (those that cost more than one
GPU's share), under on-demand? Simulated only: the engine does not run it. [The model](model/index.md) says what is
assumed and what is left out.

{model} on {devices} {gpu} in 8 nodes, seconds from the catalog, {draws} minibatches of each setting, seed 0. Extra work
is 5 % or 15 % of a sample's for each doubling of the devices on it; both are assumptions, measured by nobody here.
`lost` is device time without work of the samples: idle and the extra work. `waiting` is the part of idle that devices
wait for each other; the rest of `lost` is transfers, meetings and extra work. `faster` is over `lb-mini`, on the same
samples; `samples split` is in a minibatch, on average.

{table}

At eight samples per device long samples find company and there is little to split. Chat loses most of its time to
transfers between nodes, which gangs do not shorten: the waiting falls by more than the time. One sample of `sharegpt`
has 241,402 tokens, and where it is drawn, at 4 and 8, it decides everything. The search for gangs is a heuristic: on
`azure-chat` at 4 it finds a little less at 5 % than at 15 %.

Written on {day} by `python docs/studies/split.py`; its figures are the same on any machine.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One setting without splitting, and with it at each overhead."""

    trace: str
    minibatch: int
    plain: Usage
    split: tuple[Usage, ...]
    gangs: tuple[float, ...]  # samples split in a minibatch


def case(trace: str, minibatch: int, draws: int) -> Case:
    found, gangs = [], []
    for overhead in OVERHEADS:
        sizes = {"devices": DEVICES, "minibatch": minibatch, "minibatches": draws, "sharding": "full"}
        setting = ask(trace, MODEL, gpu=GPU, split_overhead=overhead, **sizes)
        how = Simulation(setting.cost, "on-demand", "analytic")
        file = plan(setting, SPLIT)
        found.append(measure(file, how).usage)
        gangs.append(sum(gang > 1 for s in file.schedules for gang in s.gangs) / draws)
    return Case(trace, minibatch, measure(plan(setting, "lb-mini"), how).usage, tuple(found), tuple(gangs))


def lost(usage: Usage, plain: Usage) -> float:
    """Device time without work of the samples, which is what `plain` computes."""
    return 1 - float(plain.compute.sum()) / (DEVICES * float(usage.makespan.sum()))


def waiting(usage: Usage) -> float:
    parts = usage.idle_parts()
    return parts["wait_inside"] + parts["wait_end"]


def row(found: Case) -> list[str]:
    cells = [found.trace, str(found.minibatch), f"{lost(found.plain, found.plain):.1%}", f"{waiting(found.plain):.1%}"]
    for usage, gangs in zip(found.split, found.gangs, strict=True):
        faster = float(found.plain.makespan.sum() / usage.makespan.sum())
        cells += [f"{lost(usage, found.plain):.1%}", f"{usage.idle():.1%}", f"{waiting(usage):.1%}"]
        cells += [f"{faster:.2f}", f"{gangs:.1f}"]
    return cells


def table(cases: list[Case]) -> str:
    head = ["trace", "samples per device", "`lb-mini`: lost", "waiting"]
    for overhead in OVERHEADS:
        head += [f"`split`, {overhead:.0%}: lost", "idle", "waiting", "faster", "samples split"]
    return page_table.table(head, map(row, cases))


def section(draws: int = DRAWS, mark: str = "##") -> str:
    places = [(trace, size) for trace in TRACES for size in SIZES]
    cases = []
    with progress("splitting", len(places)) as advance:
        for trace, size in places:
            cases.append(case(trace, size, draws))
            advance()
    about = {"model": MODEL, "devices": DEVICES, "gpu": GPU, "draws": draws, "day": date.today().isoformat()}
    return TEXT.format(mark=mark, table=table(cases), **about)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("-o", dest="output", default=str(Path(__file__).parents[1] / "split.md"))
    args = parser.parse_args()
    write_text(Path(args.output), section(args.draws, "#"))


if __name__ == "__main__":
    main()
