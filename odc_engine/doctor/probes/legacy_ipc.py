"""Processes on one GPU, through CUDA IPC handles."""

from odc_engine.doctor.probes.base import Answer
from odc_engine.doctor.probes.driver import need, need_torch
from odc_engine.doctor.probes.peers import exercised
from odc_engine.errors import FOR_GPUS


def probe() -> Answer:
    need_torch()
    need("triton", FOR_GPUS)
    from odc_engine.backends.cuda_ipc.legacy_ipc import arenas

    return exercised(arenas, (2,), 100)
