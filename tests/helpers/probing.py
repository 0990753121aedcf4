"""Probes that answer, fail, hang or end their process, from a module that is written for the test."""

import os
import signal
import time

from odc_engine.doctor.probes.base import Probe

MODULE = """
import ctypes, os, subprocess, sys, time
from odc_engine.doctor.probes.base import Absent, Answer

def sleeper():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

def good(hearing):
    hearing.note(rate=1.5)
    return Answer("ok", "fine", {"device": hearing.device})

def absent(hearing):
    raise Absent("nothing to ask")

def wrong(hearing):
    raise ValueError("first\\n  second")

def exits(hearing):
    print("nvshmem: no transport", flush=True)
    os._exit(255)

def crashes(hearing):
    os.kill(os.getpid(), 11)

def hangs(hearing):
    print(sleeper().pid, flush=True)
    hearing.note(half=[1, 2])
    time.sleep(60)

def hangs_deaf(hearing):
    ctypes.PyDLL(None).sleep(60)  # keeps the interpreter to itself, as a library's call may

def leaves(hearing):
    return Answer("ok", str(sleeper().pid))

def blocking(hearing):
    return Answer("ok" if os.environ.get("CUDA_LAUNCH_BLOCKING") else "failed", "found out slowly")
"""


def probe(function: str, seconds: float = 30.0, name: str = "", rung: int = 1, **more) -> Probe:
    return Probe(name or function, f"does it {function}", seconds, f"written_probes:{function}", rung=rung, **more)


def written(folder, monkeypatch) -> None:
    """Probes are to be found by processes that are started from now on."""
    (folder / "written_probes.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0] not in "ZX"


def gone(pid: int) -> bool:
    for _ in range(250):
        if not alive(pid):
            return True
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return False
