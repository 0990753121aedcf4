"""What on-demand costs once per minibatch beside bytes: by the number of units and of devices, on this machine.

    python docs/studies/own_price.py [--layers 2,8,24] [--devices 2,4] [--runs 5]

Models as small as `nano` with so many layers, whose compute and transfers take next to nothing: what is left is the
host's work. Of each kind the median of the quietest run, since others may use the machine.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from odc_engine import backends
from odc_engine.job import Job
from odc_engine.measuring import calibration, recorded
from odc_engine.runs.run import run
from odcsim import catalog, timeline
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.model import Model
from odcsim.profile import Polynomial, Profile
from odcsim.recipe import USUAL
from odcsim.support import tables

KINDS = ("settle", "publish", "meeting")
LAYER = Profile("", "", "calibrated", "", Polynomial(0.001), Polynomial(0.002), Polynomial(0.001), Polynomial(0.001))
HEAD = ("devices", "units", *(f"{kind} ms" for kind in KINDS), "sum ms", "fit ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, usual in (("layers", (2, 8, 24)), ("devices", (2, 4))):
        parser.add_argument(f"--{name}", type=numbers, default=usual, metavar="N,N")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    found = [(n, layers + 1, taken(n, layers, args.runs)) for n in args.devices for layers in args.layers]
    units, sums = (np.array(values) for values in zip(*((u, sum(ms.values())) for _, u, ms in found), strict=True))
    (constant, each), *_ = np.linalg.lstsq(np.stack([np.ones(len(units)), units], axis=1), sums, rcond=None)
    rows = ((n, u, *(ms[kind] for kind in KINDS), sum(ms.values()), constant + each * u) for n, u, ms in found)
    for line in table(rows):
        print(line)
    print(f"{constant:.2f} ms, and {each:.3f} ms for each unit")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def table(rows: Iterator[tuple[float, ...]]) -> Iterator[str]:
    written = ((f"{n:g}", f"{units:g}", *(f"{ms:.2f}" for ms in rest)) for n, units, *rest in rows)
    for row in (HEAD, *written):
        yield from tables.lines([row], (8, 6, 10, 11, 11, 7, 7))


def taken(devices: int, layers: int, runs: int) -> dict[str, float]:
    """Milliseconds of a minibatch."""
    model = replace(catalog.model("nano"), name=f"nano of {layers} layers", layers=layers)
    every = [constants(model, devices) for _ in range(runs)]
    return {kind: 1e3 * min(float(np.median(found[kind])) for found in every) for kind in KINDS}


def constants(model: Model, devices: int) -> dict[str, list[float]]:
    file = calibration.short(model, devices)
    cost = Cost(model, replace(LAYER, model=model.name), Cluster(devices, devices, 1.0, 1.0, devices), USUAL)
    job = Job(file.schedules, cost, backends.chosen("shm", "cpu"), emulate=True, timeout=60.0, seed=0)
    with tempfile.TemporaryDirectory(prefix="odc-") as folder:
        path = Path(folder) / "timeline.npz"
        if run(file, job, str(path), quiet=True):
            raise SystemExit("the run failed, see above")
        rows = recorded.rows(timeline.read(path), file.schedules, model, USUAL.dtype, cost)
    return {kind: [row.seconds for row in rows.constants if row.kind == kind] for kind in KINDS}


if __name__ == "__main__":
    main()
