"""How GPUs of a node come by arenas that all of them map: one way for all, whatever fails on one of them.

torch's symmetric memory is stood in for as it is in 2.11 and 2.13: its backend is CUDA already, and setting it raises.
"""

import contextlib
import io

import pytest
import torch
import torch.distributed as dist
import work

from odc_engine.backends.cuda_ipc import arenas, legacy_ipc
from odc_engine.backends.cuda_ipc.legacy_ipc import Shown

SYMMETRIC = "torch.distributed._symmetric_memory"


class Handle:
    def get_buffer(self, device, sizes, dtype, offset):
        assert (sizes, dtype, offset) == ((64,), torch.uint8, 0)
        return torch.full(sizes, device, dtype=dtype)


def provided(rank, backend, fails):
    """Which way this device went, or what it was refused, and whether it said so. `fails`: of each device, the steps
    that raise there."""

    def step(name, result):
        def call(*_args, **_how):
            if name in fails[rank]:
                raise RuntimeError(f"no {name} here")
            return result

        return call

    def set_backend(name):
        assert name == "CUDA"
        if backend == "CUDA":
            raise RuntimeError("SymmetricMemory does not find allocation backend CUDA")

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as words:
        patch.setattr(f"{SYMMETRIC}.get_backend", lambda _: backend)
        patch.setattr(f"{SYMMETRIC}.set_backend", set_backend)
        patch.setattr(f"{SYMMETRIC}.empty", step("empty", torch.zeros(64, dtype=torch.uint8)))
        patch.setattr(f"{SYMMETRIC}.rendezvous", step("rendezvous", Handle()))
        patch.setattr(legacy_ipc, "own", step("own", Shown(torch.zeros(64, dtype=torch.uint8), ("how",))))
        patch.setattr(legacy_ipc, "mapped", step("mapped", ([], "handles")))
        found = []
        told = work.told(lambda: found.append(arenas.provided(64, dist.group.WORLD, torch.device("cpu"))))
        if not found:
            return told, words.getvalue()
        every, keep = found[0]
        return keep if keep == "handles" else [int(arena[0]) for arena in every], words.getvalue()


@pytest.mark.parametrize("backend", ["CUDA", None, "NVSHMEM"])
def test_symmetric_memory_is_taken_whatever_its_backend_was(pools, backend):
    assert pools(2).run(provided, backend, [(), ()]) == [([0, 1], ""), ([0, 0], "")]


@pytest.mark.parametrize("step", ["empty", "rendezvous"])
@pytest.mark.parametrize("devices", [(0,), (1,), (0, 1)])
def test_where_it_fails_on_one_device_all_take_handles(pools, step, devices):
    """One device says what failed, and where."""
    first, second = pools(2).run(provided, "CUDA", [(step,) * (device in devices) for device in range(2)])
    why = f"(device {devices[0]}: RuntimeError: no {step} here)"
    assert first == ("handles", f"odc_engine: CUDA IPC handles instead of symmetric memory {why}\n")
    assert second == ("handles", "")


@pytest.mark.parametrize(("device", "step"), [(0, "own"), (1, "mapped")])
def test_where_neither_goes_all_are_told_the_same(pools, device, step):
    fails = [("empty", step) if rank == device else ("empty",) for rank in range(2)]
    (first, _), (second, _) = pools(2).run(provided, "CUDA", fails)
    assert first == second
    assert f"(device {device}: RuntimeError: no {step} here)" in first
