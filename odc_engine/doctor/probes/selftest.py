"""Runs the probes one after the other, each in a process of its own, and tells what they found.

Exit status: 0 where every probe that could run passed, 1 where one failed, 3 where there is no GPU to ask.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from odc_engine.doctor.probes.base import ABSENT, FAILED, OK, PROBES, Absent, Answer, Probe
from odc_engine.doctor.probes.driver import first_gpu

NO_GPU = 3
WORDS = 12  # lines
_MARKS = {OK: "ok", FAILED: "NO", ABSENT: "--"}


@dataclass(frozen=True, slots=True)
class Result:
    probe: Probe
    answer: Answer
    seconds: float


def selftest(as_json: bool, probes: Sequence[Probe] = PROBES) -> int:
    """Ask, print, and return the exit status."""
    results = []
    for probe in probes:
        results.append(_timed(probe))
        if not as_json:
            print(as_line(results[-1]), *_words(results[-1]), sep="\n", flush=True)
    if as_json:
        print(json.dumps({"schema": 1, "gpu": _gpu(), "probes": [as_dict(r) for r in results]}, indent=2))
    return status(results, _gpu())


def status(results: Sequence[Result], gpu: str | None) -> int:
    if any(r.answer.status == FAILED for r in results):
        return 1
    return 0 if gpu else NO_GPU


def as_line(result: Result) -> str:
    return f"{_MARKS[result.answer.status]:<3} {result.probe.name:<15} {result.answer.found}"


def _words(result: Result) -> list[str]:
    """The end of what a failed probe has said beside its answer: where it was, and what libraries complained of."""
    said: str = result.answer.data.get("said", "")
    return [f"    {line}" for line in said.strip().splitlines()[-WORDS:]]


def as_dict(result: Result) -> dict[str, object]:
    seconds = round(result.seconds, 3)
    return {"name": result.probe.name, "asks": result.probe.asks, "seconds": seconds, **asdict(result.answer)}


def _gpu() -> str | None:
    try:
        return first_gpu().name
    except Absent:
        return None


def _timed(probe: Probe) -> Result:
    start = time.perf_counter()
    answer = ask(probe)
    return Result(probe, answer, time.perf_counter() - start)


def ask(probe: Probe) -> Answer:
    """A probe's answer, or what can be said of one that gave none."""
    with tempfile.TemporaryDirectory(prefix="odc-probe-") as folder:
        file, said = Path(folder, "answer"), Path(folder, "said")
        with said.open("wb") as out:
            command = [sys.executable, "-m", "odc_engine.doctor.probes", probe.module, str(file)]
            code = ended(command, out, probe.seconds)
        words = said.read_text(encoding="utf-8", errors="replace")
        if file.exists() and (text := file.read_text(encoding="utf-8")):
            answer = Answer(**json.loads(text))
            return replace(answer, data={**answer.data, "said": words[-4000:]}) if answer.status == FAILED else answer
        return _silent(code, probe.seconds, words)


def ended(command: list[str], out: IO[bytes], seconds: float) -> int | None:
    """A command's exit status, None where time was up. Nothing that it started is left either way."""
    nothing = subprocess.DEVNULL
    # A group of its own, so that processes which the probe starts can be ended with it.
    process = subprocess.Popen(command, stdin=nothing, stdout=out, stderr=out, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _silent(code: int | None, seconds: float, said: str) -> Answer:
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "nothing")
    why = f"no answer within {seconds:g} s" if code is None else f"ended with exit status {code} and no answer"
    return Answer(FAILED, f"{why}; its last words: {last[:300]}", {"said": said[-4000:]})
