"""From a schedule file and options to the job that every device is told. Without torch, so that refusals are quick."""

from dataclasses import dataclass, replace

from odcsim import catalog
from odcsim.catalog import fits
from odcsim.cluster import Cluster, read_cluster
from odcsim.cost import Cost
from odcsim.errors import InputError, nearest
from odcsim.model import Model
from odcsim.profile import Polynomial, Profile
from odcsim.program import Program, check_counts
from odcsim.recipe import Recipe
from odcsim.schedule import Schedule, ScheduleFile

BACKENDS = ("shm", "threads", "torch", "cuda_ipc", "nvshmem")
ON_GPUS = ("cuda_ipc", "nvshmem")
CHOICES = ("threads", "torch")  # whose devices compute on a CPU, or on GPUs where `device` is cuda


def parts_gpu(backend: str, device: str) -> bool:
    """Whether devices are groups of one GPU's SMs."""
    return backend == "threads" and device == "cuda"


def has_gpu(backend: str, device: str) -> bool:
    """Whether each device is a process with a GPU."""
    return backend in ON_GPUS or (backend == "torch" and device == "cuda")


@dataclass(frozen=True, slots=True)
class Job:
    """A run, as every device is told."""

    schedules: tuple[Schedule, ...]
    cost: Cost  # sizes, and the seconds that emulated compute waits
    sync: str
    backend: str
    accumulate: str
    prefetch: str
    emulate: bool
    timeout: float
    seed: int
    recompute: bool = True  # layers keep their input alone, and backward computes the rest again
    device: str = "cpu"  # what threads and torch compute on
    dtype: str = "float32"  # of weights on their way, and what is computed in; masters and sums are fp32
    sms: int = 0  # of each thread's part of a GPU; 0: an equal share
    percent: str = ""  # of a GPU for each process, by MPS; empty: an equal share

    @property
    def recipe(self) -> Recipe:
        """As it is run."""
        own = ("sync", "prefetch", "recompute", "accumulate", "dtype")
        return replace(self.cost.ran, **{name: getattr(self, name) for name in own})

    def program(self, microbatches: int) -> Program:
        return self.recipe.program(self.cost.model.layers, microbatches)

    def program_of(self, schedule: Schedule) -> Program:
        """Long enough for whoever takes the whole queue."""
        return self.program(max(schedule.microbatches) + len(schedule.queue))


def job_of(
    file: ScheduleFile,
    *,
    sync: str,
    backend: str = "shm",
    accumulate: str = "locked",
    emulate: bool = False,
    gpu: str | None = None,
    profile: str | None = None,
    cluster: str | None = None,
    sharding: str = "full",
    devices_per_node: int | None = None,
    timeout: float = 60.0,
    recompute: bool = True,
    device: str = "cpu",
    dtype: str = "float32",
) -> Job:
    """Emulated compute needs seconds, and takes `cluster`'s luck and slow devices; real compute takes its own."""
    _refuse_gangs(file)
    model = catalog.model(file.header.model)
    devices = file.header.devices
    if emulate and gpu is None and profile is None:
        raise InputError("--emulate-compute needs seconds to wait", fix="give --profile or --gpu")
    if (sharding == "hybrid") != (devices_per_node is not None):
        raise InputError(
            f"--sharding {sharding} {'without' if devices_per_node is None else 'with'} --devices-per-node",
            fix="hybrid sharding needs to know how many devices stand for a node, full sharding does not",
        )
    machine = replace(_machine(devices, cluster, emulate), devices_per_node=devices_per_node or devices)
    recipe = Recipe(sync=sync, recompute=recompute, sharding=sharding, accumulate=accumulate, dtype=dtype)
    cost = Cost(model, _profile(model, gpu, devices, profile, recipe), machine, recipe)
    what = (sync, backend, accumulate, "fsdp2", emulate, timeout, file.header.seed, recompute, device, dtype)
    return Job(file.schedules, cost, *what)


def check_job(file: ScheduleFile, job: Job) -> None:
    """Refuse what would hang or cannot run anywhere."""
    if job.backend not in BACKENDS:
        raise InputError(f"unknown backend '{job.backend}'", fix=nearest(job.backend, list(BACKENDS)))
    check_device(job.device, job.backend)
    if job.backend == "torch" and job.sync == "on-demand":
        raise InputError(
            "backend torch has collectives only", fix="use --backend shm, or --sync collective or deferred"
        )
    if job.cost.sharded == "hybrid" and job.backend == "torch":
        fix = f"use --backend {', '.join(name for name in BACKENDS if name != job.backend)}"
        raise InputError("backend torch has no hybrid sharding", fix=fix)
    for number, schedule in enumerate(file.schedules):
        check_counts(job.sync, schedule.microbatches, len(schedule.queue), where=f"minibatch {number}")


def check_device(device: str, backend: str) -> None:
    """Where it is the user's choice what computes."""
    if device != "cpu" and backend not in CHOICES:
        fix = f"--backend {' or '.join(CHOICES)}, or leave --device out"
        raise InputError(f"--device {device} with backend {backend}", fix=fix)


def check_model(shape: Model) -> None:
    """Only what this decoder really computes: another shape's measurements would carry its name without its cost."""
    odd = {
        "mixture of experts": shape.experts,
        "sliding windows": shape.window_layers,
        "linear attention": shape.linear_layers,
        "latent attention": shape.latent_rank,
        "gated attention": shape.gated,
        "values of another size than keys": shape.value_dim not in (0, shape.head_dim),
        "an odd head size": shape.head_dim % 2,
        "query heads that key heads do not divide": shape.heads % shape.kv_heads,
    }
    if found := [name for name, present in odd.items() if present]:
        raise InputError(
            f"model '{shape.name}' has {' and '.join(found)}, which the engine does not compute",
            fix="take tiny, nano or a dense model such as qwen3-8b",
        )


def _refuse_gangs(file: ScheduleFile) -> None:
    for number, schedule in enumerate(file.schedules):
        if schedule.gangs:
            count = sum(gang > 1 for gang in schedule.gangs)
            raise InputError(
                f"samples split over several devices ({count} of them) are simulated only: the engine runs each on one",
                where=f"minibatch {number}",
                fix="use another balancer than split",
            )


def _profile(model: Model, gpu: str | None, devices: int, path: str | None, recipe: Recipe) -> Profile:
    if gpu is None and path is None:
        none = Polynomial()
        told = "no seconds: compute is real"
        return Profile(model.name, "", "catalogue", told, none, none, none, recompute=recipe.recompute)
    return fits.choose(model, catalog.gpu(gpu) if gpu else None, devices, path, recipe)


def _machine(devices: int, path: str | None, emulate: bool) -> Cluster:
    """Transfers are real here, so nothing of the cluster is used but what changes compute."""
    here = Cluster(devices, devices, 1.0, 1.0, devices)
    if path is None:
        return here
    if not emulate:
        raise InputError("--cluster says how compute shall be, and compute is real", fix="add --emulate-compute")
    found = read_cluster(path, here)
    for drawn in ("jitter", "swing"):
        if getattr(found, drawn):
            fix = "use sample_noise, or leave it out"
            raise InputError(f"{drawn} is drawn by the simulator alone", where=path, fix=fix)
    return replace(here, slow=found.slow, sample_noise=found.sample_noise)
