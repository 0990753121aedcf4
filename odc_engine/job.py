"""From a schedule file and options to the job that every device is told."""

from odc_engine.worker import Job
from odcsim import catalog
from odcsim.catalog import fits
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.errors import InputError
from odcsim.model import Model
from odcsim.profile import Polynomial, Profile
from odcsim.schedule import ScheduleFile


def job_of(
    file: ScheduleFile,
    *,
    sync: str,
    backend: str = "shm",
    accumulate: str = "locked",
    emulate: bool = False,
    gpu: str | None = None,
    profile: str | None = None,
    timeout: float = 60.0,
) -> Job:
    """Emulated compute needs seconds; real compute takes its own."""
    _refuse_gangs(file)
    model = catalog.model(file.header.model)
    devices = file.header.devices
    if emulate and gpu is None and profile is None:
        raise InputError("--emulate-compute needs seconds to wait", fix="give --profile or --gpu")
    cost = Cost(model, _profile(model, gpu, devices, profile), _one_machine(devices))
    return Job(file.schedules, cost, sync, backend, accumulate, "fsdp2", emulate, timeout, file.header.seed)


def _refuse_gangs(file: ScheduleFile) -> None:
    for number, schedule in enumerate(file.schedules):
        if schedule.gangs:
            count = sum(gang > 1 for gang in schedule.gangs)
            raise InputError(
                f"samples split over several devices ({count} of them) are simulated only: the engine runs each on one",
                where=f"minibatch {number}",
                fix="use another balancer than split",
            )


def _profile(model: Model, gpu: str | None, devices: int, path: str | None) -> Profile:
    if gpu is None and path is None:
        none = Polynomial()
        return Profile(model.name, "", "catalogue", "no seconds: compute is real", none, none, none)
    return fits.choose(model, catalog.gpu(gpu) if gpu else None, devices, path)


def _one_machine(devices: int) -> Cluster:
    """Transfers are real here, so nothing of the cluster is used but how many devices it has."""
    return Cluster(devices, devices, 1.0, 1.0, devices)
