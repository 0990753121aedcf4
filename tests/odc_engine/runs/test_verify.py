"""The proof itself: it must pass what is right, and fail what is not."""

import contextlib
import io
import json
from functools import partial

import pytest
import torch
from jobs import file_of, job_for
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from odc_engine.devices.process import ProcessDevice, _whole
from odc_engine.errors import EngineError
from odc_engine.memory.arena import Arena
from odc_engine.runs import verify
from odc_engine.runs.check import Distances
from odc_engine.runs.verify import BOUND, relative_errors

UNEVEN = (4, 1, 2, 0)
EVEN = (2, 2, 2, 2)


def verified(rank, job, sabotage=None):
    """What is printed, and whether it ends in an error."""
    with contextlib.redirect_stdout(io.StringIO()) as out, sabotaged(sabotage if rank == 1 else None):
        try:
            verify._verify(ProcessDevice(job, rank), job, as_json=True)
        except EngineError:
            return out.getvalue(), True
    return out.getvalue(), False


@contextlib.contextmanager
def sabotaged(what):
    with pytest.MonkeyPatch.context() as patch:
        if what:
            name = "gather" if what is shards_swapped else "push"
            usual = getattr(Arena, name)
            patch.setattr(Arena, name, lambda self, unit, values: what(partial(usual, self, unit), unit, values))
        yield


def last_element_lost(push, _, gradients):
    gradients[-1] = 0
    push(gradients)


def pushed_twice(push, unit, gradients):
    for _ in range(2 if unit == 1 else 1):
        push(gradients)


def not_a_number(push, _, gradients):
    push(gradients * float("nan"))


def shards_swapped(gather, _, out):
    gather(out)
    out.copy_(out.roll(out.numel() // 2))


RIGHT = [("on-demand", "shm", UNEVEN, {}), ("on-demand", "shm", EVEN, {"recompute": False})]
RIGHT += [(sync, backend, EVEN, {}) for sync in ("collective", "deferred") for backend in ("shm", "torch")]
RIGHT += [("collective", "torch", EVEN, {"recompute": False})]


@pytest.mark.parametrize(("sync", "backend", "counts", "choices"), RIGHT)
def test_what_is_right_passes(pools, sync, backend, counts, choices):
    job = job_for(file_of(counts, (1, 1, 1, 1)), sync, backend, **choices)
    (printed, failed), *others = pools(4).run(verified, job)
    verdict = json.loads(printed)
    assert (verdict["schema"], verdict["ok"], verdict["bound"], failed) == (1, True, BOUND, False)
    assert 0 < verdict["max_relative_error"] == max(verdict["parameters"].values()) <= BOUND
    assert {"embedding.weight", "head.weight", "layers.1.down.weight"} <= set(verdict["parameters"])
    assert others == [("", False)] * 3


@pytest.mark.parametrize("sabotage", [last_element_lost, pushed_twice, shards_swapped, not_a_number])
def test_a_broken_transport_does_not(pools, sabotage):
    (printed, failed), *_ = pools(4).run(verified, job_for(file_of(UNEVEN)), sabotage)
    assert not json.loads(printed)["ok"]
    assert failed


def put_together(_rank):
    """Gradients whose rows four devices do not divide, or that have fewer."""
    mesh, found = init_device_mesh("cpu", (4,)), []
    for rows in (5, 4, 2):
        gradient = torch.arange(2.0 * rows).view(rows, 2)
        found.append(torch.equal(_whole(distribute_tensor(gradient, mesh, [Shard(0)])), gradient))
    return found


def test_a_whole_gradient_is_put_together_of_uneven_shards(pools):
    assert pools(4).run(put_together) == [[True] * 3] * 4


def test_errors_are_relative_to_each_parameters_largest_and_endless_where_one_is_no_number():
    mine = {"a": torch.tensor([1.0, 99.0]), "b": torch.tensor([0.5]), "c": torch.zeros(0)}
    reference = {"a": torch.tensor([2.0, 100.0]).double(), "b": torch.zeros(1).double(), "c": torch.zeros(0).double()}
    assert relative_errors(mine, reference) == {"a": 0.01, "b": 0.5, "c": 0.0}
    for bad in ("nan", "inf"):
        found = relative_errors({"a": torch.tensor([1.0, float(bad)])}, {"a": torch.ones(2).double()})
        assert found == {"a": float("inf")}


def test_the_worst_parameter_comes_first(capsys):
    verify._report(verify.Verdict(2e-6, BOUND, True, {"good": 1e-7, "worse": 2e-6}), as_json=False)
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[:2]] == ["worse", "good"]
    with pytest.raises(EngineError):
        verify._report(verify.Verdict(3e-5, BOUND, False, {"bad": 3e-5}), as_json=False)


@pytest.mark.parametrize(("distance", "ok"), [(1e-5, True), (1.1e-5, False)])
def test_the_worst_parameter_is_the_verdict_in_figures_and_in_words(distance, ok):
    found = Distances(devices=2, passes=3, bound=1e-5, parameters={"fine": 0.0, "worst": distance, "other": 1e-9})
    assert (found.worst, found.ok, "NOT" in str(found)) == ("worst", ok, not ok)
