"""Whatever started the tests, a command that they start heeds signals; and one that is told to ignore some does."""

import signal
import subprocess
import sys

import pytest

from odc_engine.runs.launch import _ended_by_signals
from odcsim.show.explore.opening import leaving_in_order

HEEDED = "import signal as s; print([s.getsignal(n) != s.SIG_IGN for n in (s.SIGINT, s.SIGHUP)])"
DEAF = """
import signal, sys, pytest
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_what_a_test_starts_heeds_signals():
    assert subprocess.run([sys.executable, "-c", HEEDED], capture_output=True, check=True).stdout == b"[True, True]\n"


@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_it_does_also_under_nohup(workers):
    words = [f"{__file__}::{test_what_a_test_starts_heeds_signals.__name__}", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-c", DEAF, *words, "-n", workers]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def of_our_own(*_):
    """A handler that somebody who calls has."""


@pytest.mark.parametrize("ended", [_ended_by_signals, leaving_in_order])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL, of_our_own])
def test_a_command_ends_in_order_by_what_is_not_ignored(ended, number, before):
    kept = signal.signal(number, before)
    try:
        with ended():
            during = signal.getsignal(number)
        assert signal.getsignal(number) == before
    finally:
        signal.signal(number, kept)
    assert (during == signal.SIG_IGN) == (before == signal.SIG_IGN)
    assert before != signal.SIG_DFL or callable(during)
