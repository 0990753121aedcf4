"""Machines for the tests of this folder. Where none can be made they skip and say why; CI asks before (.ci/run)."""

import pytest
from machine_pool import MachinePools
from machines import hindrance


@pytest.fixture(scope="session")
def machines():
    """`machines(2, 2).run(work, ...)` calls `work(rank, ...)` in two processes on each of two machines."""
    if why := hindrance():
        pytest.skip(why)
    live = MachinePools()
    yield live
    live.stop()
