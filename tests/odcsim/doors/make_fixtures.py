"""Write the files in `fixtures` and the figures that they come to, by whichever odcsim is on PYTHONPATH.

They were made by commit f87f5be. To make them again, of a checkout of it in SOURCE:

PYTHONPATH=SOURCE python tests/odcsim/doors/make_fixtures.py

In `figures.json` and `sweep.csv` estimated seconds and what follows from them were renewed since, by themselves.

`profile.json` is not made here: it is what `odc_engine profile --model tiny --devices 2 --max-tokens 2048 --quick -o
profile.json` of that commit measured, and no run gives the same seconds twice.
"""

import json
import os
from itertools import product
from pathlib import Path

from old_files import FIXTURES, figures
from ways_in import said

ASKED = "--model tiny --gpu a100 --devices 4 --minibatch 2 --minibatches 3 --max-tokens 4096".split()
LENGTHS = "lengths.csv"
BALANCERS = ("native", "local-sort", "lb-micro", "lb-mini", "sorted-slice", "lb-robust", "pool")
TIMELINES = (
    ("lb-micro", "collective"),
    ("lb-mini", "deferred"),
    ("lb-mini", "on-demand"),
    ("pool", "on-demand"),
)
TEXTS = {
    "cluster.toml": "# two nodes\ndevices_per_node = 2\nnics_per_node = 2\nnic_gbit_s = 200\nlink_gb_s = 250\n"
    "one_sided_slowdown = 3\nlatency_us = 15\nlink_share = 0.7\nnic_share = 0.5\nhop_us = 3\nsample_noise = 0.02\n\n"
    "[slow]\n3 = 1.1\n",
    "cluster-drawn.toml": "devices_per_node = 2\nnics_per_node = 1\nnic_gbit_s = 400\njitter = 0.05\nswing = 0.05\n"
    "spell_seconds = 2\n",
    "gpu.toml": 'title = "H100 SXM, power limited to 450 W"\nlike = "h100"\nmatmul_tflops = 560\n',
    "gpu-whole.toml": 'title = "a card of somebody"\npeak_tflops = 400\nmatmul_tflops = 300\nmemory_gb = 64\n'
    "memory_tb_s = 2.0\nlink_gb_s = 200\nnic_gbit_s = 100\ndevices_per_node = 4\n",
    "recipe-full.toml": 'recompute = "full"\nsharding = "hybrid"\nfar = "hierarchical"\n',
    "recipe-selective.toml": 'recompute = "selective"\noptimizer = "8bit"\noffload = true\nlora = 16\n',
    "recipe-layers.toml": 'recompute = "layers"\nattention = "sdpa"\ncompile = true\nloss = "whole"\n'
    'copies = "engines"\n',
    "recipe-none.toml": 'recompute = "none"\nreduce = "bf16"\nreshard = false\nstreams = "two"\nstack = "plain"\n',
    "recipe-fields.toml": 'recompute = true\nselective = "operators"\noptimizer = "pure"\nattention = "fa2"\n',
    "recipe-engine.toml": 'recompute = false\naccumulate = "slots"\ndtype = "bfloat16"\nsync = "deferred"\n',
    "grid.toml": f'trace = "{LENGTHS}"\nmodel = "tiny"\ngpu = "a100"\nminibatches = 2\n'
    'max_tokens = 5000\nprice = 2\nepochs = 3\nbalancer = ["lb-micro", "lb-mini"]\n'
    'sync = ["collective", "on-demand"]\n\n[[case]]\ndevices = 2\nminibatch = [2, 3]\n\n'
    '[[case]]\ndevices = 4\nglobal_batch = 8\nrecompute = "selective"\nseed = 1\n\n'
    '[[case]]\ndevices = 4\nglobal_batch = 6\n',
    "steps.csv": "lengths,seconds\n30000,4.87\n12000;9000;7000,3.51\n2000;2500;1800;3000;900;1200,1.65\n"
    "16000;15500,4.14\n8000;1000;1500;700,1.73\n24000,3.76\n5000;5200;4800;5100;4900,2.93\n1000;800,0.82\n",
}  # fmt: skip


def run(*argv: str) -> None:
    _, refused = said(list(argv))
    if refused:
        raise SystemExit(f"odcsim {' '.join(argv)}\n{refused}")


def main() -> None:
    FIXTURES.mkdir(exist_ok=True)
    os.chdir(FIXTURES)
    for name, text in TEXTS.items():
        Path(name).write_text(text, encoding="utf-8")
    run(
        "trace",
        "make",
        "lognormal:median=900,sigma=0.9,max=4096",
        "--samples",
        "120",
        "--seed",
        "3",
        "-o",
        LENGTHS,
        "--force",
    )
    for name in BALANCERS:
        run("balance", LENGTHS, *ASKED, "--balancer", name, "-o", f"schedules-{name}.jsonl")
    for name, sync in TIMELINES:
        words = ["simulate", f"schedules-{name}.jsonl", "--gpu", "a100", "--sync", sync]
        run(*words, "-o", f"timeline-{name}-{sync}.npz", "--force")
    write_measurements("measurements.json")
    run("sweep", "grid.toml", "-o", "sweep.csv", "--jobs", "1", "--force")
    kept = Path("sweep.csv.points").read_bytes()
    Path("sweep.csv.points").unlink()
    Path("partial.points").write_bytes(
        kept[: 2 * len(kept) // 3]
    )  # as a sweep leaves it that is killed while it writes
    with Path("figures.json").open("w", encoding="utf-8") as out:
        json.dump(figures(), out, sort_keys=True)


def write_measurements(name: str) -> None:
    """As the engine writes them, of seconds that a line and a square make up."""
    from odcsim.fitting.measurements import Compute, Constant, Measurements, Transfer, write

    packed = [(n, samples) for n, samples in product((256, 512, 1024, 2048), (1, 2, 4))]
    compute = tuple(
        Compute(kind, n, n * n / samples, factor * (1e-3 + 2e-5 * n + 1e-8 * n * n / samples), samples=samples)
        for kind, factor in (("forward", 1.0), ("backward", 3.0), ("head", 0.5), ("embed", 0.05))
        for n, samples in packed
    )
    transfers = tuple(
        Transfer(kind, 2, size, 1e-4 + size * 1e-9) for kind in ("gather", "push") for size in (10**5, 10**6, 10**7)
    )
    constants = (Constant("meeting", 2, 1e-4), Constant("optimizer", 2, 2e-3), Constant("overhead", 2, 1e-3))
    write(Measurements("tiny", "cpu", compute, transfers, constants), name)


if __name__ == "__main__":
    main()
