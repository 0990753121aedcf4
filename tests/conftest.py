"""Fixtures and settings for all tests."""

import gc
import os
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from needs import NEEDS

from odcsim.decide.asking import ask
from odcsim.decide.setting import Setting, plan
from odcsim.executors.simulation import simulate

# `make thorough` runs all cases of drawn tests, and draws those of laws anew; else both are the same for everybody.
THOROUGH, SEED = "THOROUGH" in os.environ, 0

ABSENT = [package for package in NEEDS if find_spec(package) is None]
collect_ignore_glob = [str(Path(__file__).parent / pattern) for package in ABSENT for pattern in NEEDS[package]]


# Under nohup, and in the background of a shell. Commands would ignore them, too, that tests end by one.
IGNORED = [int(number) for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_IGN]


def pytest_configure(config: pytest.Config) -> None:
    """Go on ignoring what is ignored, by a handler, which nothing that is started from here inherits."""
    for number in getattr(config, "workerinput", {}).get("ignored", IGNORED):
        signal.signal(number, lambda *_: None)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["ignored"] = IGNORED


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of versions of torch that a GPU's machine happens to have, warnings are none of our laws."""
    for item in items:
        assert " at 0x" not in item.nodeid, f"{item.nodeid} has another name in each process: give ids="
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings("default"))
    for item in _not_drawn([item for item in items if not item.get_closest_marker("slow")], "by_default"):
        item.add_marker(pytest.mark.slow)
    if not THOROUGH and (left_out := _not_drawn(items, "drawn")):
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _not_drawn(items: list[pytest.Item], mark: str) -> set[pytest.Item]:
    """Of each test with this mark, the cases that are not among so many drawn ones."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker(mark):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    others = set[pytest.Item]()
    for name, some in cases.items():
        marker = some[0].get_closest_marker(mark)
        assert marker is not None
        number = min(len(some), marker.args[0])
        others |= set(some) - set(Random(f"{SEED} {name}").sample(some, number))
    return others


def pytest_collection_finish() -> None:
    """What all test files imported stays to the end: collections of garbage need not look through it each time."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> list[str]:
    return [f"left out for want of {package}: {', '.join(NEEDS[package])}" for package in ABSENT]


# Derandomized, so that a red run is red for everybody; a loaded machine must not turn a law red.
settings.register_profile(
    "laws", max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("laws"), max_examples=300, derandomize=False)
settings.load_profile("thorough" if THOROUGH else "laws")


@pytest.fixture(scope="session")
def setting() -> Setting:
    """The golden setting with few minibatches and devices, for what needs no statistics."""
    return ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=4, minibatch=5, max_tokens=65536, minibatches=6)


@pytest.fixture(scope="session")
def schedules(setting):
    """A sealed schedule file whose devices run unequal numbers of microbatches."""
    return plan(setting, "lb-mini")


@pytest.fixture(scope="session")
def timeline(setting, schedules):
    return simulate(schedules, setting.cost.by(sync="on-demand"))


@pytest.fixture(scope="session")
def pools():
    """`pools(devices).run(work, ...)` calls `work(rank, ...)` on live devices."""
    from pool import Pools  # torch comes with it

    live = Pools()
    yield live
    live.stop()


@pytest.fixture(scope="session")
def fake_libraries(tmp_path_factory):
    """`fake_libraries.ask(function, ...)` calls it in a process where NVIDIA's driver is one without a GPU."""
    import fake_driver

    return fake_driver.built(tmp_path_factory.mktemp("driver"))


@pytest.fixture(autouse=True)
def one_thread():
    """The machine's cores belong to the devices."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture
def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
