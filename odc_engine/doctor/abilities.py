"""Report what is installed and what this machine can do, and why not. Nothing here needs torch."""

import fcntl
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

from odc_engine import backends
from odc_engine.backends.backend import Backend, Processes
from odc_engine.backends.shm.nameless import nameless_file
from odc_engine.doctor import connections, environment, room
from odc_engine.doctor.environment import Facts
from odc_engine.doctor.finding import Finding
from odc_engine.errors import FOR_ENGINE, FOR_GPUS
from odc_engine.places import mps
from odcsim.errors import InputError

ADVICE = {"torch": FOR_ENGINE, "triton": FOR_GPUS, "nvshmem4py-cu13": FOR_GPUS}  # where one is not installed
PACKAGES = ("odcsim", "numpy", "torch", "triton", "nvshmem4py-cu13", "nvidia-nvshmem-cu13", "transformers")


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What `doctor` was asked about, besides this machine."""

    backend: Backend | None = None  # that shall run
    model: str | None = None
    devices: int = 0  # in all; 0: nobody said

    @property
    def of_model(self) -> int:
        return self.devices or 8


NOTHING = Inquiry()


def examine(asked: Inquiry = NOTHING) -> list[Finding]:
    """Return all findings. All except backends are about this machine only."""
    names, nbytes = gpus()
    facts = _facts(asked, len(names))
    found = [*machine(), *map(package, PACKAGES), *system(), _hooks(), *_on_gpus(names), _nvshmem()]
    found += connections.between_gpus(len(names))
    found += connections.between_machines() if facts.across else []
    found += room.examine(asked.model, asked.of_model, len(names), nbytes) if asked.model else ()
    found += [*environment.examine(facts), *environment.daemon(facts)]
    known = {each.name: each for each in found if each.area in ("ability", "link", "network")}
    return found + [_backend(row, known) for row in backends.ROWS if row.says]


def at_fault(findings: list[Finding], asked: Inquiry = NOTHING) -> bool:
    """Whether what shall run will fail, or not run as it should: a wrong variable, a model that does not fit, or a
    missing backend. What was not asked for may be missing."""
    rooms = [f.ok for f in findings if f.area == "memory"]
    wrong = any(not f.ok for f in findings if f.area == "environment") or (bool(rooms) and not any(rooms))
    name = backends.label(asked.backend) if asked.backend else None
    return wrong or any(not f.ok for f in findings if f.area == "backend" and f.name == name)


def as_text(findings: list[Finding]) -> str:
    width = max(len(f.name) for f in findings)
    lines = []
    for area in dict.fromkeys(f.area for f in findings):
        lines.append(f"{area}:")
        for f in (f for f in findings if f.area == area):
            advice = f"  -> {f.advice}" if f.advice else ""
            lines.append(f"  {'ok' if f.ok else 'no':<3} {f.name:<{width}}  {f.found}{advice}")
    return "\n".join(lines)


def as_json(findings: list[Finding]) -> str:
    return json.dumps({"schema": 1, "findings": [asdict(f) for f in findings]}, indent=2)


def gpus() -> tuple[list[str], int]:
    """Return the names of the GPUs that torch can use, and the bytes of the smallest."""
    try:
        import torch
    except ImportError:
        return [], 0
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return [each.name for each in found], min((int(each.total_memory) for each in found), default=0)


def _facts(asked: Inquiry, gpus: int) -> Facts:
    env = dict(os.environ)
    arena = room.arena(asked.model, asked.of_model) if asked.model else None
    interfaces = tuple(name for _, name in socket.if_nameindex())
    return Facts(env, gpus, arena, mps.up(env), interfaces, _own_address(), asked.devices)


def _own_address() -> str:
    """Return the address of this machine's name, which gloo uses unless it is given an interface."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])
    except OSError:
        return ""


def machine() -> list[Finding]:
    there = Path("/dev/shm").is_dir()
    shm = f"{shutil.disk_usage('/dev/shm').free / 1e9:.1f} GB free" if there else "absent"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    new = sys.version_info >= (3, 11)
    return [
        Finding("machine", "system", f"{platform.system()} {platform.machine()}", True),
        Finding("machine", "python", platform.python_version(), new, "" if new else "3.11"),
        Finding("machine", "cores", str(cores), True),
        Finding("machine", "/dev/shm", shm, True),
    ]


def package(name: str) -> Finding:
    try:
        return Finding("package", name, importlib.metadata.version(name), True)
    except importlib.metadata.PackageNotFoundError:
        return Finding("package", name, "not installed", False, ADVICE.get(name, ""))


def _ability(name: str, ok: bool, found: str, advice: str) -> Finding:
    return Finding("ability", name, found, ok, "" if ok else advice)


def system() -> list[Finding]:
    """What the operating system gives: the first is an anonymous shared file that peers open through /proc, of which
    nothing stays behind when its owner dies."""
    if (fd := nameless_file()) is not None:
        os.close(fd)
    try:
        os.close(os.pidfd_open(os.getpid()))
        pidfd = True
    except (AttributeError, OSError):
        pidfd = False
    no_file = "needs Linux with /proc, and no seccomp that refuses it: temporary files take its place"
    locks = hasattr(fcntl, "F_OFD_SETLKW")
    return [
        _ability("memfd", fd is not None, "shared memory without a name to leak", no_file),
        _ability("OFD locks", locks, "locks that die with their holder", "needs Linux >= 3.15"),
        _ability("pidfd", pidfd, "notice a dead peer at once", "needs Linux >= 5.3"),
    ]


def _hooks() -> Finding:
    """What the engine uses of FSDP2, tried as where OnDemand is made."""
    try:
        import torch  # noqa: F401 - what is loaded already may outlive it

        from odc_engine.fsdp.inside import try_alone
    except ImportError:
        return _ability("FSDP2 hooks", False, "torch is not installed", FOR_ENGINE)
    try:
        found = "all names that on-demand needs" if try_alone() else "not tried inside a run"
    except InputError as error:
        return _ability("FSDP2 hooks", False, error.problem, error.fix)
    return _ability("FSDP2 hooks", True, found, "")


def _on_gpus(names: list[str]) -> list[Finding]:
    """GPUs; copies between them that go to the driver as one batch, which leaves all SMs to compute; and what Triton
    needs to build its way into the driver, once on each machine."""
    copies = "copies go one by one: a driver of CUDA 13, and cuda-bindings"
    try:
        from odc_engine.kernels.copies import batches
    except ImportError:
        return [
            _ability("CUDA", False, "torch is not installed", "only for GPUs"),
            _ability("batched copies", False, "torch is not installed", FOR_ENGINE),
        ]
    there, seen = batches(), f"{len(names)} x {', '.join(sorted(set(names)))}" if names else "no GPU that torch can use"
    found = [
        _ability("CUDA", bool(names), seen, "only for GPUs; the CPU engine does without"),
        _ability("batched copies", there, f"{'a gather is one call of the' if there else 'no'} driver", copies),
    ]
    if names:
        compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
        header = Path(sysconfig.get_paths("posix_prefix")["include"], "Python.h")
        lacks = [*([] if compiler else ["a C compiler"]), *([] if header.exists() else [str(header)])]
        found.append(_ability("C compiler", not lacks, "for Triton", f"Triton needs {' and '.join(lacks)}"))
    return found


def _nvshmem() -> Finding:
    if not importlib.util.find_spec("nvshmem"):
        return _ability("NVSHMEM", False, "nvshmem4py is not installed", FOR_GPUS)
    try:
        from odc_engine.backends.nvshmem import library as nvshmem_library

        host, python = nvshmem_library.versions()
    except Exception as error:  # whatever its search for libraries raises
        return _ability("NVSHMEM", False, f"is not complete ({type(error).__name__})", FOR_GPUS)
    return _ability("NVSHMEM", True, f"host library {host}, nvshmem4py {python}", "")


def _backend(row: Backend, known: dict[str, Finding]) -> Finding:
    """Report what `odc_engine run --backend` can do here. `known`: abilities, links and networks by their names."""
    arenas = "memfd" if known["memfd"].ok else "temporary files"
    arenas += "" if known["OFD locks"].ok else ", process-wide locks"
    advice = row.lacks()
    if row.device == backends.USUAL.device:
        hooks = known["FSDP2 hooks"]
        advice = advice if hooks.ok else hooks.advice
    elif not known["CUDA"].ok:
        advice = "needs an NVIDIA GPU"
    elif not advice and isinstance(row, Processes) and row.one_sided:
        # Ranks have to reach each other. What is unknown may be there.
        way = known.get(connections.CARDS if row.across else connections.REACH)
        advice = f"needs {way.name}: {way.found}" if way and not way.ok else ""
    return Finding("backend", backends.label(row), row.says.format(arenas=arenas), not advice, advice)
