"""Nodes behind cards of one rate: the engine with and without hierarchical transfers, beside what is predicted.

    python docs/studies/far.py [--rate 0.02] [--minibatches 3]

Two nodes of two devices, which are processes of this machine; a card carries what it would carry in so many seconds
(far_cards.py). Compute is emulated, all else is real.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from far_cards import Behind

from odc_engine.job import Job, job_of
from odc_engine.runs import run
from odcsim import profile, timeline
from odcsim.cost import Cost
from odcsim.decide.asking import ask
from odcsim.decide.setting import plan
from odcsim.executors.simulation import simulate
from odcsim.profile import Polynomial, Profile
from odcsim.results import metrics
from odcsim.support import tables

DEVICES, NODE, SAMPLES, LIMIT = 4, 2, 4, 65536
TOKEN = 2e-6  # seconds of a layer's forward pass
LINK = 2e9  # bytes in a second inside a node: about what several processes get of this memory at once
SECONDS = Profile(
    "tiny",
    "a100",
    "calibrated",
    "chosen for this figure",
    forward=Polynomial(linear=TOKEN),
    backward=Polynomial(linear=3 * TOKEN),
    head=Polynomial(),
    dtype="float32",
)
NODES = {"devices_per_node": NODE}
WAYS: dict[str, dict[str, Any]] = {
    "each device": {},
    "hybrid sharding": {"sharding": "hybrid", **NODES},
    "hierarchical": {"far": "hierarchical", **NODES},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=0.02, metavar="GB/S", help="of a card")
    parser.add_argument("--minibatches", type=int, default=3)
    args = parser.parse_args()
    head = ("far bytes", "seconds: engine", "predicted", "error", "transfers: engine", "predicted")
    with tempfile.TemporaryDirectory() as folder:
        for row in (head, *rows(Path(folder), 1e9 * args.rate, args.minibatches)):
            print(*tables.lines([row], (-16, 17, 11, 8, 19, 11)), flush=True)


def rows(folder: Path, rate: float, minibatches: int) -> Iterator[tuple[str, ...]]:
    seconds = folder / "profile.json"
    profile.write(SECONDS, seconds)
    how: Any = {"gpu": "a100", "devices": DEVICES, "minibatch": SAMPLES, "minibatches": minibatches}
    file = plan(ask("longalign", "tiny", **how, max_tokens=LIMIT), "lb-mini")
    for name, choices in WAYS.items():
        job = job_of(file, sync="on-demand", accumulate="slots", emulate=True, profile=str(seconds), **choices)
        # By slots, since a network adds nothing to a sum.
        job = replace(job, backend=Behind("behind", node=NODE, rate=rate))
        output = str(folder / "run.npz")
        if run.run(file, job, output, quiet=True):
            raise SystemExit("the engine failed")
        ours = metrics.usage(timeline.read(output))
        theirs = metrics.usage(simulate(file, predicted(job, rate)))
        mine, other = (float(usage.makespan.sum()) for usage in (ours, theirs))
        moved = [100 * (parts["gather"] + parts["push"]) for parts in (ours.idle_parts(), theirs.idle_parts())]
        yield name, f"{mine:.2f}", f"{other:.2f}", f"{100 * (other / mine - 1):+.1f} %", *(f"{m:.1f} %" for m in moved)


def predicted(job: Job, rate: float) -> Cost:
    """The same job's cost on a cluster of such cards, at which nothing else takes time."""
    free = {"latency": 0.0, "one_sided_slowdown": 0.0, "nic_share": 1.0, "link_share": 1.0, "devices_per_node": NODE}
    cluster = replace(job.cost.cluster, nic_bandwidth=rate, nics_per_node=NODE, link_bandwidth=LINK, **free)
    return replace(job.cost, cluster=cluster)


if __name__ == "__main__":
    main()
