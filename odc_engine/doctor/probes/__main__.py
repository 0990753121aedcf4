"""One probe, in this process: `python -m odc_engine.doctor.probes NAME`. It answers to stdout.

Whoever asks several probes asks them through this (`asking`), with a folder for the answer.
"""

import argparse
import faulthandler
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from odc_engine.doctor.probes.base import ABSENT, CPU, Absent, Answer, Hearing, Probe, answer
from odc_engine.doctor.probes.every import PROBES
from odc_engine.doctor.probes.needs import look


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    every = {probe.name: probe for probe in PROBES} | {probe.name: probe for probe in args.probe}
    if (probe := every.get(args.asked)) is None:
        parser.error(f"no probe is called '{args.asked}'")
    if args.device == CPU:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads stand for streams, and share the cores as it is
    if args.limit:
        # Before time is up: once it is, a process may be past saying anything.
        faulthandler.dump_traceback_later(max(args.limit - 5, 0.7 * args.limit))
    with nullcontext(args.folder) if args.folder else tempfile.TemporaryDirectory(prefix="odc-probe-") as folder:
        hearing = Hearing(Path(folder), args.device, args.name or probe.name, args.limit or probe.seconds)
        found = heard(probe, hearing)
    text = json.dumps(asdict(found))
    if args.folder is None:
        print(text)
        return 0
    path = args.folder / f"{args.name or probe.name}.answer"
    path.with_suffix(".new").write_text(text, encoding="utf-8")
    path.with_suffix(".new").replace(path)
    return 0


def heard(probe: Probe, hearing: Hearing) -> Answer:
    try:
        look(probe, hearing.device)
    except Absent as absent:
        return Answer(ABSENT, str(absent))
    return answer(probe.call, hearing)


def _parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {probe.name:<18} {probe.asks}" for probe in PROBES)
    parser = argparse.ArgumentParser(
        prog="python -m odc_engine.doctor.probes",
        description="One probe, in this process.",
        epilog=f"probes:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("asked", metavar="NAME")
    parser.add_argument("--device", choices=("cuda", CPU), default="cuda", help="a CPU stands in where it can (cuda)")
    parser.add_argument("--folder", type=Path, help="for the answer, and what probes leave for each other")
    parser.add_argument("--probe", type=_told, action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, help=argparse.SUPPRESS)
    return parser


def _told(text: str) -> Probe:
    """As who asks has it, which may not be one of the list."""
    fields = json.loads(text)
    return Probe(**fields | {"needs": tuple(fields["needs"])})


if __name__ == "__main__":
    sys.exit(main())
