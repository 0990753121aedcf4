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
from dataclasses import asdict, dataclass

from odc_engine import backends
from odc_engine.backends.backend import Backend, Processes
from odc_engine.backends.shm.nameless import nameless_file
from odc_engine.doctor import environment, network, pairs, room
from odc_engine.doctor.environment import Facts
from odc_engine.doctor.finding import Finding
from odc_engine.errors import FOR_ENGINE, FOR_GPUS
from odc_engine.places import mps
from odcsim.errors import InputError

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
    abilities, facts = _abilities(), _facts(asked)
    links = pairs.examine(facts.gpus)
    cards = network.examine() if facts.across else []
    rooms = room.examine(asked.model, asked.of_model, facts.gpus, _bytes_of_gpu()) if asked.model else ()
    found = [*_machine(), *_packages(), *abilities, *links, *cards, *rooms, *variables(asked)]
    return [*found, *_backends({each.name: each for each in (*abilities, *links, *cards)})]


def at_fault(findings: list[Finding], asked: Inquiry = NOTHING) -> bool:
    """Whether what shall run will fail, or not run as it should: a wrong variable, a model that does not fit, or a
    missing backend. What was not asked for may be missing."""
    rooms = [f.ok for f in findings if f.area == "memory"]
    wrong = any(not f.ok for f in findings if f.area == "environment") or (bool(rooms) and not any(rooms))
    name = backends.label(asked.backend) if asked.backend else None
    return wrong or any(not f.ok for f in findings if f.area == "backend" and f.name == name)


def variables(asked: Inquiry = NOTHING) -> list[Finding]:
    """Return what the environment variables mean."""
    facts = _facts(asked)
    return [*environment.examine(facts), *environment.daemon(facts)]


def _facts(asked: Inquiry) -> Facts:
    env = dict(os.environ)
    arena = room.arena(asked.model, asked.of_model) if asked.model else None
    interfaces = tuple(name for _, name in socket.if_nameindex())
    return Facts(env, _gpus(), arena, mps.up(env), interfaces, _own_address(), asked.devices)


def _own_address() -> str:
    """Return the address of this machine's name, which gloo uses unless it is given an interface."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])
    except OSError:
        return ""


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


def _machine() -> list[Finding]:
    shm = shutil.disk_usage("/dev/shm").free / 1e9 if os.path.isdir("/dev/shm") else 0.0  # noqa: PTH112
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    python = platform.python_version()
    return [
        Finding("machine", "system", f"{platform.system()} {platform.machine()}", True),
        Finding(
            "machine", "python", python, sys.version_info >= (3, 11), "" if sys.version_info >= (3, 11) else "3.11"
        ),
        Finding("machine", "cores", str(cores), True),
        Finding("machine", "/dev/shm", f"{shm:.1f} GB free" if shm else "absent", True),
    ]


def _packages() -> list[Finding]:
    return [_package(name) for name in PACKAGES]


def _package(name: str) -> Finding:
    try:
        return Finding("package", name, importlib.metadata.version(name), True)
    except importlib.metadata.PackageNotFoundError:
        advice = {"torch": FOR_ENGINE, "triton": FOR_GPUS, "nvshmem4py-cu13": FOR_GPUS}.get(name, "")
        return Finding("package", name, "not installed", False, advice)


def _abilities() -> list[Finding]:
    return [_memfd(), _locks(), _pidfd(), _hooks(), _cuda(), _copies(), _nvshmem()]


def _backends(abilities: dict[str, Finding]) -> list[Finding]:
    """Report what `odc_engine run --backend` can do here."""
    return [_backend(row, abilities) for row in backends.ROWS if row.says]


def _backend(row: Backend, abilities: dict[str, Finding]) -> Finding:
    arenas = "memfd" if abilities["memfd"].ok else "temporary files"
    arenas += "" if abilities["OFD locks"].ok else ", process-wide locks"
    name, found, lacks = backends.label(row), row.says.format(arenas=arenas), row.lacks()
    if row.device == backends.USUAL.device:
        hooks = abilities["FSDP2 hooks"]
        return Finding("backend", name, found, hooks.ok and not lacks, hooks.advice if not hooks.ok else lacks)
    there = abilities["CUDA"].ok
    advice = lacks or _without(row, abilities) if there else "needs an NVIDIA GPU"
    return Finding("backend", name, found, there and not advice, advice)


def _without(row: Backend, abilities: dict[str, Finding]) -> str:
    """Return what is missing for ranks to reach each other, "" if nothing is or it is unknown."""
    if not isinstance(row, Processes) or not row.one_sided:
        return ""
    needs = abilities.get(network.CARDS if row.across else pairs.REACH)
    return f"needs {needs.name}: {needs.found}" if needs and not needs.ok else ""


def _ability(name: str, ok: bool, used_for: str, advice: str) -> Finding:
    return Finding("ability", name, used_for, ok, "" if ok else advice)


def _memfd() -> Finding:
    """An anonymous shared file that peers open through /proc: nothing stays behind when its owner dies."""
    if (fd := nameless_file()) is not None:
        os.close(fd)
    advice = "needs Linux with /proc, and no seccomp that refuses it: temporary files take its place"
    return _ability("memfd", fd is not None, "shared memory without a name to leak", advice)


def _locks() -> Finding:
    ok = hasattr(fcntl, "F_OFD_SETLKW")
    return _ability("OFD locks", ok, "locks that die with their holder", "needs Linux >= 3.15")


def _pidfd() -> Finding:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        ok = False
    else:
        ok = True
    return _ability("pidfd", ok, "notice a dead peer at once", "needs Linux >= 5.3")


def _hooks() -> Finding:
    """What the engine uses of FSDP2, tried as where OnDemand is made."""
    try:
        import torch  # noqa: F401 - what is loaded already may outlive it

        from odc_engine.fsdp.groups import try_alone
    except ImportError:
        return _ability("FSDP2 hooks", False, "torch is not installed", FOR_ENGINE)
    try:
        found = "all names that on-demand needs" if try_alone() else "not tried inside a run"
    except InputError as error:
        return _ability("FSDP2 hooks", False, error.problem, error.fix)
    return _ability("FSDP2 hooks", True, found, "")


def _gpus() -> int:
    """Return the GPUs that torch sees."""
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count()


def _bytes_of_gpu() -> int:
    """Return the memory of the smallest GPU, 0 without one."""
    count = _gpus()
    if not count:
        return 0
    import torch

    return min(int(torch.cuda.get_device_properties(gpu).total_memory) for gpu in range(count))


def _cuda() -> Finding:
    try:
        import torch
    except ImportError:
        return _ability("CUDA", False, "torch is not installed", "only for GPUs")
    if not torch.cuda.is_available():
        return _ability("CUDA", False, "no GPU that torch can use", "only for GPUs; the CPU engine does without")
    names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    return _ability("CUDA", True, f"{torch.cuda.device_count()} x {', '.join(sorted(names))}", "")


def _copies() -> Finding:
    """Between GPUs they go to the driver as one batch, which leaves all SMs to compute."""
    name, advice = "batched copies", "copies go one by one: a driver of CUDA 13, and cuda-bindings"
    try:
        from odc_engine.kernels.copies import batches
    except ImportError:
        return _ability(name, False, "torch is not installed", FOR_ENGINE)
    there = batches()
    return _ability(name, there, "a gather is one call of the driver" if there else "no driver takes them", advice)


def _nvshmem() -> Finding:
    name, advice = "NVSHMEM", FOR_GPUS
    if not importlib.util.find_spec("nvshmem"):
        return _ability(name, False, "nvshmem4py is not installed", advice)
    try:
        from odc_engine.backends.nvshmem import library as nvshmem_library

        host, python = nvshmem_library.versions()
    except Exception as error:  # whatever its search for libraries raises
        return _ability(name, False, f"is not complete ({type(error).__name__})", advice)
    return _ability(name, True, f"host library {host}, nvshmem4py {python}", "")
