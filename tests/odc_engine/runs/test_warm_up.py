"""Warming up does everything that a minibatch does, and leaves nothing behind: not a bit of a weight."""

from functools import partial

import pytest
import torch
from jobs import job_for
from teams import file_of, minibatch, on_threads

from odc_engine.devices.process import ProcessDevice
from odc_engine.runs.run import _warm_up

FILE = file_of(minibatch([2, 1]), minibatch([1, 2]))


def whole(device) -> dict[str, "torch.Tensor"]:
    if isinstance(device, ProcessDevice):
        return {name: p.full_tensor().detach().clone() for name, p in device.model.named_parameters()}
    return {name: weight.clone() for name, weight in device.whole_weights().items()}


def trained(device, warm: bool) -> list[dict]:
    """Weights at the start, after warming up if that is wanted, and after each minibatch."""
    found = [whole(device)]
    if warm:
        device.warm_up(_warm_up(2))
        found.append(whole(device))
    for number in range(len(FILE.schedules)):
        device.minibatch(number)
        found.append(whole(device))
    return found


def on_process(rank, job, work):
    device = ProcessDevice(job, rank)
    try:
        return work(device)
    finally:
        device.meet()
        device.close()


def weights(pools, backend: str, warm: bool, *, emulate: bool = False) -> list[dict]:
    job = job_for(FILE, "on-demand", backend, emulate=emulate, accumulate="slots")
    work = partial(trained, warm=warm)
    return (on_threads(job, work) if backend == "threads" else pools(2).run(on_process, job, work))[0]


def differing(one: dict, other: dict) -> list[str]:
    return [name for name, weight in one.items() if not torch.equal(weight, other[name])]


@pytest.mark.parametrize("backend", ["shm", "threads"])
def test_weights_and_all_that_comes_after_are_the_same_bits(pools, backend):
    """Slots add up in one order, so two runs are equal to the bit."""
    cold, warm = (weights(pools, backend, warm) for warm in (False, True))
    assert differing(warm[0], warm[1]) == []
    for mine, its in zip(warm[1:], cold, strict=True):
        assert differing(mine, its) == []
    assert differing(cold[0], cold[-1]) == list(cold[0])  # training does change all of them


def test_an_emulated_run_is_warmed_up_by_real_work(pools):
    """Neither computes afterwards, so that nothing changes."""
    for backend in ("shm", "threads"):
        found = weights(pools, backend, True, emulate=True)
        assert all(differing(found[0], each) == [] for each in found)


def warmed(device) -> float:
    device.warm_up(device.job.schedules[0])
    return float(device.minibatch(0).had.max())


def test_a_device_alone_warms_up_and_runs_a_minibatch(pools):
    assert pools(1).run(on_process, job_for(file_of(minibatch((2,)))), warmed)[0] > 0
