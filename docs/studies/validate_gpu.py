"""Ask one NVIDIA GPU all that is claimed of it, and bring home what it says: `make validate-gpu`.

    python docs/studies/validate_gpu.py [1] [2] [3] [--out DIR]

Each rung is a `pytest -m gpu` of some files of tests/gpu, and takes at most nine minutes; 4 is for several GPUs. Every
test has a process and a limit of its own, and one that fails or hangs stops no other. DIR/record.jsonl has
a line for each test as soon as it has ended. The same command runs what has not passed yet. Clocks and other settings
are told as they are found, and never set. docs/studies/gpu_record.py makes a page of what came home. Exit status: 0
where every test that can run here has passed, 1 where one has not, 3 where there is no GPU.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import ours
from own_process import NO_GPU, gpus, recorded

OUT = Path("validation-gpu")
TESTS = ours.ROOT / "tests/gpu"
RUNGS = {
    1: ("machine", "threads", "mesh", "peers"),
    2: ("kernels", "whole"),
    3: ("processes", "nvshmem"),
    4: ("several",),
}
NOTHING_LEFT = 5  # exit status of pytest


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rung", type=int, nargs="*", help="1, 2, 3 or 4 (those that this machine is for, in turn)")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"what comes home ({OUT})")
    parser.add_argument("--cpu", action="store_true", help="a CPU stands in, with small sizes: tries the tests")
    args = parser.parse_args(arguments)
    if not (count := 1 if args.cpu else gpus()):
        print(f"validate-gpu: {NO_GPU}", file=sys.stderr)
        return 3
    rungs = args.rung or [rung for rung in RUNGS if rung < 4 or count > 1]
    codes = [subprocess.run(command(rung, args.out, args.cpu), check=False).returncode for rung in rungs]
    return int(any(code not in (0, NOTHING_LEFT) for code in codes))


def command(rung: int, out: Path, cpu: bool) -> list[str]:
    """The rung's pytest, without the tests that have passed before."""
    settings = next(path for name in ("pytest.ini", "pyproject.toml") if (path := ours.ROOT / name).exists())
    words = [sys.executable, "-m", "pytest", "-c", str(settings), f"--rootdir={ours.ROOT}", "-m", "gpu"]
    words += ["-o", "addopts=", "-ra", "-v", "--tb=line", "-p", "no:cacheprovider", "-p", "no:dash", f"--home={out}"]
    words += ["--cpu"] if cpu else []
    words += [f"--deselect={test}" for test, line in recorded(out).items() if line["outcome"] == "passed"]
    return words + [str(TESTS / f"test_gpu_{name}.py") for name in RUNGS[rung]]


if __name__ == "__main__":
    sys.exit(main())
