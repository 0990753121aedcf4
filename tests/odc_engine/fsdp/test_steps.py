"""Optimizers beside the communication: one of somebody else's parameters steps as if nobody listened."""

import pytest
import torch
from teams import file_of, minibatch

from odc_engine.devices.process import ProcessDevice
from odc_engine.fsdp.loop import Loop
from odc_engine.fsdp.optimizers.steps import Steps
from odc_engine.job import job_of


def test_a_device_alone_has_no_units_and_its_optimizer_steps():
    weight = torch.nn.Parameter(torch.ones(1))
    asked = []
    loop = Loop(torch.nn.Module(), (), torch.zeros_like)
    steps = Steps(loop, lambda *_: asked.append("before"), lambda _: asked.append("after"))
    weight.grad = torch.ones(1)
    torch.optim.SGD([weight], lr=0.5).step()
    steps.close()
    assert weight.item() == pytest.approx(0.5)
    assert asked == []


def run_alone(rank):
    job = job_of(file_of(minibatch((2,))), sync="on-demand")
    device = ProcessDevice(job, rank)
    device.warm_up(job.schedules[0])
    had = device.minibatch(0).had
    device.close()
    return float(had.max())


def test_a_device_alone_warms_up_and_runs_a_minibatch(pools):
    assert pools(1).run(run_alone)[0] > 0
