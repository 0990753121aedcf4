"""Explain environment variables that matter to the engine, and find those that contradict it or each other.

Only variables that are set are reported: of Slurm's, those that the engine reads; of NVSHMEM's and NCCL's, all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from odc_engine.backends.nvshmem.heap import EXTRA, HEAP, heap_size
from odc_engine.doctor.finding import Finding
from odc_engine.places import mps
from odc_engine.started import Started, started
from odcsim.errors import InputError

READ_BY_NONE = "the library's own; the engine neither reads nor needs it"
MEANS = {
    "RANK": "torchrun: this is device {value}",
    "WORLD_SIZE": "torchrun: of {value} devices; a schedule for another number is refused",
    "LOCAL_RANK": "torchrun: uses GPU {value} of this machine",
    "LOCAL_WORLD_SIZE": "torchrun: {value} of the devices are on this machine",
    "MASTER_ADDR": "where device 0 has the store that all meet in",
    "MASTER_PORT": "the port of that store",
    "TORCHELASTIC_RESTART_COUNT": "torchrun: times that it has started the devices anew",
    "SLURM_PROCID": "srun: this is device {value}",
    "SLURM_NTASKS": "srun: of {value} devices; a schedule for another number is refused",
    "SLURM_LOCALID": "srun: uses GPU {value} of this machine",
    "SLURM_NODEID": "srun: on machine {value}",
    "SLURM_STEP_TASKS_PER_NODE": "srun: how many devices each machine has",
    "SLURM_STEP_NODELIST": "srun: the first of these has the store, unless MASTER_ADDR says otherwise",
    "SLURM_JOB_ID": "srun: chooses the store's port, together with SLURM_STEP_ID, unless MASTER_PORT does",
    "SLURM_STEP_ID": "srun: this is a task, not the script of a batch job",
    "GLOO_SOCKET_IFNAME": "the network interface that training loops meet over",
    "CUDA_VISIBLE_DEVICES": "the GPUs that the engine sees",
    "CUDA_DEVICE_MAX_CONNECTIONS": "how many queues streams share; unset, the engine sets 32",
    mps.PIPES: "where MPS has its pipes",
    mps.SHARE: "percent of a GPU that MPS gives each process; unset, cuda_ipc gives equal shares where it is up",
    "CUDA_LAUNCH_BLOCKING": "whether every kernel is waited for",
    "NVSHMEM_SYMMETRIC_SIZE": "the heap of each device; unset, the engine makes it as large as the model needs",
    "NVSHMEM_DISABLE_CUDA_VMM": "the heap has the size of NVSHMEM_SYMMETRIC_SIZE from the start and does not grow",
    "NVSHMEM_DISABLE_NVLS": "no multicast: the engine uses none, and sets this where it is unset",
    "NVSHMEM_DISABLE_P2P": "whether GPUs of one machine reach each other by addresses",
    "NVSHMEM_REMOTE_TRANSPORT": "what carries bytes between machines",
    "NVSHMEM_BOOTSTRAP": "not used: the engine starts NVSHMEM by a unique id over torch's store, without MPI or PMI",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "the network interface that NVSHMEM starts over",
    "NVSHMEM_DEBUG": "NVSHMEM says more",
    "NCCL_P2P_DISABLE": "whether NCCL, the rival, copies between the GPUs of a machine",
    "NCCL_IB_DISABLE": "whether NCCL, the rival, uses InfiniBand",
    "NCCL_SOCKET_IFNAME": "the network interface that NCCL starts over",
}
LIBRARIES = ("NVSHMEM_", "NCCL_")
GLOO = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Facts:
    env: Mapping[str, str]
    gpus: int  # that torch sees
    arena: int | None = None  # bytes that a model needs on each device
    mps: bool = False  # its daemon is up
    interfaces: tuple[str, ...] = ()  # networks of this machine; none: not asked
    host: str | None = None  # the address that this machine's own name means, empty without one; None: not asked
    devices: int = 0  # that somebody asks about; 0: nobody does

    def on(self, name: str) -> bool:
        return self.env.get(name, "0").lower() not in ("", "0", "false", "no", "off")

    @cached_property
    def place(self) -> Started | None:
        return started(self.env)

    @property
    def across(self) -> bool:
        """Whether several machines are meant."""
        more = 0 < self.gpus < self.devices and not self.mps
        return more or (self.place is not None and not self.place.one_machine)


Problem = tuple[str, str, str]  # a variable, what is wrong with it, the way out; without one it is no fault


def examine(facts: Facts) -> list[Finding]:
    """Return a line for each variable that is set, and for one that is not and should be."""
    problems: dict[str, tuple[str, str]] = {}
    for look in LOOKS:
        for name, problem, advice in look(facts):
            problems.setdefault(name, (problem, advice))
    names = [name for name in MEANS if name in facts.env]
    names += sorted(name for name in facts.env if name.startswith(LIBRARIES) and name not in MEANS)
    names += [name for name in problems if name not in names]
    return [_finding(facts, name, problems.get(name)) for name in names]


def daemon(facts: Facts) -> list[Finding]:
    """Return a line on MPS if it could matter. It is never an error: one GPU per process needs no MPS."""
    if not (facts.gpus or {mps.PIPES, mps.SHARE} & set(facts.env)):
        return []
    pipe, ends = mps.control(facts.env), f"'{mps.END}' ends it"
    if facts.mps:
        said = f"a daemon is up ({pipe}): processes that share a GPU compute side by side; {ends}"
    else:
        said = f"no daemon is up (no {pipe}): processes that share a GPU take turns; '{mps.START}' starts one, {ends}"
    unset = "" if facts.env.get(mps.SHARE) else f"; {mps.SHARE} is unset"
    return [Finding("environment", "MPS", said + unset, True)]


def _finding(facts: Facts, name: str, problem: tuple[str, str] | None) -> Finding:
    value = facts.env.get(name)
    shown = "unset" if value is None else f"'{value}'"
    if problem is not None:
        return Finding("environment", name, f"{shown}: {problem[0]}", not problem[1], problem[1])
    return Finding("environment", name, f"{shown}: {MEANS.get(name, READ_BY_NONE).format(value=value)}", True)


def _torchrun(facts: Facts) -> Iterator[Problem]:
    env = facts.env
    for name, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if name in env and other not in env:
            yield name, f"without {other} it says nothing, and is ignored", "start by torchrun, or unset it"
    if facts.across and env.get("MASTER_ADDR") in ("localhost", "127.0.0.1"):
        yield "MASTER_ADDR", "no other machine finds the store there", "give the first machine's name"


def _slurm(facts: Facts) -> Iterator[Problem]:
    env = facts.env
    if "SLURM_PROCID" not in env:
        return
    if facts.place is not None and facts.place.by == "torchrun":
        yield "SLURM_PROCID", "ignored: torchrun started this process", ""
    elif facts.place is None:
        what = "the script of a batch job, which is no device" if "SLURM_STEP_ID" not in env else "a task alone"
        yield "SLURM_PROCID", f"ignored: {what}; srun starts devices, or the engine its own here", ""


def _interfaces(facts: Facts) -> Iterator[Problem]:
    for name in (GLOO, "NCCL_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"):
        told = facts.env.get(name, "")
        if facts.across and told.startswith("lo"):
            yield name, "no other machine can be reached over it", "unset it, or name the network's"
        elif told and facts.interfaces and not _there(told, facts.interfaces, exact=name == GLOO):
            yield name, f"no such interface here, but {', '.join(sorted(facts.interfaces))}", "name one of them"
    if facts.across and GLOO not in facts.env and facts.host is not None:
        if not facts.host:
            yield GLOO, "this machine's name has no address, and gloo starts over it", "name the network's interface"
        elif facts.host.startswith("127.") or facts.host == "::1":
            problem = f"this machine's name means {facts.host}, and gloo starts over it: no other machine comes there"
            yield GLOO, problem, "name the network's interface"


def _there(told: str, interfaces: Sequence[str], *, exact: bool) -> bool:
    """Gloo takes all that are named. The others take those that begin so, or are so (=), or begin otherwise (^)."""
    names = [name.partition(":")[0] for name in told.lstrip("^=").split(",")]
    if exact:
        return set(names) <= set(interfaces)
    whole, other = "=" in told[:2], told.startswith("^")
    found = [any(one == name if whole else one.startswith(name) for name in names) for one in interfaces]
    return not all(found) if other else any(found)


def _gpus(facts: Facts) -> Iterator[Problem]:
    env, here = facts.env, facts.place.here if facts.place else 1
    if "CUDA_VISIBLE_DEVICES" in env and facts.gpus == 0:
        yield "CUDA_VISIBLE_DEVICES", "no GPU is left", "unset it for all that runs on GPUs"
    elif "CUDA_VISIBLE_DEVICES" in env and 1 < facts.gpus < here and not facts.mps:
        problem = f"{here} devices share {facts.gpus} GPUs, so that times mean nothing"
        yield "CUDA_VISIBLE_DEVICES", problem, "show every device a GPU of its own"
    if env.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        problem = "transfers queue behind compute, though they have streams of their own"
        yield "CUDA_DEVICE_MAX_CONNECTIONS", problem, "unset it"
    if facts.on("CUDA_LAUNCH_BLOCKING"):
        yield "CUDA_LAUNCH_BLOCKING", "nothing overlaps with anything, so that times mean nothing", "unset it"


def _mps(facts: Facts) -> Iterator[Problem]:
    told = facts.env.get(mps.SHARE)
    if told and mps.percent(told) is None:
        yield mps.SHARE, "is no percentage", "unset it, or give more than 0 and at most 100"
    elif told and not facts.mps:
        yield mps.SHARE, "no MPS daemon is up, so that it does nothing", f"'{mps.START}' starts one, or unset it"


def _heap(facts: Facts) -> Iterator[Problem]:
    try:
        size = heap_size(facts.env)
    except InputError as error:
        yield HEAP, error.problem.partition(" ")[2], error.fix
        return
    if size and facts.arena and size < facts.arena + EXTRA:
        need = facts.arena + EXTRA
        problem = f"too small for the model, which needs {need / 1e9:.2f} GB on each device, with --accumulate slots"
        yield HEAP, problem, f"unset it, then the engine sets what it needs, or give {need}"


def _nvshmem(facts: Facts) -> Iterator[Problem]:
    if facts.on("NVSHMEM_DISABLE_P2P"):
        problem = "devices of one machine are reached over a network, too: slower, and without --accumulate locked"
        yield "NVSHMEM_DISABLE_P2P", problem, "unset it, unless you test the network's path"
    if facts.across and facts.env.get("NVSHMEM_REMOTE_TRANSPORT") == "none":
        yield "NVSHMEM_REMOTE_TRANSPORT", "devices are on several machines, and nothing is to carry bytes", "unset it"
    if facts.gpus == 0 and facts.env.get("NVSHMEM_DEBUG"):
        yield "NVSHMEM_DEBUG", "without a GPU NVSHMEM then ends the process when it is started", "unset it"


def _nccl(facts: Facts) -> Iterator[Problem]:
    if facts.on("NCCL_P2P_DISABLE"):
        problem = "the engine does not read it; where GPUs cannot reach each other, cuda_ipc fails, and nvshmem needs"
        yield (
            "NCCL_P2P_DISABLE",
            f"{problem} NVSHMEM_DISABLE_P2P=1",
            "see 'nvidia-smi topo -p2p r'; unset it where P2P works, or NCCL is no fair rival",
        )
    if facts.on("NCCL_IB_DISABLE"):
        problem = "the engine does not read it; where InfiniBand is out of order, nvshmem across machines needs"
        yield "NCCL_IB_DISABLE", f"{problem} another NVSHMEM_REMOTE_TRANSPORT", "unset it where InfiniBand works"


LOOKS: tuple[Callable[[Facts], Iterator[Problem]], ...] = (
    _torchrun,
    _slurm,
    _interfaces,
    _gpus,
    _mps,
    _heap,
    _nvshmem,
    _nccl,
)
