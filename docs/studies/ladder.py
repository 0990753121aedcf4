"""Asks the probes of one rung after the other, and keeps what they say, whatever becomes of them or of this process.

What was not asked yet comes first, then what failed before; at last, where time is left, what failed now is asked again
with every kernel waited for. What comes home of a rung is two files, `answers-N.json` and `logs-N.tar.gz`, written anew
while a probe is under way.
"""

import json
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odc_engine.doctor.probes import asking
from odc_engine.doctor.probes.asking import SLOWLY, Result
from odc_engine.doctor.probes.base import ABSENT, FAILED, OK, Probe, noted
from odc_engine.doctor.probes.every import PROBES
from odcsim.support.files import replacing, write_text

BUDGET = 540.0  # seconds of a rung
OVERHEAD = 2.0  # around a probe
LEAST = 0.5  # of a probe's seconds: with less left it is not begun
UNDER_WAY = "under way"
LARGEST = 16 << 20  # bytes of a file that comes home
AGAIN = "-again"
MEASURED = 2  # the rung whose files are those that no probe has the name of
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ladder:
    """`keep`: what probes leave for each other, and all that is known. `out`: what comes home. `pace`: of limits."""

    keep: Path
    out: Path
    probes: Sequence[Probe] = PROBES
    device: str = "cuda"
    pace: float = 1.0
    say: Callable[[str], None] = print
    again: bool = True  # what failed is asked once more, slowly

    def climb(self, rung: int) -> None:
        """Ask, within the rung's seconds."""
        end = time.monotonic() + self.pace * BUDGET
        mine = [probe for probe in self.probes if probe.rung == rung]
        failed = [probe for probe in self._in_order(mine) if self._asked(probe, end)]
        for probe in failed if self.again else ():
            self._again(probe, end)
        self._bring_home(rung)

    def one(self, probe: Probe) -> None:
        """Anew, whatever is known of it."""
        self._asked(probe, time.monotonic() + self.pace * BUDGET)
        self._bring_home(probe.rung)

    def entries(self) -> dict[str, Entry]:
        path = self.keep / "entries.json"
        found: dict[str, Entry] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def good(self) -> bool:
        """Whether all has been asked and nothing has failed. What cannot be asked here is no failure."""
        every = self.entries()
        return all(probe.name in every and reached(every[probe.name]) is not False for probe in self.probes)

    def _in_order(self, probes: Sequence[Probe]) -> list[Probe]:
        """Missing, then what something was missing for, then failed."""
        known = self.entries()
        turn = {probe.name: _turn(known.get(probe.name)) for probe in probes}
        return sorted((probe for probe in probes if turn[probe.name] < DONE), key=lambda probe: turn[probe.name])

    def _asked(self, probe: Probe, end: float) -> bool:
        """Whether it failed."""
        if (limit := self._limit(probe, end)) is None:
            self.say(f"..  {probe.name:<16} is left for the next time")
            return False
        entry = {"name": probe.name, "rung": probe.rung, "asks": probe.asks, "status": UNDER_WAY, "limit": limit}
        self._keep(probe.name, entry | {"date": time.strftime("%Y-%m-%d %H:%M:%S")})
        result = self._ask(probe, limit, probe.name)
        self._keep(probe.name, as_entry(result))
        self.say(as_line(result))
        return result.answer.status == FAILED

    def _again(self, probe: Probe, end: float) -> None:
        """Evidence for whoever reads it: what failed stays failed."""
        if (limit := self._limit(probe, end)) is None:
            return
        result = self._ask(probe, limit, probe.name + AGAIN, SLOWLY)
        self._keep(probe.name, self.entries()[probe.name] | {"again": as_entry(result)})
        self.say(f"    again, slowly: {as_line(result)}")

    def _ask(self, probe: Probe, limit: float, name: str, env: dict[str, str] | None = None) -> Result:
        def beat() -> None:
            entry = self.entries()[probe.name]
            if entry["status"] == UNDER_WAY:
                self._keep(probe.name, entry | {"data": noted(self.keep, name)})
            self._bring_home(probe.rung)

        return asking.ask(probe, self.keep, self.device, seconds=limit, env=env, name=name, beat=beat)

    def _limit(self, probe: Probe, end: float) -> float | None:
        """Its seconds, or those that are left where they are enough to begin."""
        usual, left = self.pace * probe.seconds, end - time.monotonic() - self.pace * OVERHEAD
        return min(usual, left) if left >= LEAST * usual else None

    def _keep(self, name: str, entry: Entry) -> None:
        write_text(self.keep / "entries.json", json.dumps(self.entries() | {name: entry}, indent=1))

    def _bring_home(self, rung: int) -> None:
        answers = [entry for entry in self.entries().values() if entry["rung"] == rung]
        left_out = pack(self._files(rung), self.keep, self.out / f"logs-{rung}.tar.gz")
        told = {"schema": 1, "rung": rung, "device": self.device, "left_out": left_out, "answers": answers}
        write_text(self.out / f"answers-{rung}.json", json.dumps(told, indent=1))

    def _files(self, rung: int) -> list[Path]:
        """Those that a probe of the rung has left under its name; what has no probe's name was measured."""
        by_name = {probe.name: probe.rung for probe in self.probes}
        every = [path for path in sorted(self.keep.rglob("*")) if path.is_file() and path.name != "entries.json"]
        return [path for path in every if by_name.get(path.name.split(".")[0].removesuffix(AGAIN), MEASURED) == rung]


FIRST, SECOND, THIRD, DONE = range(4)


def _turn(entry: Entry | None) -> int:
    if entry is None:
        return FIRST
    return {ABSENT: SECOND, FAILED: THIRD, UNDER_WAY: THIRD}.get(entry["status"], DONE)


def reached(entry: Entry) -> bool | None:
    """Whether a probe passed, and what it measured is within its bound. None where it could not be asked."""
    if entry["status"] == ABSENT:
        return None
    return entry["status"] == OK and entry["data"].get("reached", True)


def as_entry(result: Result) -> Entry:
    before, after = result.clocks
    return result.as_dict() | {
        "rung": result.probe.rung,
        "limit": result.limit,
        "date": result.date,
        "clocks": {"before": before, "after": after},
        "xids": result.xids,
    }


def as_line(result: Result) -> str:
    mark = {OK: "ok", FAILED: "NO", ABSENT: "--"}[result.answer.status]
    return f"{mark:<3} {result.probe.name:<16} {result.seconds:5.1f} s  {result.answer.found}"


def pack(files: Sequence[Path], base: Path, to: Path) -> list[str]:
    """As one archive that may come home, small files first. What does not fit any more, by its name."""
    left_out: list[str] = []
    with replacing(to) as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for path in sorted(files, key=lambda path: path.stat().st_size):
            if raw.tell() + path.stat().st_size // 2 > LARGEST - (1 << 20):
                left_out.append(str(path.relative_to(base)))
                continue
            archive.add(path, arcname=str(path.relative_to(base)))
    return left_out


def unpacked(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
