"""Ask one NVIDIA GPU all that is claimed of it, and bring home what it says: `make validate-gpu`.

    python docs/studies/validate_gpu.py [1] [2] [3] [--out DIR] [--keep DIR] [--only PROBE]

Each rung is a command of at most nine minutes, the first ones say most, and 4 is for machines with several GPUs. Every
probe has a process and a limit of its own, and one that fails or hangs stops no other. The same command goes on with
what has not been asked, then with what failed. Clocks and other settings are told as they are found, and never set.
docs/studies/gpu_record.py makes a page and profiles of what came home. Exit status: 0 where every probe that can be
asked here has passed, 1 where one has not, 3 where there is no GPU.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import ours  # noqa: F401 - before our packages
from ladder import Ladder

from odc_engine.doctor.probes.base import CPU, Absent
from odc_engine.doctor.probes.driver import first_gpu
from odc_engine.doctor.probes.every import PROBES
from odc_engine.doctor.probes.selftest import NO_GPU

OUT = Path("validation-gpu")
KEEP = Path("validation-gpu.partial")
RUNGS = (1, 2, 3, 4)


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        count = 2 if args.cpu else first_gpu().count
    except Absent as absent:
        print(f"validate-gpu: {absent}", file=sys.stderr)
        return NO_GPU
    for folder in (args.out, args.keep):
        folder.mkdir(parents=True, exist_ok=True)
    asked = args.rung or [rung for rung in RUNGS if rung <= 3 or count > 1]
    probes = [probe for probe in PROBES if args.only == probe.name or (not args.only and probe.rung in asked)]
    ladder = Ladder(args.keep, args.out, probes, CPU if args.cpu else "cuda", say=_say)
    if args.only:
        ladder.one(probes[0])
    for rung in () if args.only else asked:
        ladder.climb(rung)
    return 0 if ladder.good() else 1


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rung", type=int, nargs="*", help="1, 2, 3 or 4 (those that this machine is for, in turn)")
    names = [probe.name for probe in PROBES]
    parser.add_argument("--only", choices=names, metavar="PROBE", help=f"one of {', '.join(names)}; asked anew")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"what comes home ({OUT})")
    parser.add_argument("--keep", type=Path, default=KEEP, metavar="DIR", help=f"what is known so far ({KEEP})")
    parser.add_argument("--cpu", action="store_true", help="a CPU stands in, with small sizes: shows the ladder itself")
    return parser


if __name__ == "__main__":
    sys.exit(main())
