"""`odcsim explore`: a local page that answers while one drags."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.option import Option, values_of
from odcsim.question import LENGTHS
from odcsim.support.numbers import SIZES

PORT = 8050
_PORTS = Option(int, "a port from 0 to 65535", 0, 65535, SIZES)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "explore",
        help="open a local page with sliders in your browser",
        description="Serve a page on this machine that predicts while you move sliders: lengths, model, GPUs, batch, "
        "token limit, network. Its links hold your settings; only who has the printed link can open it. Needs pip "
        "install 'odcsim[explore]'.",
        examples=("odcsim explore longalign",),
    )
    parser.add_argument("trace", nargs="?", metavar="TRACE", help="sequence lengths to start with (longalign)")
    options.add_fields(parser, [*(name for name in LENGTHS if name != "trace"), "profile"])
    parser.add_argument(
        "--port", type=_PORTS.from_text, default=PORT, metavar="P", help=f"port to serve on; 0: any free one ({PORT})"
    )
    parser.add_argument("--no-open", action="store_true", help="print the link, open no browser")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from contextlib import ExitStack

    from odcsim.show.explore.controls import page_question_of
    from odcsim.show.explore.opening import leaving_in_order, opened
    from odcsim.show.explore.serve import serve
    from odcsim.support import budget

    words = values_of(args, (*LENGTHS, "profile"))
    question = page_question_of(words | _measured(args.profile))
    options.tell_lengths(question.lengths, args.cutoff)  # or refused before anything is served
    if args.profile is not None:
        _ = question.setting
    with ExitStack() as stack:
        stack.enter_context(leaving_in_order())
        served = serve(args.port, question)
        stack.callback(served.server.server_close)
        link = served.link(question.search)
        print(f"{link} (Ctrl-C ends it)", flush=True)
        if not args.no_open:
            served.door.entered = stack.enter_context(opened(link))
        budget.limit(budget.most())  # of all threads together, once a browser is started, which has memory of its own
        served.server.serve_forever()


def _measured(path: str | None) -> dict[str, str]:
    """What a profile was measured on and with, of what the page has a control for and the catalog knows."""
    if path is None:
        return {}
    from odcsim import catalog
    from odcsim.catalog.fits import measured_by
    from odcsim.profile import read
    from odcsim.show.explore.controls import OF_RECIPE

    profile = read(path)
    names = {"model": (profile.model, catalog.model_names()), "gpu": (profile.gpu, catalog.gpu_names())}
    chosen = {name: value for name, value in measured_by(path).items() if name in OF_RECIPE}
    return {name: value for name, (value, among) in names.items() if value in among} | chosen
