"""Processes on one GPU, through torch's symmetric memory."""

from odc_engine.doctor.probes.base import Answer
from odc_engine.doctor.probes.driver import need, need_torch
from odc_engine.doctor.probes.peers import exercised
from odc_engine.errors import FOR_GPUS


def probe() -> Answer:
    need_torch()
    need("triton", FOR_GPUS)
    from odc_engine.backends.cuda_ipc.symmetric import arenas

    return exercised(arenas, (2, 4), 80)
