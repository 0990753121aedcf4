"""What came home from a GPU (docs/studies/validate_gpu.py), as a page, a line for each test in docs/gpu.md, and a
profile for the catalogue.

    python docs/studies/gpu_record.py DIR... [-o docs/validation-gpu.md] [--profiles odcsim/catalog/profiles]

Of several folders the later ones count.
"""

import argparse
import ast
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ours
from own_process import recorded
from page_table import table
from validate_gpu import RUNGS, TESTS

from odcsim import measurements, profile
from odcsim.errors import InputError
from odcsim.fitting import fit

PAGE, GPU_PAGE = ours.ROOT / "docs/validation-gpu.md", ours.ROOT / "docs/gpu.md"
BEGIN, END = "<!-- record -->", "<!-- end of record -->"
WHOLE = "whole.measured.json"
Line = dict[str, Any]  # of one test
Lines = dict[str, Line]


def questions() -> dict[str, str]:
    """What each test function asks, as the first line of its docstring says, in the order of rungs."""
    found = {}
    for name in (name for names in RUNGS.values() for name in names):
        for node in ast.parse((TESTS / f"test_gpu_{name}.py").read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                text = (ast.get_docstring(node) or "").partition("\n")[0]
                found[f"{name}: {node.name.removeprefix('test_').replace('_', ' ')}"] = text
    return found


def by_question(lines: Lines) -> dict[str, list[Line]]:
    """The lines of each test function's cases."""
    found: dict[str, list[Line]] = {name: [] for name in questions()}
    for test, line in lines.items():
        file, _, function = test.partition("::")
        place = Path(file).stem.removeprefix("test_gpu_")
        name = f"{place}: {function.partition('[')[0].removeprefix('test_').replace('_', ' ')}"
        found.setdefault(name, []).append(line)
    return found


def verdict(lines: Sequence[Line]) -> str:
    """In a word where all cases agree."""
    outcomes = [line["outcome"] for line in lines]
    if not outcomes:
        return "not run"
    if failed := outcomes.count("failed"):
        return f"**{failed} of {len(outcomes)} failed**" if len(outcomes) > 1 else "**failed**"
    if passed := outcomes.count("passed"):
        return "passed" if passed == len(outcomes) else f"{passed} of {len(outcomes)} passed, others cannot run there"
    return "cannot run there"


def page(lines: Lines) -> str:
    """The record. A test that was not run is there by name, so that nobody takes what is missing for passed."""
    asked, every = questions(), by_question(lines)
    rows = [
        (name, asked.get(name, ""), verdict(of), f"{sum(line['seconds'] for line in of):.0f} s" if of else "")
        for name, of in every.items()
    ]
    parts = [
        "# Validation on a GPU",
        "Written by `make validate-gpu` (docs/studies/gpu_record.py). Clocks and limits are as they were found.",
        table(("test", "question", "result", "took"), rows),
    ]
    for name, of in every.items():
        parts += [f"## {name}"] if of else []
        for line in of:
            parts += section(line)
    return "\n\n".join(parts) + "\n"


def section(line: Line) -> list[str]:
    """What became of a test, with the figures that a reader can judge, and what a failed one has left."""
    case = line["test"].partition("::")[2]
    parts = [f"`{case}` {line['outcome']}, {line['date']}, on {line['device']}."]
    if any(line["clocks"]):
        parts.append(f"Clocks, temperature and power before: {line['clocks'][0]}; after: {line['clocks'][1]}.")
    if why := line.get("why"):
        parts.append(fenced(why))
    figures = line["figures"]
    if rates := {size: of for size, of in figures.items() if isinstance(of, dict) and "copy" in of}:
        parts.append(moved(rates))
    if ways := {way: of for way, of in figures.items() if isinstance(of, dict) and "hidden" in of}:
        parts.append(beside(ways))
    if others := {name: of for name, of in figures.items() if name not in rates and name not in ways}:
        parts.append(fenced("\n".join(f"{name}: {json.dumps(of)}" for name, of in others.items())))
    if said := line.get("said"):
        parts += ["Its last words:", fenced(said[-2000:])]
    return parts


def moved(rates: Mapping[str, Mapping[str, float]]) -> str:
    """Rates by size and way, in bytes read and written in a second."""
    ways = list(next(iter(rates.values())))
    rows = [
        [size, *(f"{of[way] / 1e9:.0f} ({of[way] / of['copy']:.0%})" for way in ways)]
        for size, of in sorted(rates.items(), key=lambda item: int(item[0].split()[0]))
    ]
    told = "GB/s read and written, and share of a plain copy. `add`, the atomic sum, passes over memory three times."
    return "\n\n".join([told, table(("size", *ways), rows)])


def beside(ways: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        [name, priority, f"{of[priority]['gemms']:.2f}", f"{of[priority]['moves']:.2f}"]
        for name, of in ways.items()
        for priority in ("same priority", "higher priority")
    ]
    return table(("transfers by", "their stream", "multiplications take", "transfers take"), rows)


def fenced(text: str) -> str:
    return f"```text\n{text}\n```"


def with_record(text: str, lines: Lines) -> str:
    """docs/gpu.md with a line for each test between its marks: on what it has run, or that it has not."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise InputError("no place for the record", where=str(GPU_PAGE), fix=f"put {BEGIN} and {END} into it")
    every = by_question({test: line for test, line in lines.items() if line["device"] != "cpu"})
    rows = []
    for name, question in questions().items():
        date = max((line["date"].split()[0] for line in every[name]), default="")
        rows.append([name, question, f"{verdict(every[name])}, {date}" if date else "not yet"])
    return f"{before}{BEGIN}\n\n{table(('test', 'what it asks', 'on a GPU'), rows)}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("-o", dest="page", type=Path, default=PAGE, metavar="PAGE")
    parser.add_argument("--gpu-page", type=Path, default=GPU_PAGE, metavar="PAGE", help="whose record is written anew")
    parser.add_argument("--profiles", type=Path, metavar="DIR", help="where a profile of the whole GPU goes")
    args = parser.parse_args(arguments)
    lines: Lines = {}
    for folder in args.folders:
        lines |= recorded(folder)
    if not lines:
        print("gpu_record: no record in any of these folders", file=sys.stderr)
        return 2
    args.page.write_text(page(lines), encoding="utf-8")
    args.gpu_page.write_text(with_record(args.gpu_page.read_text(encoding="utf-8"), lines), encoding="utf-8")
    measured = [folder / WHOLE for folder in args.folders if (folder / WHOLE).exists()]
    if args.profiles and measured:
        found = fit.fit(measurements.read(measured[-1]))
        profile.write(found, args.profiles / f"{found.model}-{found.gpu}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
