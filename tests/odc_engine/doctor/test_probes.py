"""What probes do on a GPU, done on a CPU as far as that goes: they would report the right bytes as right, and wrong
ones as wrong."""

import os
import time
from dataclasses import replace

import pytest
import shards
import torch
import torch.distributed as dist

from odc_engine.doctor.probes import gloo, kernels, peers, processes, threads
from odc_engine.doctor.probes.base import CPU, FAILED, OK, Hearing
from odc_engine.doctor.probes.ranks import on_ranks
from odc_engine.doctor.probes.together import ends
from odc_engine.runs import verify

needs_triton = pytest.mark.skipif(
    not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt"
)


def apart(nbytes, group, _device):
    """Arenas that nobody else sees."""
    return [torch.zeros(nbytes + 16, dtype=torch.uint8)[:nbytes] for _ in range(group.size())], None


def exercised(rank, arenas):
    shards.interpreted()
    return peers.work(rank, arenas, "cpu", 300)


@needs_triton
def test_processes_that_reach_each_other_pass(pools):
    assert pools(2).run(exercised, peers.in_shared_memory) == [{"gather": True, "add": True}] * 2


@needs_triton
def test_processes_that_do_not_reach_each_other_fail(pools):
    assert pools(2).run(exercised, apart) == [{"gather": False, "add": False}] * 2


def checked(_rank):
    shards.interpreted()
    return kernels.checked(300, "cpu")


@needs_triton
def test_kernels_that_move_the_right_bytes_pass(pools):
    assert pools(1).run(checked) == [dict.fromkeys(("write", "gather", "add", "total"), True)]


def over_gloo(rank):
    return gloo.work(rank, "cpu")


def test_gloo_on_a_cpu(pools):
    for found in pools(2).run(over_gloo):
        assert {name: right for name, (right, _) in found.items()} == {"gather": True, "reduce-scatter": True}


def summed(rank, fail):
    if rank == 1 and fail == "raises":
        raise ValueError("of\nrank 1")
    if rank == 1 and fail == "ends":
        os._exit(3)
    total = torch.tensor(1.0 + rank)
    if not fail:
        dist.all_reduce(total)
    return total.item()


def test_processes_of_a_probe_meet_and_answer():
    assert on_ranks(summed, 2, 60.0, "") == [3.0, 3.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fail", "message"), [("raises", "process 1: ValueError: of rank 1"), ("ends", "process 1 ended without an answer")]
)
def test_a_process_that_fails_is_named(fail, message):
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        on_ranks(summed, 2, 60.0, fail)


@pytest.fixture
def hearing(tmp_path):
    return Hearing(tmp_path, CPU, "probe", 60.0)


def test_gradients_that_are_off_fail_and_stop_no_other(hearing, monkeypatch):
    assert threads.one_stream(hearing).status == OK
    true = verify.reference_gradients
    wrong = {"collective": 1.001, "deferred": None}

    def off(job, schedule):
        if wrong.get(job.recipe.sync, 1.0) is None:
            raise RuntimeError("no memory")
        return {name: g * wrong.get(job.recipe.sync, 1.0) for name, g in true(job, schedule).items()}

    monkeypatch.setattr(verify, "reference_gradients", off)
    answer = threads.one_stream(replace(hearing, name="off"))
    assert answer.status == FAILED
    assert "collective: gradients differ by 1.0e-03; deferred: RuntimeError: no memory" in answer.found
    assert "2 of 4 have the gradients" in answer.found


def test_a_step_that_begins_before_what_it_needs_is_named(hearing, monkeypatch):
    assert threads.times(replace(hearing, name="fine")).status == OK

    def early(device):
        recorded = timed(device)
        recorded.asked[-1] -= 1e3
        return recorded

    timed = threads._timed
    monkeypatch.setattr(threads, "_timed", early)
    answer = threads.times(hearing)
    assert answer.status == FAILED
    assert "did not wait for" in answer.found


def test_processes_that_fail_are_named(hearing, monkeypatch):
    codes = iter([0, 1, 0])
    monkeypatch.setattr(verify, "verify", lambda *_: next(codes))
    answer = processes.two(hearing)
    assert (answer.status, answer.found) == (FAILED, "failed: collective 2")


@needs_triton
def test_kernels_that_move_wrong_bytes_in_some_case_are_named(pools):
    assert pools(1).run(spoilt) == [["gather", "gather"]]


def spoilt(_rank):
    import tempfile
    from pathlib import Path

    transfers = shards.interpreted()
    true = transfers.gather
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfers, "gather", lambda *of: (true(*of), of[1].add_(1.0)))
        wrong = kernels._drawn(Hearing(Path(folder), CPU, "kernels"))
    return [name.split()[0] for name in wrong]


def test_streams_that_are_threads_end_when_their_work_does():
    short, long = ends([None, None], [(lambda: time.sleep(0.01), 1), (lambda: time.sleep(0.05), 2)])
    assert 0.01 <= short < long
    assert long >= 0.1


def test_what_runs_beside_a_product_is_the_engines_own_gather(tmp_path, monkeypatch):
    from odc_engine.doctor.probes import beside
    from odc_engine.kernels import copies

    moved, usual = [], copies.Parts.collect

    def collect(parts, whole):
        moved.append(parts._count)
        usual(parts, whole)

    monkeypatch.setattr(copies.Parts, "collect", collect)
    for name in ("GEMMS", "MOVES", "ROUNDS"):
        monkeypatch.setattr(beside, name, 1)
    assert beside.probe(Hearing(tmp_path, CPU, "beside")).status == OK
    assert set(moved) == {beside.DEVICES}
