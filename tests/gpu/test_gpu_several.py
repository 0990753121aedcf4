"""A GPU for each device, where there are several."""

from dataclasses import asdict

import jobs
import pytest

from odc_engine.backends import cuda_ipc, nccl
from odc_engine.job import job_of
from odc_engine.measuring import profile
from odc_engine.measuring.survey import Survey
from odcsim import catalog, measurements
from odcsim.recipe import Recipe

pytestmark = [pytest.mark.gpu, pytest.mark.limit(50), pytest.mark.usefixtures("transfers")]


@pytest.mark.parametrize("sync", ["collective", "deferred"])
def test_gradients_over_nccl(several, seconds, sync):  # noqa: ARG001
    """Do processes with a GPU each get the gradients of one over NCCL?"""
    from odc_engine.runs.verify import verify

    file = jobs.file_of((2, 2), (2, 2))
    job = job_of(file, sync=sync, backend="torch", device="cuda", timeout=seconds)
    assert verify(file, job, False) == 0


@pytest.mark.limit(80)
def test_exchange(several, note):
    """How fast do GPUs gather and push, against NCCL and their own copy?"""
    from odc_engine.measuring.bandwidth import rates

    for size in (16 << 20, 256 << 20, 1 << 20, 64 << 20):
        code, found = rates(several, [size], cuda_ipc.ROW)
        assert code == 0, "a sum was wrong, or a device failed, see its output"
        note(**{f"{size >> 20} MB": [asdict(rate) for rate in found]})


@pytest.mark.limit(150)
@pytest.mark.parametrize("row", [cuda_ipc.ROW, nccl.ROW], ids=["cuda_ipc", "nccl"])
def test_profile(several, home, tmp_path, note, row):
    """How long do compute and transfers take with a GPU for each process?"""
    model = catalog.model("qwen2.5-0.5b")
    recipe = Recipe(dtype="bfloat16")
    survey = Survey(model=model, devices=(several,), backend=row, most=32768, quick=True, recipe=recipe)
    survey.check()
    survey.check_here()
    found = profile.taken(survey, tmp_path, lambda leg: note(leg=leg))
    measurements.write(found, home / f"{row.name}-{row.device}.measured.json")
    note(measurements=len(found.compute) + len(found.transfers) + len(found.constants))
    assert found.transfers
