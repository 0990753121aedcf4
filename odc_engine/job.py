"""Combine a schedule file and options into the job that every rank runs. Works without torch, so that refusals are
quick."""

from dataclasses import dataclass, replace
from typing import Any

from odc_engine import backends
from odc_engine.backends.backend import Backend, Use
from odc_engine.backends.patience import LIMIT
from odc_engine.started import started
from odcsim import catalog
from odcsim.cluster import Cluster, read_cluster
from odcsim.cost import Cost
from odcsim.errors import InputError
from odcsim.model import Model
from odcsim.profile import Polynomial, Profile
from odcsim.program import Program, check_counts
from odcsim.recipe import Recipe, recipe_of
from odcsim.schedule import Schedule, ScheduleFile


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the engine, the same for every rank."""

    schedules: tuple[Schedule, ...]
    cost: Cost  # sizes and the recipe, and the seconds that emulated compute waits
    backend: Backend
    emulate: bool
    timeout: float
    seed: int
    part: str = ""  # of a GPU for each device, as the backend's `part` says it; empty: equal ones

    @property
    def devices(self) -> int:
        return len(self.schedules[0].devices)

    @property
    def use(self) -> Use:
        """Return what the backend has to know of the job on this machine."""
        place = started()
        return Use(
            devices=place.here if place else self.devices,
            recipe=self.recipe,
            emulate=self.emulate,
            part=self.part,
        )

    @property
    def recipe(self) -> Recipe:
        """The recipe as it is run."""
        return self.cost.ran

    def program(self, microbatches: int) -> Program:
        return self.cost.program(microbatches)

    def program_of(self, schedule: Schedule) -> Program:
        """Return a program long enough for a rank that takes the whole queue."""
        return self.program(max(schedule.microbatches) + len(schedule.queue))


def job_of(
    file: ScheduleFile,
    *,
    backend: str = backends.USUAL.name,
    emulate: bool = False,
    gpu: str | None = None,
    profile: str | None = None,
    cluster: str | None = None,
    devices_per_node: int | None = None,
    timeout: float = LIMIT,
    device: str = backends.USUAL.device,
    **choices: Any,
) -> Job:
    """Build a job. Emulated compute needs step times, and uses `cluster`'s noise and slow devices; real compute ignores
    them.

    `choices`: fields of the recipe, such as `sync="collective"`.
    """
    model, recipe = catalog.model(file.header.model), recipe_of(choices).sharded("full")
    devices = file.header.devices
    if emulate and gpu is None and profile is None:
        raise InputError("--emulate-compute needs step times", fix="give --profile or --gpu")
    _check_nodes(recipe, devices_per_node)
    if recipe.context > 1:
        fix = "leave it out: trainers share sequences by PyTorch's context_parallel, which the engine does not run"
        raise InputError(f"--context {recipe.context}", fix=fix)
    machine = replace(_machine(devices, cluster, emulate), devices_per_node=devices_per_node or devices)
    cost = Cost(model, _profile(model, gpu, devices, profile, recipe), machine, recipe)
    return Job(
        schedules=file.schedules,
        cost=cost,
        backend=backends.chosen(backend, device),
        emulate=emulate,
        timeout=timeout,
        seed=file.header.seed,
    )


def _check_nodes(recipe: Recipe, devices_per_node: int | None) -> None:
    if recipe.hierarchical and devices_per_node is None:
        raise InputError("--far hierarchical without --devices-per-node", fix="say how many devices stand for a node")
    if (recipe.sharding == "hybrid" or recipe.hierarchical) != (devices_per_node is not None):
        raise InputError(
            f"--sharding {recipe.sharding} {'without' if devices_per_node is None else 'with'} --devices-per-node",
            fix="hybrid sharding needs to know how many devices stand for a node, full sharding does not",
        )


def check_job(file: ScheduleFile, job: Job) -> None:
    """Raise if the job would hang, or cannot run on any machine."""
    backends.check(job.backend, job.recipe)
    job.recipe.check_adapters(job.cost.model)
    for number, schedule in enumerate(file.schedules):
        check_counts(job.recipe.sync, schedule.microbatches, len(schedule.queue), where=f"minibatch {number}")


def check_model(shape: Model) -> None:
    """Raise if the engine's decoder cannot compute this model: measurements would carry its name with another
    model's cost."""
    odd = {
        "mixture of experts": shape.experts,
        "sliding windows": shape.window_layers,
        "linear attention": shape.linear_layers,
        "sparse attention": shape.sparse_layers,
        "latent attention": shape.latent_rank,
        "gated attention": shape.gated,
        "an MLP without a gate": shape.plain_mlp,
        "values of another size than keys": shape.value_dim not in (0, shape.head_dim),
        "an odd head size": shape.head_dim % 2,
        "query heads that key heads do not divide": shape.heads % shape.kv_heads,
    }
    if found := [name for name, present in odd.items() if present]:
        raise InputError(
            f"model '{shape.name}' has {' and '.join(found)}, which the engine does not compute",
            fix="take tiny, nano or a dense model such as qwen3-8b",
        )


def _profile(model: Model, gpu: str | None, devices: int, path: str | None, recipe: Recipe) -> Profile:
    if gpu is None and path is None:
        none = Polynomial()
        told = "no seconds: compute is real"
        return Profile(model.name, "", "catalogue", told, none, none, none, recompute=recipe.recomputes)
    return catalog.profile_for(model, catalog.gpu(gpu) if gpu else None, devices, path, recipe)


def _machine(devices: int, path: str | None, emulate: bool) -> Cluster:
    """Return the cluster for emulated compute. Transfers are real, so that only what changes compute is used."""
    here = Cluster(devices, devices, 1.0, 1.0, devices)
    if path is None:
        return here
    if not emulate:
        raise InputError("--cluster changes emulated compute only, and compute is real", fix="add --emulate-compute")
    found = read_cluster(path, here)
    for drawn in ("jitter", "swing"):
        if getattr(found, drawn):
            fix = "use sample_noise, or leave it out"
            raise InputError(f"{drawn} is supported by the simulator only", where=path, fix=fix)
    return replace(here, slow=found.slow, sample_noise=found.sample_noise)
