"""`pytest -m gpu tests/gpu`: what the engine relies on, asked of a GPU. With --cpu a CPU stands in where it can."""

import os
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from own_process import (  # noqa: F401 - hooks of pytest
    limit_of,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_runtest_protocol,
)

from odc_engine.errors import FOR_GPUS
from odc_engine.places.queues import queues


@pytest.fixture(scope="session")
def cpu(request) -> bool:
    """Whether a CPU stands in for the GPU."""
    return request.config.getoption("cpu")


@pytest.fixture(scope="session")
def device(cpu) -> str:
    if cpu:
        return "cpu"
    os.environ.update(queues(os.environ))  # before CUDA is first asked anything
    torch = pytest.importorskip("torch", reason=FOR_GPUS)
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} cannot use this GPU; install a build for CUDA")
    torch.cuda.set_device(0)
    return "cuda"


@pytest.fixture
def gpu(device) -> None:
    """Of tests in which a CPU cannot stand in: with --cpu they are skipped before they start."""
    assert device == "cuda"


@pytest.fixture
def several(gpu) -> int:  # noqa: ARG001
    """GPUs, one for each process."""
    import torch

    if (count := torch.cuda.device_count()) < 2:
        pytest.skip("processes that share a GPU take turns on it, and here is one")
    return min(count, 8)


@pytest.fixture
def transfers(device):
    """The kernels, compiled, or interpreted on a CPU."""
    pytest.importorskip("triton", reason=FOR_GPUS)
    triton, numpy = (tuple(int(part) for part in version(name).split(".")[:2]) for name in ("triton", "numpy"))
    if device == "cpu" and triton < (3, 7) and numpy >= (2, 4):
        pytest.skip(f"Triton {version('triton')} does not interpret kernels under numpy {version('numpy')}")
    from odc_engine.kernels import transfers

    return transfers


@pytest.fixture
def seconds(request) -> float:
    """After so long a test shall itself say who does not answer."""
    return 0.8 * limit_of(request.node)


@pytest.fixture
def note(record_property):
    """Keep figures: in the record when the test has ended, and in its output at once."""

    def noted(**figures):
        for name, value in figures.items():
            record_property(name, value)
        print(time.strftime("%H:%M:%S"), figures, flush=True)

    return noted


@pytest.fixture
def home(request, tmp_path) -> Path:
    """Where files go that are worth keeping."""
    return request.config.getoption("home") or tmp_path
