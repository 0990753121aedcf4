"""How devices come by arenas that all of them map: one way for all, whatever fails on one of them.

torch's symmetric memory is stood in for as it is in 2.11 and 2.13: its backend is CUDA already, and setting it raises.
"""

import pytest
import torch
import torch.distributed as dist
import work

from odc_engine.backends.cuda_ipc import arenas, legacy_ipc
from odc_engine.backends.cuda_ipc.legacy_ipc import Shown

SYMMETRIC = "torch.distributed._symmetric_memory"


class Handle:
    def __init__(self, size):
        self.size = size

    def get_buffer(self, device, sizes, dtype, offset):
        assert (sizes, dtype, offset) == ((self.size,), torch.uint8, 0)
        return torch.full(sizes, device, dtype=dtype)


def stand_in(patch, backend="CUDA", fails=""):
    """`fails`: what of it raises here."""

    def answer(name, result):
        def call(*_args, **_how):
            if name == fails:
                raise RuntimeError(f"no {name} here")
            return result

        return call

    def set_backend(name):
        assert name == "CUDA"
        if backend == "CUDA":
            raise RuntimeError("SymmetricMemory does not find allocation backend CUDA")

    patch.setattr(f"{SYMMETRIC}.get_backend", lambda _: backend)
    patch.setattr(f"{SYMMETRIC}.set_backend", set_backend)
    patch.setattr(f"{SYMMETRIC}.empty", answer("empty", torch.zeros(64, dtype=torch.uint8)))
    patch.setattr(f"{SYMMETRIC}.rendezvous", answer("rendezvous", Handle(64)))


def provided(rank, backend, fails):
    """Which way this device went. `fails`: of each device, what of symmetric memory raises there."""
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch, backend, fails[rank])
        patch.setattr(legacy_ipc, "own", lambda *_: Shown(torch.zeros(64, dtype=torch.uint8), ("how",)))
        patch.setattr(legacy_ipc, "mapped", lambda *_: ([], "handles"))
        every, keep = arenas.provided(64, dist.group.WORLD, torch.device("cpu"))
        return "handles" if keep == "handles" else [int(arena[0]) for arena in every]


@pytest.mark.parametrize("backend", ["CUDA", None, "NVSHMEM"])
def test_symmetric_memory_is_taken_whatever_its_backend_was(pools, backend):
    assert pools(2).run(provided, backend, ["", ""]) == [[0, 1], [0, 0]]


@pytest.mark.parametrize("step", ["empty", "rendezvous"])
@pytest.mark.parametrize("devices", [(0,), (1,), (0, 1)])
def test_where_it_fails_on_one_device_all_take_handles(pools, step, devices):
    fails = [step if device in devices else "" for device in range(2)]
    assert pools(2).run(provided, "CUDA", fails) == ["handles"] * 2


def said(rank, fails):
    import contextlib
    import io

    with contextlib.redirect_stderr(io.StringIO()) as words:
        provided(rank, "CUDA", fails)
    return words.getvalue()


def test_one_device_says_what_failed_and_where(pools):
    first, second = pools(2).run(said, ["", "rendezvous"])
    wanted = "odc_engine: CUDA IPC handles instead of symmetric memory (device 1: RuntimeError: no rendezvous here)\n"
    assert (first, second) == (wanted, "")


def with_neither(rank, fails):
    """Symmetric memory fails everywhere, and on these devices what comes in its place."""

    def fail(*_):
        raise RuntimeError("CUDA error: peer access is not supported")

    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch, fails="empty")
        shown = Shown(torch.zeros(64, dtype=torch.uint8), ("how",))
        patch.setattr(legacy_ipc, "own", fail if fails[rank] == "own" else lambda *_: shown)
        patch.setattr(legacy_ipc, "mapped", fail if fails[rank] == "mapped" else lambda *_: ([], "handles"))
        return work.told(lambda: arenas.provided(64, dist.group.WORLD, torch.device("cpu")))


@pytest.mark.parametrize("fails", [("own", ""), ("", "mapped")])
def test_where_neither_goes_all_are_told_the_same(pools, fails):
    first, second = pools(2).run(with_neither, fails)
    device = 0 if fails[0] else 1
    wanted = f"GPUs do not map each other's memory (device {device}: RuntimeError: CUDA error: peer access is not supp"
    assert first == second
    assert first.startswith(wanted)
    assert "NCCL" in first
