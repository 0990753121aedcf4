"""`odcsim trace-json`: a timeline for ui.perfetto.dev, or for what reads traces of torch.profiler."""

import argparse
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "trace-json",
        help="export a timeline for Perfetto or as torch.profiler traces",
        description="Export minibatches of a timeline as a trace for ui.perfetto.dev: a process per GPU, arrows to "
        "the straggler, counters of idle GPUs and of transfers. Or write a torch.profiler trace for each GPU.",
        examples=("odcsim trace-json run.npz -o run.json.gz",),
    )
    parser.add_argument("timeline", metavar="TIMELINE", help="timeline of 'odcsim simulate' or 'odc_engine run'")
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("-o", dest="output", metavar="FILE", help="file to write: FILE.json.gz or FILE.json")
    form.add_argument(
        "--per-device", metavar="DIR", help="folder to write, with a trace for each GPU, as torch.profiler does"
    )
    parser.add_argument("--minibatches", metavar="A-B", help="minibatches A to B, numbered from 0 (the first three)")
    parser.set_defaults(run=_run, writes="events")


def _run(args: argparse.Namespace) -> None:
    from pathlib import Path

    from odcsim import timeline
    from odcsim.show.pages import perfetto, profiler

    read = timeline.read(args.timeline)
    chosen = perfetto.window(args.minibatches, read) if args.minibatches is not None else perfetto.first(read)
    if args.per_device is not None:
        count = profiler.write(read, args.per_device, chosen)
        print(f"{args.per_device}: {count:,} events in {read.about.devices} files, as torch.profiler writes them")
        return
    count = perfetto.write(read, args.output, chosen)
    size = Path(args.output).stat().st_size / 1e6
    print(f"{args.output}: {count:,} events, {size:.2f} MB; open it in ui.perfetto.dev")
