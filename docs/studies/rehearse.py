"""Climb the whole ladder on a CPU, three times: each time another third of the probes fails, another third hangs, and
the rest has to report all the same.

    python docs/studies/rehearse.py [--only RUNG] [--keep DIR]

Exit status: 0 where every fault was told as what it was, every other probe answered, and what came home is whole.
"""

import argparse
import ctypes
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ours  # noqa: F401 - before our packages
from ladder import Entry, Ladder

from odc_engine.doctor.probes.base import ABSENT, CPU, FAILED, OK, Answer, Hearing, Probe
from odc_engine.doctor.probes.every import PROBES

FAULTS = ("", "fails", "hangs")
PATIENCE = 4.0  # seconds of a probe that hangs: its process has to come to the hang first, on a busy machine too
PACE = 3.0  # of limits: a CPU that others use, too, is slow


def fails(hearing: Hearing) -> Answer:
    hearing.note(before="the failure")
    raise RuntimeError("made to fail")


def hangs(hearing: Hearing) -> Answer:
    hearing.note(before="the hang")
    ctypes.PyDLL(None).sleep(3600)  # keeps the interpreter to itself, as a call that waits for a GPU may
    return Answer(OK, "woke up")


def faulty(probes: Sequence[Probe], turn: int) -> list[Probe]:
    """Each probe has each fault in one of three turns, and none in another."""
    found = []
    for number, probe in enumerate(probes):
        fault = FAULTS[(number + turn) % 3]
        # A probe that a CPU cannot stand in for can still fail.
        bad = replace(probe, call=f"rehearse:{fault}", needs=(), stands_in=True)
        found.append(probe if not fault else replace(bad, seconds=PATIENCE / PACE) if fault == "hangs" else bad)
    return found


def wrong(probes: Sequence[Probe], entries: dict[str, Entry]) -> list[str]:
    """What was not told as it was."""
    return [line for probe in probes for line in _wrong(probe, entries.get(probe.name, {}))]


def _wrong(probe: Probe, entry: Entry) -> list[str]:
    status, told = entry.get("status", "not asked"), entry.get("found", "")
    said = entry.get("data", {}).get("said", "")
    if probe.call == "rehearse:fails":
        good = status == FAILED and told == "RuntimeError: made to fail" and entry["data"]["before"] == "the failure"
    elif probe.call == "rehearse:hangs":
        good = status == FAILED and told.startswith("no answer within") and "in hangs" in said
        good = good and entry["data"]["before"] == "the hang"
    else:
        good = status in (OK, ABSENT)
    return [] if good else [f"{probe.name}: {status}, {told}"]


def rehearsed(probes: Sequence[Probe], folder: Path) -> list[str]:
    """What went wrong in three turns."""
    found = []
    for turn in range(len(FAULTS)):
        keep, out = (folder / f"{name}-{turn}" for name in ("keep", "out"))
        for place in (keep, out):
            place.mkdir(parents=True)
        ladder = Ladder(keep, out, faulty(probes, turn), CPU, PACE, say=_say, again=turn == 0)
        rungs = sorted({probe.rung for probe in probes})
        for rung in rungs:
            ladder.climb(rung)
        found += wrong(ladder.probes, ladder.entries())
        if len(list(out.iterdir())) != 2 * len(rungs):
            found.append(f"turn {turn}: what came home is {sorted(path.name for path in out.iterdir())}")
    return found


def _say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=int, metavar="RUNG", help="one rung alone")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where all of it stays")
    args = parser.parse_args(arguments)
    probes = [probe for probe in PROBES if args.only in (None, probe.rung)]
    with tempfile.TemporaryDirectory(prefix="odc-rehearsal-") as own:
        found = rehearsed(probes, args.keep or Path(own))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
