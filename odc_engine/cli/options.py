"""Options that several commands share, and what they mean."""

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from odc_engine import backends
from odc_engine.backends.patience import LIMIT
from odc_engine.errors import FOR_ENGINE
from odcsim.errors import InputError
from odcsim.recipe import add_recipe, recipe_words
from odcsim.support.command import rare
from odcsim.support.numbers import TIMES, human
from odcsim.support.numbers import whole as whole

if TYPE_CHECKING:
    from odc_engine.job import Job
    from odcsim.schedule import ScheduleFile

DAYS = 30 * 24 * 3600.0


def numbers(text: str) -> tuple[int, ...]:
    """As people write them, one behind the other: 64Ki,1Mi."""
    try:
        return tuple(whole(part) for part in text.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a list of whole numbers above 0, such as 2,4 or 64Ki,1Mi"
        ) from None


def seconds(text: str) -> float:
    """More than none, and fewer than clocks can count."""
    value = float(human(text, TIMES) or 0)
    if not 0 < value <= DAYS:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0, such as 60 or 2min")
    return value


def add_backend(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    usual = backends.USUAL.name
    parser.add_argument("--backend", default=usual, choices=names, help=f"how ranks reach each other ({usual})")


def add_device(parser: argparse.ArgumentParser) -> None:
    usual, *others = backends.devices()
    told = "; ".join(
        f"{device}: {', '.join(row.help for row in backends.ROWS if row.help and row.device == device)}"
        for device in others
    )
    parser.add_argument(
        "--device", default=usual, choices=backends.devices(), help=f"what ranks compute on ({usual}); {told}"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_job(parser: argparse.ArgumentParser, recipe: Iterable[str]) -> None:
    """`recipe`: the fields of it that are asked for."""
    parser.add_argument("schedule", metavar="SCHEDULE", help="schedule file of 'odcsim balance'")
    add_backend(parser, backends.names())
    add_device(parser)
    add_recipe(parser, recipe)
    rare(parser.add_argument("--devices-per-node", type=whole, metavar="K", help="ranks that stand for one node"))
    rare(parser.add_argument("--profile", metavar="F", help="profile with the times of emulated compute"))
    rare(parser.add_argument("--gpu", metavar="G", help="GPU of the catalog whose times compute emulates"))
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=LIMIT,
        metavar="S",
        help=f"seconds after which a silent rank is reported ({LIMIT:g})",
    )


def job_of(args: argparse.Namespace) -> "tuple[ScheduleFile, Job]":
    """Files are read before torch loads, which takes seconds."""
    from odc_engine import job as jobs
    from odcsim import schedule

    file = schedule.read(args.schedule)
    job = jobs.job_of(
        file,
        backend=args.backend,
        emulate=args.emulate_compute,
        gpu=args.gpu,
        profile=args.profile,
        cluster=args.cluster,
        devices_per_node=args.devices_per_node,
        timeout=args.timeout,
        device=args.device,
        **recipe_words(args),
    )
    jobs.check_job(file, job)
    need_torch()
    _tell_of_gpus(job)
    return file, job


def _tell_of_gpus(job: "Job") -> None:
    """Where the usual backend leaves them idle, which hardly anybody means. Once, however many devices start."""
    import torch

    from odc_engine.started import started

    place, row = started(), job.backend
    idle = torch.cuda.device_count() if row.device == backends.USUAL.device and not job.emulate else 0
    if idle and (place is None or place.rank == 0):
        words = f"GPUs are here ({idle}), and backend {row.name} computes on processors"
        print(f"odc_engine: {words}; --backend {backends.usual('cuda').name} computes on GPUs", file=sys.stderr)


def need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError("torch is not installed", fix=FOR_ENGINE) from None
