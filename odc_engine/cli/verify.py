"""`odc_engine verify`: a schedule's gradients, or those of a script's first minibatch, held against one process."""

import argparse
from typing import Any

from odc_engine.cli import options
from odcsim.errors import InputError
from odcsim.recipe import flags

UNASKED = "dtype"  # of fp32 alone gradients differ so little that a mistake shows


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "verify",
        help="compare gradients with those of one process",
        description="Compare the gradients of a schedule, or of a training script's first minibatch, with one process.",
        examples=(
            "odc_engine verify plan.jsonl --sync on-demand",
            "torchrun --nproc-per-node 2 -m odc_engine verify --script train.py",
        ),
    )
    options.add_job(parser, [name for name in flags(engine=True) if name != UNASKED])
    options.add_json(parser)
    parser.add_argument(
        "--script",
        action=_Script,
        nargs=argparse.REMAINDER,
        metavar="SCRIPT",
        help="training script and its arguments, under torchrun, run until its first minibatch is checked",
    )
    parser.add_argument(
        "--packings",
        action="store_true",
        help="run the script's first minibatch twice, split differently, and compare gradients",
    )
    parser.set_defaults(run=_run, emulate_compute=False, cluster=None)


class _Script(argparse.Action):
    """Stands for a whole job: nothing of one is required any more."""

    def __call__(self, parser: argparse.ArgumentParser, args: argparse.Namespace, values: Any, _: Any = None) -> None:
        args.script = values
        for action in parser._actions:
            action.required = False


def _run(args: argparse.Namespace) -> int:
    if args.script is not None:
        options.need_torch()
        if args.packings:
            from odc_engine.runs.packings import verify_packings

            return verify_packings(args.script)
        from odc_engine.runs.script import verify_script

        return verify_script(args.script)
    if args.packings:
        raise InputError("--packings without a script", fix="odc_engine verify --packings --script train.py")
    file, job = options.job_of(args)
    from odc_engine.runs.verify import verify

    return verify(file, job, args.json)
