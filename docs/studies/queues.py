"""Machines that are not as planned, with and without a shared queue: idle as the engine has it, and as des predicts it.

    python docs/studies/queues.py [--backend threads] [--minibatches 5]

Compute is emulated: both executors see the same samples that take longer than planned, and the same slow device. What
is real is everything else: who takes which entry of the queue when, transfers, meetings, and the engine's own work.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from odc_engine.job import job_of
from odc_engine.runs import run
from odcsim import profile, timeline
from odcsim.cluster import read_cluster
from odcsim.decide.asking import ask
from odcsim.decide.setting import Setting, plan
from odcsim.executors.simulation import simulate
from odcsim.profile import Polynomial, Profile
from odcsim.results.validation import Validation, validate
from odcsim.support import tables

DEVICES, SAMPLES, LIMIT = 4, 8, 65536  # samples of each device; tokens of a microbatch
TOKEN = 2e-6  # seconds of a layer's forward pass: a minibatch takes two, long beside the engine's own work
SECONDS = Profile(
    "nano",
    "a100",
    "calibrated",
    "chosen for this figure",
    forward=Polynomial(linear=TOKEN),
    backward=Polynomial(linear=3 * TOKEN),
    head=Polynomial(),
)
MACHINES = {
    "as planned": "",
    "5 % noise": "sample_noise = 0.05\n",
    "one device 10 % slow": f"[slow]\n0 = {1 / 0.9:.4f}\n",
}
BALANCERS = ("lb-robust", "pool")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", default="threads", choices=("threads", "shm"))
    parser.add_argument("--minibatches", type=int, default=5)
    args = parser.parse_args()
    head = ("machine", "balancer", "idle: des", "engine", "points", "makespan", "  queue")
    with tempfile.TemporaryDirectory() as folder:
        for row in (head, *rows(Path(folder), args.backend, args.minibatches)):
            print(*tables.lines([row], (-22, -11, 10, 9, 8, 10, 0)), flush=True)


def rows(folder: Path, backend: str, minibatches: int) -> Iterator[tuple[str, ...]]:
    seconds = folder / "profile.json"
    profile.write(SECONDS, seconds)
    setting = ask(
        "longalign",
        "nano",
        gpu="a100",
        profile=str(seconds),
        devices=DEVICES,
        minibatch=SAMPLES,
        max_tokens=LIMIT,
        minibatches=minibatches,
    )
    for number, (machine, text) in enumerate(MACHINES.items()):
        cluster = folder / f"cluster{number}.toml"
        cluster.write_text(text)
        for balancer in BALANCERS:
            found = both(folder, setting, balancer, str(cluster), backend)
            before, after = (100 * sum(idle.values()) for idle in (found.idle_predicted, found.idle_measured))
            idle = f"{before:.2f} %", f"{after:.2f} %", f"{found.idle_error:+.2f}"
            same = "" if found.same_taker is None else f"  {found.queued} entries, {found.same_taker:.0%} as predicted"
            yield machine, balancer, *idle, f"{100 * found.makespan_total:+.2f} %", same


def both(folder: Path, setting: Setting, balancer: str, cluster: str, backend: str) -> Validation:
    """Of one balancer's schedules on one machine: predicted by des, and run by the engine."""
    file = plan(setting, balancer)
    cost = replace(setting.cost, cluster=read_cluster(cluster, setting.cost.cluster))
    predicted = simulate(file, cost.by(sync="on-demand"), seed=file.header.seed)
    job = job_of(
        file,
        sync="on-demand",
        backend=backend,
        emulate=True,
        profile=str(folder / "profile.json"),
        cluster=cluster,
    )
    output = str(folder / "measured.npz")
    if run.run(file, job, output, quiet=True):
        raise SystemExit("the engine failed")
    return validate(predicted, [timeline.read(output)])


if __name__ == "__main__":
    main()
