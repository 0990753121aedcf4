"""What came home of a ladder (docs/studies/validate_gpu.py), as a page, a line for each probe in docs/gpu.md, and
profiles for the catalogue.

    python docs/studies/gpu_record.py DIR... [-o docs/validation-gpu.md] [--profiles odcsim/catalog/profiles]

Of several folders the later ones count.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ours
from ladder import Entry, reached, unpacked
from page_table import table

from odc_engine.doctor.probes.every import PROBES
from odc_engine.measuring.probes import MEASURED, WHOLE
from odcsim import profile
from odcsim.errors import InputError
from odcsim.fitting import fit, measurements
from odcsim.profile import Profile

PAGE, GPU_PAGE = ours.ROOT / "docs/validation-gpu.md", ours.ROOT / "docs/gpu.md"
BEGIN, END = "<!-- record -->", "<!-- end of record -->"
MARKS = {True: "reached", False: "**not reached**", None: "cannot be asked there"}
RATES = "bytes_per_second_of_"


def home(folders: Sequence[Path], into: Path) -> dict[str, Entry]:
    """All answers by their probes, and all files in one folder."""
    found: dict[str, Entry] = {}
    for folder in folders:
        for path in sorted(folder.glob("answers-*.json")):
            told = json.loads(path.read_text())
            found |= {entry["name"]: entry | {"device": told["device"]} for entry in told["answers"]}
        for path in sorted(folder.glob("logs-*.tar.gz")):
            unpacked(path, into)
    return found


def page(answers: Mapping[str, Entry], files: Path) -> str:
    """The record. A probe that was not asked is there by name, so that nobody takes what is missing for passed."""
    parts = [
        "# Validation on a GPU",
        "Written by `make validate-gpu` (docs/studies/gpu_record.py). Clocks and limits are as they were found.",
        _told_of_machine(answers),
        table(("probe", "question", "result", "took"), [_row(probe, answers.get(probe.name)) for probe in PROBES]),
    ]
    for probe in PROBES:
        if entry := answers.get(probe.name):
            parts += [f"## {probe.name}", *section(entry, files)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _told_of_machine(answers: Mapping[str, Entry]) -> str:
    entry = answers.get("versions")
    return f"{entry['found']}. {entry['data'].get('smi') or ''}".strip() if entry else ""


def _row(probe: Any, entry: Entry | None) -> list[str]:
    told = [MARKS[reached(entry)], f"{entry['seconds']:.0f} s"] if entry and "seconds" in entry else ["not asked", ""]
    return [f"`{probe.name}`", probe.asks, *told]


def section(entry: Entry, files: Path) -> list[str]:
    """What a probe said, with the figures that a reader can judge, and what a failed one has left."""
    parts = [f"{entry['asks'].capitalize()}? {entry['date']}. {entry.get('found', entry['status'])}.", _clocks(entry)]
    parts += FIGURES.get(entry["name"], lambda _entry, _files: [])(entry, files)
    if entry.get("xids"):
        parts.append(fenced("\n".join(entry["xids"])))
    if said := entry.get("data", {}).get("said"):
        parts += ["Its last words:", fenced(said[-2000:])]
    if again := entry.get("again"):
        parts.append(f"Again, with every kernel waited for: {again['status']}, {again['found']}")
    return parts


def _clocks(entry: Entry) -> str:
    told = [
        f"{when} {', '.join(f'{k} {v:g}' for k, v in of.items())}" for when, of in entry.get("clocks", {}).items() if of
    ]
    return f"Clocks {'; '.join(told)}." if told else ""


def _kernels(entry: Entry, _: Path) -> list[str]:
    every = {int(re.sub(r"\D", "", name)) << 20: of for name, of in entry["data"].items() if name.startswith(RATES)}
    return [moved(dict(sorted(every.items())))] if every else []


def moved(rates: Mapping[int, Mapping[str, float]]) -> str:
    """Rates by size and way, in bytes read and written in a second."""
    ways = list(next(iter(rates.values())))
    rows = [
        [f"{size >> 20} MB", *(f"{of[way] / 1e9:.0f} ({of[way] / of['copy']:.0%})" for way in ways)]
        for size, of in rates.items()
    ]
    told = "GB/s read and written, and share of a plain copy. `add`, the atomic sum, passes over memory three times."
    return "\n\n".join([told, table(("size", *ways), rows)])


def _beside(entry: Entry, _: Path) -> list[str]:
    ways = {name: of for name, of in entry["data"].items() if isinstance(of, dict) and "hidden" in of}
    rows = [
        [name, priority, f"{of[priority]['gemms']:.2f}", f"{of[priority]['moves']:.2f}"]
        for name, of in ways.items()
        for priority in ("same priority", "higher priority")
    ]
    return [table(("transfers by", "their stream", "multiplications take", "transfers take"), rows)] if rows else []


def _fitted(entry: Entry, _: Path) -> list[str]:
    return [fenced("\n".join(entry["data"]["lines"]))] if "lines" in entry["data"] else []


FIGURES = {
    "kernels": _kernels,
    "beside": _beside,
    "profile": _fitted,
    "whole": _fitted,
    "profile-processes": _fitted,
    "profile-nccl": _fitted,
}


def fenced(text: str) -> str:
    return f"```text\n{text}\n```"


def lines(answers: Mapping[str, Entry]) -> str:
    """A line for each probe in docs/gpu.md: on what it has run, or that it has not."""
    rows = []
    for probe in PROBES:
        entry = answers.get(probe.name)
        told = "not yet"
        if entry and entry["device"] != "cpu" and "seconds" in entry:
            told = f"{MARKS[reached(entry)]}, {entry['date'].split()[0]}"
        rows.append([f"`{probe.name}`", probe.asks, told])
    return table(("probe", "what it asks", "on a GPU"), rows)


def with_record(text: str, answers: Mapping[str, Entry]) -> str:
    """The page with this record between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise InputError("no place for the record", where=str(GPU_PAGE), fix=f"put {BEGIN} and {END} into it")
    return f"{before}{BEGIN}\n\n{lines(answers)}\n\n{END}{after}"


def shipped(files: Path) -> Profile | None:
    """What a whole GPU took, fitted here where that was not done there."""
    if (files / WHOLE).exists():
        return profile.read(files / WHOLE)
    measured = files / (WHOLE + MEASURED)
    return fit.fit(measurements.read(measured)) if measured.exists() else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("-o", dest="page", type=Path, default=PAGE, metavar="PAGE")
    parser.add_argument("--gpu-page", type=Path, default=GPU_PAGE, metavar="PAGE", help="whose record is written anew")
    parser.add_argument("--profiles", type=Path, metavar="DIR", help="where a profile of the whole GPU goes")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="odc-record-") as own:
        if not (answers := home(args.folders, Path(own))):
            print("gpu_record: no answers in any of these folders", file=sys.stderr)
            return 2
        args.page.write_text(page(answers, Path(own)), encoding="utf-8")
        args.gpu_page.write_text(with_record(args.gpu_page.read_text(encoding="utf-8"), answers), encoding="utf-8")
        if args.profiles and (found := shipped(Path(own))):
            profile.write(found, args.profiles / f"{found.model}-{found.gpu}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
