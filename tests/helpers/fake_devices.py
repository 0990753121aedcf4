"""torch.cuda without a GPU, as far as devices and memory go: which is present, how many are seen, what is free."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch


class FakeTorchCuda:
    """`count`: GPUs that the process sees. `moves`: devices that were made present and stayed so, in turn."""

    def __init__(self, count: int, present: int = 0, free: int = 1 << 40, kept: int = 0) -> None:
        self.count, self.present, self.moves = count, present, []
        self.free, self.kept = [free] * count, kept  # bytes; `kept` are the allocator's, of each
        self.asked: list[tuple[str, int]] = []  # calls and the device that each was for

    def is_available(self):
        return True

    def device_count(self):
        return self.count

    def current_device(self):
        return self.present

    def set_device(self, device):
        self.present = self._number(device)
        self.moves.append(self.present)

    @contextmanager
    def device(self, device):
        before, self.present = self.present, self._number(device)
        try:
            yield
        finally:
            self.present = before

    def mem_get_info(self, device=None):
        return self.free[self._noted("mem_get_info", device)], 1 << 40

    def empty_cache(self):
        self.free[self._noted("empty_cache", None)] += self.kept

    def synchronize(self, device=None):
        self._noted("synchronize", device)

    def current_stream(self, device=None):
        number = self._noted("current_stream", device)
        return SimpleNamespace(cuda_stream=100 + number, wait_event=lambda _: None, device=number)

    @contextmanager
    def stream(self, entered):
        with self.device(entered.device):
            yield

    def Event(self, **_):  # noqa: N802
        return SimpleNamespace(record=lambda stream=None: self.asked.append(("record", self._of(stream))))

    def Stream(self, device=None, priority=0):  # noqa: ARG002, N802
        return SimpleNamespace(device=self._noted("Stream", device))

    def _of(self, stream):
        return self.present if stream is None else stream.device

    def _noted(self, call, device):
        number = self.present if device is None else self._number(device)
        self.asked.append((call, number))
        return number

    @staticmethod
    def _number(device):
        index = device if isinstance(device, int) else torch.device(device).index
        assert index is not None
        return index


def install(patch: pytest.MonkeyPatch, fake: FakeTorchCuda) -> FakeTorchCuda:
    for name in (name for name in dir(FakeTorchCuda) if not name.startswith("_")):
        patch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


@contextmanager
def launched(rank: int, size: int, by: str, visible: str, present: int | None = None):
    """As process `rank` of one machine, started by torchrun or srun, which shows it all GPUs or its own alone. It has
    made its own present, as trainers do, unless another is told."""
    names = {
        "torchrun": {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size},
        "srun": {"SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_LOCALID": rank, "SLURM_STEP_ID": 0},
    }[by]
    others = {"torchrun": "SLURM_PROCID", "srun": "RANK"}[by]
    own = rank if visible == "all" else 0
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(others, raising=False)
        for name, value in names.items():
            patch.setenv(name, str(value))
        count = size if visible == "all" else 1
        yield install(patch, FakeTorchCuda(count, own if present is None else present)), own


def model_on(number):
    """As far as memory is chosen for it."""
    at = torch.device("cuda", number)
    return SimpleNamespace(parameters=lambda: iter([SimpleNamespace(is_cuda=True, device=at)]))
