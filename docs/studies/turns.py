"""What a change costs or saves: two checkouts of this repository, measured by turns.

    python docs/studies/turns.py BEFORE AFTER [--rounds 10]

Each is a folder. Whatever else runs on the machine slows both alike: each measurement of a round is one of BEFORE and
at once one of AFTER, and the next round begins with the other. The ratio is the median over rounds of after / before,
with the lowest and the highest of a round beside it: a change that is smaller than their distance is not seen.

The engine runs in two processes of this machine's CPU, one thread each, over gloo. Shared memory is that of both, after
OnDemand is made. Of the simulator, seconds are those of one process on a processor: the first answer with its start,
comparisons of 64, 1,024 and 16,384 devices, and plans of each balancer.
The same interpreter runs both checkouts and this program, which asks them for public names only.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROCESSES, MICROBATCHES, TOKENS, WARM = 2, 2, 32, 3
WIDE, SMALL = 4, 24  # layers
KINDS = ("imports", "steps", "bandwidth", "answers", "plans")
LENGTHS = "lognormal:median=11900,sigma=0.9,max=65536,samples=40000"
BESIDE = ("gloo", "lockstep")  # ways of `odc_engine bandwidth` that are there to compare with


def imports(folder: Path) -> dict[str, float]:
    """Milliseconds in this process, which must be fresh, and that the engine is the one of `folder`."""
    begin = time.perf_counter()
    import torch.distributed.fsdp  # noqa: F401

    after_torch = time.perf_counter()
    import odc_engine
    from odc_engine import OnDemand  # noqa: F401

    end = time.perf_counter()
    home = Path(odc_engine.__file__).resolve().parents[1]
    if home != folder:
        sys.exit(f"odc_engine of {home} was imported, not that of {folder}")
    return {"import OnDemand, ms": 1e3 * (end - begin), "the same after torch, ms": 1e3 * (end - after_torch)}


def of_simulator(folder: Path) -> Any:
    """The odcsim of `folder`, in a process that has no other."""
    import odcsim

    home = Path(odcsim.__file__).resolve().parents[1]
    if home != folder:
        sys.exit(f"odcsim of {home} was imported, not that of {folder}")
    return odcsim


def spent(work: Any, *given: Any, **named: Any) -> float:
    begin = time.process_time()
    work(*given, **named)
    return time.process_time() - begin


def question(odcsim: Any, devices: int, minibatch: int, minibatches: int) -> Any:
    sizes = {"devices": devices, "minibatch": minibatch, "minibatches": minibatches, "max_tokens": 65_536}
    return odcsim.ask(LENGTHS, "r1-distill-qwen-7b", gpu="a100", **sizes)


def answers(folder: Path) -> dict[str, float]:
    """Seconds of comparisons. The first one is asked in a process of its own, whose start counts."""
    command = [sys.executable, "-m", "odcsim", "compare", "longalign", "--model", "r1-distill-qwen-7b", "--gpu", "a100"]
    before = os.times()
    subprocess.run([*command, "--devices", "8", "--minibatch", "4"], check=True, capture_output=True)
    after = os.times()
    start = after.children_user + after.children_system - before.children_user - before.children_system
    odcsim = of_simulator(folder)
    cases = ((64, 4, 64), (1024, 4, 16), (16_384, 1, 2))
    asked = {f"{d} devices x {m}": question(odcsim, d, m, minibatches) for d, m, minibatches in cases}
    return {"first answer, s": start, **{f"{name}, s": spent(odcsim.compare, one) for name, one in asked.items()}}


def plans(folder: Path) -> dict[str, float]:
    """Milliseconds of a minibatch's plan."""
    odcsim, values = of_simulator(folder), {}
    for devices, minibatch, count in ((8, 4, 400), (64, 4, 40), (64, 64, 8), (1024, 4, 8), (16_384, 2, 1)):
        asked = question(odcsim, devices, minibatch, count)
        for name in ("lb-micro", "lb-mini", "sorted-slice", "lb-robust", "pool"):
            values[f"{name} {devices} x {minibatch}, ms"] = 1e3 * spent(odcsim.plan, asked, name) / count
    return values


def shared_files() -> dict[str, int]:
    """Bytes of each file that this process shares with others, memory without a name too, by device and inode."""
    sizes: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, offset, device, inode, *_ = line.split()
        if mode.endswith("s"):
            first, last = (int(address, 16) for address in span.split("-"))
            file = f"{device} {inode}"
            sizes[file] = max(sizes.get(file, 0), int(offset, 16) + last - first)
    return sizes


def train(name: str, layers: list[Any], width: int, steps: int) -> dict[str, float]:
    """A model of these layers on demand: what it takes to start, and the median of so many steps."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from odc_engine import OnDemand

    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, width))  # the last is the root's own
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [torch.randn(1, TOKENS, width) for _ in range(MICROBATCHES)]
    before = set(shared_files())
    dist.barrier()
    begin = time.perf_counter()
    with contextlib.closing(OnDemand(model)) as odc:
        start = time.perf_counter() - begin
        files: list[Any] = [None] * PROCESSES
        dist.all_gather_object(files, {file: size for file, size in shared_files().items() if file not in before})
        of_all = {file: size for mine in files for file, size in mine.items()}  # each maps the other's files, too
        odc.attach(optimizer)
        seconds = []
        for _ in range(WARM + steps):
            begin = time.perf_counter()
            for batch in batches:
                model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - begin)
    return {
        f"{name}, a step, ms": 1e3 * statistics.median(seconds[WARM:]),
        f"{name}, OnDemand(model), ms": 1e3 * start,
        f"{name}, shared memory, MB": sum(of_all.values()) / 1e6,
    }


def steps(width: int, count: int) -> dict[str, float]:
    """In each process of torchrun. The small layers come first, so that their OnDemand is the first of its process."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    values = train("small layers", [nn.Linear(16, 16) for _ in range(SMALL)], 16, count)
    wide = [nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(WIDE)]
    values |= train("wide layers", wide, width, count)
    dist.barrier()
    return values


def measure(kind: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """One measurement of one checkout, in processes of its own."""
    if kind == "bandwidth":
        command = ["-m", "odc_engine", "bandwidth", "--backend", "shm", "--json"]
        command += ["--devices", str(PROCESSES), "--bytes", options.unit]
    else:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
        command = [*(torchrun if kind == "steps" else []), str(Path(__file__).resolve()), str(folder), str(folder)]
        command += ["--measure", kind, "--steps", str(options.steps), "--width", str(options.width)]
    env = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{folder}: python {' '.join(command)}\n{done.stderr[-3000:]}")
    if kind == "bandwidth":
        rates = {rate["way"]: rate["gb_per_second"] for rate in json.loads(done.stdout)["rates"]}
        ours = {way: rate for way, rate in rates.items() if way.startswith(("gather", "push"))}
        return {f"{way}, GB/s": rate for way, rate in ours.items() if not way.endswith(BESIDE)}
    values: dict[str, float] = json.loads(done.stdout.splitlines()[-1])  # gloo prints, too
    return values


def table(rounds: list[tuple[dict[str, float], dict[str, float]]]) -> str:
    """A row for each measure: medians of both, the ratio, and how far rounds differ in it."""
    lines = [f"{'':34}{'before':>10}{'after':>10}{'ratio':>8}   in rounds"]
    every = [side for pair in rounds for side in pair]
    for name in dict.fromkeys(name for side in every for name in side):
        if not all(name in side for side in every):
            lines.append(f"{name:34}not in both checkouts")
            continue
        before, after = ([pair[side][name] for pair in rounds] for side in (0, 1))
        ratios = [b / a for a, b in zip(before, after, strict=True)]
        medians = f"{statistics.median(before):10.3f}{statistics.median(after):10.3f}{statistics.median(ratios):8.3f}"
        lines.append(f"{name:34}{medians}   {min(ratios):.3f} to {max(ratios):.3f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="BEFORE", type=Path, help="a folder with a checkout")
    parser.add_argument("after", metavar="AFTER", type=Path, help="another one, or the same to see what noise there is")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help=f"that are measured, after {WARM} that are not")
    parser.add_argument("--width", type=int, default=288, help="of the wide layers: 288 is a million parameters each")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, help="of all measurements")
    parser.add_argument("--unit", default="16Mi", help="bytes that are gathered and pushed")
    parser.add_argument("--measure", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folders = [options.before.resolve(), options.after.resolve()]
    if options.measure:
        if options.measure in ("answers", "plans"):
            values = answers(folders[0]) if options.measure == "answers" else plans(folders[0])
        else:
            values = imports(folders[0])
            if options.measure == "steps":
                values = steps(options.width, options.steps)
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(values))
        sys.stdout.flush()
        os._exit(0)  # all is written; gloo's threads do not always end when they are asked to
    rounds = []
    for number in range(options.rounds):
        pair: tuple[dict[str, float], dict[str, float]] = ({}, {})
        for kind in options.only:
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                pair[side].update(measure(kind, folders[side], options))
        rounds.append(pair)
    print(table(rounds))
    print("Less is better, but of GB/s.")


if __name__ == "__main__":
    main()
