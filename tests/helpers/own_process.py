"""Hooks of tests/gpu/conftest.py: each test runs in a process of its own, within its limit, and leaves a record.

NVSHMEM ends its process on many errors, and a faulty kernel destroys its GPU context: neither may end other tests. The
process is a pytest of one test, whose reports are shown here as if it had run here. When time is up, its Python
processes print where they are (SIGABRT under faulthandler), then all of its group are killed.
"""

import argparse
import ctypes
import faulthandler
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

LAST_WORDS = 3.0  # seconds in which processes that were told to abort may print where they are
RECORD = "record.jsonl"
SAID = 20_000  # characters of a failed test's output that are kept
NO_GPU = "no GPU: NVIDIA's driver sees none"
PACE = 4.0  # of limits where a CPU stands in
QUERY = "clocks.sm,clocks.mem,temperature.gpu,power.draw"
STAND_IN = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}


def pytest_addoption(parser):
    group = parser.getgroup("gpu")
    group.addoption("--home", type=Path, metavar="DIR", help="append a line of JSON for each test to DIR/record.jsonl")
    group.addoption("--cpu", action="store_true", help="a CPU stands in, with small sizes: tries the tests, not a GPU")
    group.addoption("--alone", type=Path, metavar="FILE", help=argparse.SUPPRESS)  # where this one test's reports go


def pytest_configure(config):
    config.addinivalue_line("markers", "limit(seconds): run in a process of its own, which is killed after so long")
    if file := config.getoption("alone", None):
        config.pluginmanager.register(Reports(config, file))
    elif folder := config.getoption("home", None):
        config.pluginmanager.register(Record(folder, "cpu" if config.getoption("cpu") else "cuda"))


def pytest_collection_modifyitems(config, items):
    """Skip what cannot run here before a process is started for it."""
    cpu = config.getoption("cpu", False)
    mine = [item for item in items if item.get_closest_marker("limit")]
    if not mine or (not cpu and gpus()):
        return
    for item in mine:
        if not cpu or "gpu" in item.fixturenames:
            item.add_marker(pytest.mark.skip(reason="a CPU cannot stand in for a GPU here" if cpu else NO_GPU))


def pytest_runtest_protocol(item):
    if not item.get_closest_marker("limit") or item.get_closest_marker("skip"):
        return None
    if item.config.getoption("alone", None):
        faulthandler.dump_traceback_later(limit_of(item) + 2 * LAST_WORDS, exit=True)  # if nobody is left to end it
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports_of(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def gpus() -> int:
    """Count GPUs by the driver, without loading torch."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    return 0 if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) else count.value


def limit_of(item) -> float:
    """Seconds. Limits are a GPU's: a CPU is slow, and others use it too."""
    seconds: float = item.get_closest_marker("limit").args[0]
    return PACE * seconds if item.config.getoption("cpu", False) else seconds


def reports_of(item) -> list[pytest.TestReport]:
    """Run the test in a process of its own. One that gives no reports has failed."""
    config, seconds, start = item.config, limit_of(item), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="odc-gpu-") as folder:
        file, log = Path(folder, "reports"), Path(folder, "log")
        command = [sys.executable, "-m", "pytest", item.nodeid, "-sq", "-p", "no:cacheprovider", "-p", "no:dash"]
        command += [f"--rootdir={config.rootpath}", "-c", str(config.inipath), "-o", "addopts=", f"--alone={file}"]
        if home := config.getoption("home", None):
            command.append(f"--home={home.absolute()}")
        if cpu := config.getoption("cpu", False):
            command.append("--cpu")
        env = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"} | (STAND_IN if cpu else {})
        code = ended_within(seconds, command, log, env, config.rootpath)
        said = log.read_text(encoding="utf-8", errors="replace")
        reports = [config.hook.pytest_report_from_serializable(config=config, data=one) for one in pickled(file)]
    if not any(report.when == "teardown" for report in reports):
        why = f"no end within {seconds:g} s" if code is None else f"ended with {code}, and without a report"
        took = time.monotonic() - start
        reports = [pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call", duration=took)]
    for report in reports:
        if report.failed:
            report.sections.append(("its process said", said[-SAID:]))
    return reports


def ended_within(seconds: float, command: list[str], log: Path, env: dict[str, str], folder: Path) -> int | None:
    """Return the exit status, None where time was up. Nothing of the command's group is left."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LAST_WORDS)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def pickled(file: Path) -> list[dict]:
    """Read what was written one after the other. The last one may be cut off."""
    found = []
    with suppress(OSError, EOFError, pickle.UnpicklingError), file.open("rb") as stream:
        while True:
            found.append(pickle.load(stream))
    return found


class Reports:
    """Hands the reports of the one test of this process to the process that has started it."""

    def __init__(self, config, file: Path) -> None:
        self._config, self._file = config, file

    def pytest_runtest_logreport(self, report):
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._file.open("ab") as stream:
            pickle.dump(data, stream)


class Record:
    """A line of JSON for each test as it ends, so that whatever comes later leaves those that are known."""

    def __init__(self, folder: Path, device: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, self._device, self._clocks = folder / RECORD, device, ""

    def pytest_runtest_logstart(self):
        self._clocks = smi(QUERY)

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.passed:
            return
        line = {"test": report.nodeid, "outcome": report.outcome, "device": self._device}
        line |= {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "seconds": round(report.duration, 3)}
        line |= {"clocks": [self._clocks, smi(QUERY)], "figures": dict(report.user_properties)}
        if report.skipped:
            line["why"] = report.longrepr[2].removeprefix("Skipped: ")
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            line["why"] = (crash.message if crash else report.longreprtext).strip()[:500]
            line["said"] = "\n".join(text for _, text in report.sections)[-SAID:]
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def recorded(folder: Path) -> dict[str, dict]:
    """Return the last line of each test. One that was cut off where its process ended is left out."""
    found, path = {}, folder / RECORD
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            line = json.loads(text)
            found[line["test"]] = line
    return found


def smi(query: str) -> str:
    """What nvidia-smi prints of the first GPU. Clocks and limits are read, never set."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={query}", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return ""
