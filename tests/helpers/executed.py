"""Both ways to run a program, whichever a cluster calls for."""

import contextlib
from collections.abc import Iterator

import pytest

from odcsim.cluster import Cluster

EXECUTORS = ("analytic", "des")


@contextlib.contextmanager
def by(executor: str) -> Iterator[None]:
    """Whatever is simulated here is by this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "eventful", property(lambda _: executor == "des"))
        yield
