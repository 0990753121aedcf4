"""The proof itself: it must pass what is right, and fail what is not."""

import contextlib
import io
import json

import pytest
import torch
from jobs import file_of, job_for
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from odc_engine.devices.process import ProcessDevice, _whole
from odc_engine.errors import EngineError
from odc_engine.memory.arena import Arena
from odc_engine.runs import verify
from odc_engine.runs.verify import BOUND, relative_errors

UNEVEN = (4, 1, 2, 0)
EVEN = (2, 2, 2, 2)


def verified(rank, job, sabotage=None):
    """What is printed, and the error if any."""
    with contextlib.redirect_stdout(io.StringIO()) as out, sabotaged(sabotage if rank == 1 else None):
        try:
            verify._verify(ProcessDevice(job, rank), job, as_json=True)
        except EngineError as error:
            return out.getvalue(), str(error)
    return out.getvalue(), ""


@contextlib.contextmanager
def sabotaged(what):
    saved = Arena.push, Arena.gather
    if what:
        SABOTAGE[what](*saved)
    try:
        yield
    finally:
        Arena.push, Arena.gather = saved


def _last_element_lost(push, _):
    def broken(self, unit, gradients):
        gradients[-1] = 0
        push(self, unit, gradients)

    Arena.push = broken


def _pushed_twice(push, _):
    def broken(self, unit, gradients):
        push(self, unit, gradients)
        if unit == 1:
            push(self, unit, gradients)

    Arena.push = broken


def _shards_swapped(_, gather):
    def broken(self, unit, out):
        gather(self, unit, out)
        out.copy_(out.roll(out.numel() // 2))

    Arena.gather = broken


def _not_a_number(push, _):
    def broken(self, unit, gradients):
        push(self, unit, gradients * float("nan"))

    Arena.push = broken


SABOTAGE = {f.__name__: f for f in (_last_element_lost, _pushed_twice, _shards_swapped, _not_a_number)}


@pytest.mark.parametrize(
    ("sync", "backend", "counts"),
    [
        ("on-demand", "shm", UNEVEN),
        ("collective", "shm", EVEN),
        ("deferred", "shm", EVEN),
        ("collective", "torch", EVEN),
        ("deferred", "torch", EVEN),
    ],
)
def test_what_is_right_passes(pools, sync, backend, counts):
    job = job_for(file_of(counts, (1, 1, 1, 1)), sync, backend)
    (printed, error), *others = pools(4).run(verified, job)
    verdict = json.loads(printed)
    assert (verdict["schema"], verdict["ok"], verdict["bound"], error) == (1, True, BOUND, "")
    assert 0 < verdict["max_relative_error"] == max(verdict["parameters"].values()) <= BOUND
    assert {"embedding.weight", "head.weight", "layers.1.down.weight"} <= set(verdict["parameters"])
    assert others == [("", "")] * 3


@pytest.mark.parametrize(("sync", "backend"), [("on-demand", "shm"), ("collective", "torch")])
def test_so_does_what_keeps_its_activations(pools, sync, backend):
    job = job_for(file_of(EVEN), sync, backend, recompute=False)
    (printed, error), *_ = pools(4).run(verified, job)
    assert (json.loads(printed)["ok"], error) == (True, "")


@pytest.mark.parametrize("sabotage", SABOTAGE)
def test_a_broken_transport_does_not(pools, sabotage):
    (printed, error), *_ = pools(4).run(verified, job_for(file_of(UNEVEN)), sabotage)
    assert not json.loads(printed)["ok"]
    assert "more than 1e-05" in error


def put_together(_rank):
    """Gradients whose rows four devices do not divide, or that have fewer."""
    mesh, found = init_device_mesh("cpu", (4,)), []
    for rows in (5, 4, 2):
        gradient = torch.arange(2.0 * rows).view(rows, 2)
        found.append(torch.equal(_whole(distribute_tensor(gradient, mesh, [Shard(0)])), gradient))
    return found


def test_a_whole_gradient_is_put_together_of_uneven_shards(pools):
    assert pools(4).run(put_together) == [[True] * 3] * 4


def test_errors_are_relative_to_each_parameters_largest():
    mine = {"a": torch.tensor([1.0, 99.0]), "b": torch.tensor([0.5]), "c": torch.zeros(0)}
    reference = {"a": torch.tensor([2.0, 100.0]).double(), "b": torch.zeros(1).double(), "c": torch.zeros(0).double()}
    assert relative_errors(mine, reference) == {"a": 0.01, "b": 0.5, "c": 0.0}


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_what_is_not_a_number_is_endlessly_wrong(bad):
    found = relative_errors({"a": torch.tensor([1.0, float(bad)])}, {"a": torch.ones(2).double()})
    assert found == {"a": float("inf")}


def test_the_table_names_the_worst_parameter_first(capsys):
    verify._report(verify.Verdict(2e-6, BOUND, True, {"good": 1e-7, "worse": 2e-6}), as_json=False)
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.split() == ["2.00e-06", "worse"]
    assert second.split() == ["1.00e-07", "good"]
    assert last == "gradients equal to one process in fp64: largest relative error 2.00e-06"
    with pytest.raises(EngineError, match=r"gradients differ by 3.00e-05, more than 1e-05"):
        verify._report(verify.Verdict(3e-5, BOUND, False, {"bad": 3e-5}), as_json=False)
    assert "NOT equal" in capsys.readouterr().out
