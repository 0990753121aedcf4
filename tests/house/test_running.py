"""How tests run: warnings are errors, signals are heeded, and the versions that are promised are those tested."""

import re
import signal
import subprocess
import sys
import tomllib

import pytest
from scripts import ROOT

from odc_engine.runs.launch import _ended_by_signals
from odcsim.show.explore.opening import leaving_in_order

HEEDED = "import signal as s; print([s.getsignal(n) != s.SIG_IGN for n in (s.SIGINT, s.SIGHUP)])"
DEAF = """
import signal, sys, pytest
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
sys.exit(pytest.main(sys.argv[1:]))
"""


class Item:
    """A test, as pytest has collected it."""

    def __init__(self, *marks, nodeid="a.py::test_one", **numbers):
        self.marks, self.added, self.nodeid, self.numbers = marks, [], nodeid, numbers

    def get_closest_marker(self, name):
        if name in self.numbers:
            return getattr(pytest.mark, name)(self.numbers[name]).mark
        return name if name in self.marks else None

    def add_marker(self, mark):
        self.added.append(mark)


@pytest.fixture
def ours(request):
    return request.config.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))


def test_of_a_family_so_many_cases_run_the_same_for_everybody_and_those_of_a_large_one_are_slow(request, ours):
    cases = [Item(nodeid=f"a.py::test_many[{n}]", drawn=3) for n in range(10)]
    few = [Item(nodeid=f"a.py::test_few[{n}]", drawn=3) for n in range(2)]
    left_out = ours._not_drawn([Item(), *cases, *few], "drawn")
    assert left_out < set(cases)
    assert len(left_out) == 7
    assert ours._not_drawn([*cases, *few], "drawn") == left_out
    cases = [Item(nodeid=f"a.py::test_many[{n}]", by_default=3) for n in range(10)]
    slow = Item("slow", nodeid="a.py::test_many[slow]", by_default=3)
    plain, gpu = Item("slow"), Item("gpu")
    ours.pytest_collection_modifyitems(request.config, every := [*cases, slow, plain, gpu])
    assert [item.added for item in every].count([pytest.mark.slow]) == 7
    assert slow.added == plain.added == []
    # A GPU's machine has warnings of its own versions of torch.
    assert gpu.added == [pytest.mark.filterwarnings("default")]
    assert request.config.getini("filterwarnings") == ["error"]


def test_the_oldest_versions_promised_are_those_of_make_oldest():
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    promised = [re.match(r"(torch|triton)>=([\d.]+)", need) for extra in extras.values() for need in extra]
    assert sum(map(bool, promised)) >= 5
    assert all(pinned[told[1]].startswith(f"{told[2]}.") for told in promised if told)


def test_what_a_test_starts_heeds_signals():
    """Whatever started the tests."""
    assert subprocess.run([sys.executable, "-c", HEEDED], capture_output=True, check=True).stdout == b"[True, True]\n"


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_it_does_also_under_nohup(workers):
    words = [f"{__file__}::{test_what_a_test_starts_heeds_signals.__name__}", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-c", DEAF, *words, "-n", workers]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("ended", [_ended_by_signals, leaving_in_order])
@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL, lambda *_: None])
def test_a_command_ends_in_order_by_what_is_not_ignored(ended, before):
    for number in (signal.SIGTERM, signal.SIGHUP):
        kept = signal.signal(number, before)
        try:
            with ended():
                during = signal.getsignal(number)
            assert signal.getsignal(number) == before
        finally:
            signal.signal(number, kept)
        assert (during == signal.SIG_IGN) == (before == signal.SIG_IGN)
        assert before != signal.SIG_DFL or callable(during)
