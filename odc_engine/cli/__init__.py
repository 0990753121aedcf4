"""The `odc_engine` command. torch loads only where a command needs it."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from odc_engine.errors import EngineError
from odcsim.command import Parser, status, whole
from odcsim.errors import InputError

if TYPE_CHECKING:
    from odc_engine.job import Job
    from odcsim.schedule import ScheduleFile

SYNCS = ("collective", "deferred", "on-demand")
BACKENDS = ("shm", "threads", "torch", "cuda_ipc", "nvshmem")
DAYS = 30 * 24 * 3600.0
DEVICES, DTYPES = ("cpu", "cuda"), ("float32", "bfloat16")


def build_parser() -> Parser:
    parser = Parser(prog="odc_engine", description="Run odcsim's schedules on real devices.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    doctor = commands.add_parser("doctor", help="what is installed, what this machine can run, and why not")
    doctor.add_argument("--gpu-selftest", action="store_true", help="try on this GPU what the engine relies on")
    doctor.add_argument("--model", metavar="M", help="ask, too, whether what is set up suffices for it")
    doctor.add_argument("--devices", type=whole, default=8, metavar="N", help="on so many devices (8)")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)
    run = commands.add_parser("run", help="run a schedule file for real and write the timeline")
    _add_job(run)
    run.add_argument("--emulate-compute", action="store_true", help="wait the predicted seconds instead of computing")
    run.add_argument("--cluster", metavar="FILE", help="slow devices and sample_noise for emulated compute (TOML)")
    run.add_argument("--dtype", default="float32", choices=DTYPES, help="to compute in and to move (float32)")
    run.add_argument("-o", dest="output", required=True, metavar="TIMELINE", help="the file to write (npz)")
    run.set_defaults(run=_run)
    verify = commands.add_parser("verify", help="hold a schedule's gradients against one process")
    _add_job(verify)
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.set_defaults(run=_verify, emulate_compute=False, cluster=None, dtype="float32")
    profile = commands.add_parser("profile", help="measure this machine and fit a profile for odcsim to it")
    profile.add_argument("--model", default="tiny", metavar="M", help="a name of 'odcsim catalog list' (tiny)")
    profile.add_argument(
        "--devices", type=_numbers, default=(2,), metavar="N,N", help="real compute on the first number of devices (2)"
    )
    profile.add_argument("--backend", default="shm", choices=BACKENDS, help="how devices reach each other (shm)")
    _add_device(profile)
    profile.add_argument("--dtype", default="float32", choices=DTYPES, help="to compute in and to move (float32)")
    profile.add_argument("--max-tokens", type=int, default=1024, metavar="T", help="of the fullest microbatch (1024)")
    profile.add_argument("--quick", action="store_true", help="about a minute, and less exact")
    profile.add_argument("-o", dest="output", required=True, metavar="PROFILE", help="the file to write (JSON)")
    profile.set_defaults(run=_profile)
    tune = commands.add_parser("tune", help="time the kernels on this GPU under several launches, against a copy")
    tune.add_argument("-o", dest="output", required=True, metavar="FILE", help="the file to write (JSON)")
    tune.set_defaults(run=_tune)
    bandwidth = commands.add_parser("bandwidth", help="how fast devices gather and push here, against collectives")
    bandwidth.add_argument("--devices", type=_numbers, default=(2, 4), metavar="N,N", help="2,4")
    bandwidth.add_argument(
        "--bytes", type=_numbers, default=(), metavar="B,B", help="of the full tensor (64 KB to 256 MB)"
    )
    told = "how devices reach each other (shm)"
    bandwidth.add_argument("--backend", default="shm", choices=("shm", "cuda_ipc"), help=told)
    bandwidth.add_argument("--json", action="store_true", help="print JSON")
    bandwidth.set_defaults(run=_bandwidth)
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of whole numbers such as 2,4") from None


def _seconds(text: str) -> float:
    """More than none, and fewer than clocks can count."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= DAYS:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0, such as 60")
    return seconds


def _add_device(parser: argparse.ArgumentParser) -> None:
    told = "cuda: threads make devices of one GPU's SMs, torch has a GPU for each and NCCL (cpu)"
    parser.add_argument("--device", default="cpu", choices=DEVICES, help=told)


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", metavar="SCHEDULE", help="a file that 'odcsim balance' wrote")
    parser.add_argument("--sync", required=True, choices=SYNCS)
    parser.add_argument("--backend", default="shm", choices=BACKENDS, help="how devices reach each other (shm)")
    _add_device(parser)
    parser.add_argument(
        "--accumulate", default="locked", choices=("locked", "slots"), help="slots: the same bits always"
    )
    told = "layers keep their activations, and backward does not run their forward again"
    parser.add_argument("--no-recompute", dest="recompute", action="store_false", help=told)
    parser.add_argument(
        "--sharding", default="full", choices=("full", "hybrid"), help="hybrid: gathers and pushes stay in a node"
    )
    parser.add_argument("--devices-per-node", type=whole, metavar="K", help="how many devices stand for a node")
    parser.add_argument("--profile", metavar="F", help="seconds for emulated compute")
    parser.add_argument("--gpu", metavar="G", help="the same, from the catalogue")
    parser.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="S", help="report a silent device after this (60)"
    )


def _doctor(args: argparse.Namespace) -> int:
    if args.gpu_selftest:
        from odc_engine.doctor.probes.selftest import selftest

        return selftest(args.json)
    from odc_engine.doctor import abilities as doctor

    findings = doctor.examine(args.model, args.devices)
    print(doctor.as_json(findings) if args.json else doctor.as_text(findings))
    return 0


def _run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from odcsim.files import check_writable

    check_writable(Path(args.output))
    file, job = _job(args)
    from odc_engine.runs.run import run

    return run(file, job, args.output)


def _verify(args: argparse.Namespace) -> int:
    file, job = _job(args)
    from odc_engine.runs.verify import verify

    return verify(file, job, args.json)


def _profile(args: argparse.Namespace) -> int:
    from pathlib import Path

    from odc_engine.measuring.plan import Plan
    from odcsim import catalog
    from odcsim.files import check_writable

    model, output = catalog.model(args.model), Path(args.output)
    what = {"device": args.device, "dtype": args.dtype}
    plan = Plan(model, args.devices, args.backend, args.max_tokens, args.quick, **what)
    plan.check()
    check_writable(output)
    _need_torch()
    from odc_engine.measuring import profile

    try:
        report = profile.measured(plan, output)
    except KeyboardInterrupt:
        kept = "what is measured is kept, the same command goes on"
        print(f"odc_engine: stopped; {kept} ({profile.partial(output)})", file=sys.stderr)
        return 130
    for line in report.lines():
        print(line)
    if not report.good:
        print(f"odc_engine: the fit does not explain {len(report.unexplained)} measurements", file=sys.stderr)
    print(f"{args.output}: {report.profile.origin}")
    return 0


def _tune(args: argparse.Namespace) -> int:
    from pathlib import Path

    from odc_engine.measuring import tuning

    return tuning.tune(Path(args.output))


def _bandwidth(args: argparse.Namespace) -> int:
    from odc_engine.measuring.plan import SIZES, check_rates

    sizes = args.bytes or SIZES
    check_rates(args.devices, sizes)
    _need_torch()
    from odc_engine.measuring import bandwidth as measure

    return measure.bandwidth(args.devices, sizes, args.json, args.backend)


def _job(args: argparse.Namespace) -> "tuple[ScheduleFile, Job]":
    """Files are read before torch loads, which takes seconds."""
    from odc_engine.job import check_job, job_of
    from odcsim import schedule

    file = schedule.read(args.schedule)
    job = job_of(
        file,
        sync=args.sync,
        backend=args.backend,
        accumulate=args.accumulate,
        emulate=args.emulate_compute,
        gpu=args.gpu,
        profile=args.profile,
        cluster=args.cluster,
        sharding=args.sharding,
        devices_per_node=args.devices_per_node,
        timeout=args.timeout,
        recompute=args.recompute,
        device=args.device,
        dtype=args.dtype,
    )
    check_job(file, job)
    _need_torch()
    return file, job


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError("torch is not installed", fix="pip install 'odcsim[engine]' -c constraints.txt") from None


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    return status("odc_engine", lambda: args.run(args), EngineError)
