"""`odcsim explore`: a local page that answers while one drags."""

import argparse
from typing import Any

from odcsim.cli import options

PORT = 8050


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "explore",
        help="a local page with sliders, which answers while you drag",
        description="Serve a page on this machine alone: lengths, model, GPU, devices, minibatch, token limit and "
        "network, and what they come to. Links carry what is set. Needs pip install 'odcsim[explore]'.",
    )
    parser.add_argument("trace", nargs="?", metavar="TRACE", help="to begin with (longalign)")
    parser.add_argument("--port", type=options.seed, default=PORT, metavar="P", help=f"0: any that is free ({PORT})")
    parser.add_argument("--no-open", action="store_true", help="print the address and open no browser")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    import webbrowser

    from odcsim.explore.asked import Asked
    from odcsim.explore.serve import address, server

    asked = Asked(**({"trace": args.trace} if args.trace else {}))
    _ = asked.lengths  # refused before anything is served
    _ = asked.lengths  # refused before anything is served
    page = server(args.port)
    print(f"{address(page, asked.search)} (Ctrl-C ends it)", flush=True)
    if not args.no_open:
        webbrowser.open(address(page, asked.search))
    page.serve_forever()
