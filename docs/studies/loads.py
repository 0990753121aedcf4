"""Whether plans of two checkouts of this repository are as good: the same drawn minibatches, case by case.

    python docs/studies/loads.py BEFORE AFTER [--draws 600]

Of each balancer: how many plans have the same heaviest device, steps and microbatches, and the worst case of the
heaviest device and, of those that meet, of the sum over steps of the heaviest microbatch; lb-mini by devices of unlike
speeds, too. Ratios are after / before: above 1.001 a plan is worse than costs are known by.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from odcsim.balance import balance, pooled

DEVICES = (2, 3, 4, 8, 16, 24, 32, 48, 64, 128, 256, 512, 1024)
SAMPLES = (1, 2, 3, 4, 8, 16, 64)
SPEEDS = "lb-mini, unlike speeds"


def drawn(seed: int) -> tuple[int, np.ndarray, np.ndarray, int, np.ndarray]:
    """Devices, lengths, weights, token limit and speeds."""
    rng = np.random.default_rng(seed)
    devices, each = int(rng.choice(DEVICES)), int(rng.choice(SAMPLES))
    count = devices * (each if devices * each <= 8192 else 4) - int(rng.integers(0, each))
    shapes = (rng.lognormal(9.4, 0.9, count), rng.lognormal(6.5, 1.0, count), rng.lognormal(10.4, 0.5, count),
              rng.uniform(100, 9000, count), rng.choice([512, 1024, 4096, 8192], count))  # fmt: skip
    lengths = shapes[int(rng.integers(len(shapes)))].clip(16, 65_536).astype(np.int64)
    limit = int(max(lengths.max(), rng.choice([8192, 16_384, 65_536])))
    return devices, lengths, lengths + lengths / 50_000 * lengths, limit, rng.lognormal(0, 0.2, devices)


def loads(draws: int) -> dict[str, list[tuple[float, float, int]]]:
    """Of each draw: the heaviest device, the steps and the microbatches; of pool the steps are its queue's entries."""
    found: dict[str, list[tuple[float, float, int]]] = {}
    for seed in range(draws):
        devices, lengths, weights, limit, speeds = drawn(seed)
        for name in ("lb-micro", "lb-mini", "sorted-slice", "lb-robust", "pool", SPEEDS):
            pace, steps = np.ones(devices), 0.0
            if name == "pool":
                plan, queue = pooled(lengths, weights, devices, limit, 0.01)
                steps = float(len(queue))
            elif name == SPEEDS:
                plan, pace = balance("lb-mini", lengths, weights, devices, limit, speeds=speeds), speeds
            else:
                plan = balance(name, lengths, weights, devices, limit)
            each = [[sum(weights[i] for i in part) for part in device] for device in plan]
            if name in ("lb-micro", "sorted-slice"):
                steps = sum(map(max, zip(*each, strict=True)))
            heaviest = max(sum(device) / speed for device, speed in zip(each, pace, strict=True))
            found.setdefault(name, []).append((heaviest, steps, sum(map(len, plan))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="BEFORE", type=Path)
    parser.add_argument("after", metavar="AFTER", type=Path)
    parser.add_argument("--draws", type=int, default=600)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(loads(options.draws)))
        return
    sides = []
    for folder in (options.before.resolve(), options.after.resolve()):
        command = [sys.executable, str(Path(__file__).resolve()), str(folder), str(folder), "--measure"]
        env = os.environ | {"PYTHONPATH": str(folder)}
        words = [*command, "--draws", str(options.draws)]
        sides.append(json.loads(subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout))
    for name, rows in sides[0].items():
        before, after = np.array(rows), np.array(sides[1][name])
        ratio = after[:, 0] / before[:, 0]
        steps = np.where(before[:, 1] > 0, after[:, 1] / np.maximum(before[:, 1], 1e-12), 1.0)
        same = int(np.isclose(before, after, rtol=1e-12).all(axis=1).sum())
        print(f"{name:24}{same:>5} of {len(rows)} the same; heaviest device {ratio.min():.5f} to {ratio.max():.5f}, "
              f"steps at most {steps.max():.5f}; worse by over .1 %: {int((ratio > 1.001).sum())}")  # fmt: skip


if __name__ == "__main__":
    main()
