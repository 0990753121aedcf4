"""Asks the probes that hold or do not, one after the other, and tells what they found.

Exit status: 0 where every probe that could run passed, 1 where one failed, 3 where there is no GPU to ask.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from odc_engine.doctor.probes.asking import Result, ask
from odc_engine.doctor.probes.base import ABSENT, FAILED, OK, Absent, Answer, Probe
from odc_engine.doctor.probes.driver import first_gpu
from odc_engine.doctor.probes.every import HOLDING

NO_GPU = 3
WORDS = 12  # lines
_MARKS = {OK: "ok", FAILED: "NO", ABSENT: "--"}


def selftest(as_json: bool, probes: Sequence[Probe] = HOLDING) -> int:
    """Ask, print, and return the exit status."""
    results, name, absent = [], *gpu()
    with tempfile.TemporaryDirectory(prefix="odc-probes-") as folder:
        for probe in probes:
            nothing = Result(probe, Answer(ABSENT, absent), 0.0)
            results.append(ask(probe, Path(folder)) if name else nothing)
            if not as_json:
                print(as_line(results[-1]), *words(results[-1]), sep="\n", flush=True)
    if as_json:
        print(json.dumps({"schema": 1, "gpu": name, "probes": [r.as_dict() for r in results]}, indent=2))
    return status(results, name)


def status(results: Sequence[Result], gpu: str | None) -> int:
    if any(r.answer.status == FAILED for r in results):
        return 1
    return 0 if gpu else NO_GPU


def as_line(result: Result) -> str:
    return f"{_MARKS[result.answer.status]:<3} {result.probe.name:<15} {result.answer.found}"


def words(result: Result) -> list[str]:
    """The end of what a failed probe has said beside its answer: where it was, and what libraries complained of."""
    said: str = result.answer.data.get("said", "")
    return [f"    {line}" for line in said.strip().splitlines()[-WORDS:]]


def gpu() -> tuple[str | None, str]:
    """Its name; or why there is none, for which nothing has to be started."""
    try:
        return first_gpu().name, ""
    except Absent as absent:
        return None, str(absent)
