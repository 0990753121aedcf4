"""Asks a probe in a process of its own, and tells what came of it, whatever it did to that process."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from odc_engine.doctor.probes import apart, machine
from odc_engine.doctor.probes.base import CPU, FAILED, Answer, Probe, noted, notes_of
from odc_engine.places.queues import queues

LAST = 4000  # characters of what a failed probe has said that are told with its answer
# Every kernel is waited for, so that an error is found where it was made, and libraries say what they do.
SLOWLY = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_DEBUG": "INFO",
    "NVSHMEM_DEBUG": "INFO",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}

_DUMPS = ("Timeout (", "Fatal Python error: ")  # faulthandler's
_FRAME = re.compile(r'most recent call first[^\n]*:\n  File "(.+)", line (\d+) in (\w+)')


@dataclass(frozen=True, slots=True)
class Result:
    """`limit`: seconds that it had."""

    probe: Probe
    answer: Answer
    seconds: float
    limit: float = 0.0
    date: str = ""
    clocks: tuple[dict[str, float], dict[str, float]] = ({}, {})  # before and after
    xids: tuple[str, ...] | None = None  # errors that the kernel's log has of the GPU since; None: not to be read

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.probe.name, "asks": self.probe.asks, "seconds": round(self.seconds, 3)} | asdict(
            self.answer
        )


def ask(
    probe: Probe,
    folder: Path,
    device: str = "cuda",
    *,
    seconds: float | None = None,
    env: Mapping[str, str] | None = None,
    name: str = "",
    beat: Callable[[], None] = lambda: None,
) -> Result:
    """Into the folder go the log, the figures as they come, and the answer, all under `name`."""
    name, limit = name or probe.name, probe.seconds if seconds is None else seconds
    file, log = folder / f"{name}.answer", folder / f"{name}.log"
    for old in (file, notes_of(folder, name)):
        old.unlink(missing_ok=True)
    command = [sys.executable, "-m", "odc_engine.doctor.probes", probe.name, "--probe", json.dumps(asdict(probe))]
    command += ["--folder", str(folder), "--device", device, "--name", name, "--limit", str(limit)]
    before, seen = _clocks(device), machine.xids()
    date, start = time.strftime("%Y-%m-%d %H:%M:%S"), time.monotonic()
    code = apart.run(command, log, limit, environment(device) | dict(env or {}), beat)
    took = time.monotonic() - start
    answer = _answer(code, limit, file, log.read_text(encoding="utf-8", errors="replace"))
    answer = replace(answer, data=noted(folder, name) | answer.data)
    return Result(probe, answer, took, limit, date, (before, _clocks(device)), _since(seen, machine.xids()))


def environment(device: str) -> dict[str, str]:
    """A probe's, before anything in its process asks CUDA."""
    shown = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"} | queues(os.environ)
    return dict(os.environ) | shown | ({"CUDA_VISIBLE_DEVICES": ""} if device == CPU else {})


def _clocks(device: str) -> dict[str, float]:
    return {} if device == CPU else machine.clocks()


def _since(before: list[str] | None, after: list[str] | None) -> tuple[str, ...] | None:
    return None if after is None else tuple(line for line in after if line not in (before or ()))


def _answer(code: int | None, limit: float, file: Path, said: str) -> Answer:
    if file.exists():
        answer = Answer(**json.loads(file.read_text(encoding="utf-8")))
        return replace(answer, data=answer.data | {"said": said[-LAST:]}) if answer.status == FAILED else answer
    words, where = _before_the_end(said)
    last = next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "nothing")
    why = f"no answer within {limit:g} s" if code is None else f"ended {_by(code)} and no answer"
    return Answer(FAILED, f"{why}{where}; its last words: {last[:300]}", {"said": said[-LAST:]})


def _before_the_end(said: str) -> tuple[str, str]:
    """What a process said before it was made to say where it was, and where that was."""
    told = min((at for mark in _DUMPS if (at := said.find(mark)) >= 0), default=len(said))
    frames = _FRAME.findall(said[told:])
    file, line, function = frames[-1] if frames else ("", "", "")
    return said[:told], f", in {function} ({Path(file).name}:{line})" if frames else ""


def _by(code: int) -> str:
    """As a shell tells it: statuses above 128 stand for signals, unless there is no such signal."""
    known = {int(number): number.name for number in signal.Signals}
    return f"by {known[code - 128]}" if code - 128 in known else f"with exit status {code}"
