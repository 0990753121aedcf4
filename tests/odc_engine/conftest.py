"""Fixtures for tests of the engine."""

import importlib.util
import socket

import pytest
from pool import Pools


@pytest.fixture(scope="session")
def pools():
    """`pools(devices).run(work, ...)` calls `work(rank, ...)` on live devices."""
    live = Pools()
    yield live
    live.stop()


@pytest.fixture(autouse=True)
def one_thread():
    """The machine's cores belong to the devices."""
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)


@pytest.fixture
def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
