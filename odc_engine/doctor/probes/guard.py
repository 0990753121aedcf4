"""Stands between whoever asks and a probe's process, and ends the probe's whole group when the asker is gone, however
it went. Run as a program: `python guard.py ASKER COMMAND...`.

The probe itself could not: a call that never returns keeps its interpreter from hearing signals.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys

_PARENT_DIES = 1  # PR_SET_PDEATHSIG of prctl


def main(asker: int, command: list[str]) -> int:
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGABRT, _go_on)  # it is for the probe, which says where it was
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DIES, signal.SIGTERM)
        if os.getppid() != asker:  # gone before it could be told
            return 1
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump of a process with a GPU's maps takes minutes
    code = subprocess.Popen(command).wait()
    return code if code >= 0 else 128 - code


def _end(*_: object) -> None:
    os.killpg(0, signal.SIGKILL)


def _go_on(*_: object) -> None:
    """Not SIG_IGN, which the probe would inherit."""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
