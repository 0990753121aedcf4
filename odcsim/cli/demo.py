"""`odcsim demo`: a first result without arguments, GPU or network."""

import argparse
from typing import Any

from odcsim.support.progress import progress

HTML = "report.html"
COMMAND = (
    "odcsim compare longalign --model r1-distill-qwen-1.5b --gpu a100 --devices 8 --minibatch 4 --max-tokens 65536"
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="show a first result: no arguments, no GPU, writes report.html",
        description=f"Compare all balancers and syncs on a long-context trace, and write {HTML}.",
        examples=(f"{COMMAND} --html {HTML}",),
    )
    parser.set_defaults(run=_run, html=HTML)


def _run(args: argparse.Namespace) -> None:
    from odcsim.cli.compare import show
    from odcsim.decide.asking import ask
    from odcsim.decide.comparison import compare, pairs
    from odcsim.show.pages.report import write_report

    setting = ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=8, minibatch=4, max_tokens=65536)
    with progress("comparing", len(pairs())) as advance:
        comparison = compare(setting, advance=advance)
    write_report(comparison, args.html)
    show(comparison, html=args.html)
    print(f"the same with your own lengths: {COMMAND.replace('longalign', 'YOUR-LENGTHS.csv')}")
