"""Do the tests see a single line that is wrong? Eighty, drawn over both packages, each held against its room's tests.

    python tests/breaking/breaks.py [--seed 0] [--breaks 80] [--room NAME] [--out FILE] [--against FILE]
    python tests/breaking/breaks.py --listed

A break is one change to one line: a comparison, a sign, a constant, a condition, a call left out. The tests of its room
run in a copy of the tree, those that name its module first, until one fails or for a minute of processor time. With
`--against` the breaks of an earlier record are tried once more; where a line has gone since, another of its room is
drawn. Prints a line per break and a table of rooms; exits with 1 where a room of the record saw more.

With `--listed` those of what chooses, and of the engine's meetings (choosers.toml): each must turn its one test red
within ten seconds of processor time.
"""

import argparse
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/helpers"))
from needs import NEEDS  # noqa: E402

FAILED = (1, 2)  # exit statuses of pytest: a test failed, or could not be collected
MINUTE, LONGEST = 60.0, 240.0  # seconds: of processor time, and by the clock
SOON = 10.0  # seconds of processor time in which a listed one is seen
SIM, ENGINE = "odcsim", "odc_engine"
ROOMS = {  # of the simulator and of the engine: folders, "" for the files beside them
    "nouns": (SIM, ["", "support"]),
    "balance": (SIM, ["balance"]),
    "catalog": (SIM, ["catalog"]),
    "lengths": (SIM, ["reading"]),
    "decide": (SIM, ["decide"]),
    "runs": (SIM, ["observed", "fitting"]),
    "results": (SIM, ["results", "executors"]),
    "shown": (SIM, ["say", "show", "plots", "cli", "checking", "neighbours"]),
    "arenas": (ENGINE, ["backends", "memory", "places", "devices"]),
    "fsdp": (ENGINE, ["fsdp"]),
    "trainers": (ENGINE, ["trainers", "watching"]),
    "lab": (ENGINE, ["", "runs", "measuring", "decoder", "cli", "kernels", "doctor"]),
}
COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
COMPARED |= {"in": "not in", "not in": "in"}
SIGNS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*")}
LEFT_ALONE = re.compile(r'\s*(import|from|def|class|@|"""|#|raise|assert|if TYPE_CHECKING)')
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}


class Break(NamedTuple):
    room: str
    file: str
    line: str
    changed: str
    nth: int  # of the lines in the file with this text


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--breaks", type=int, default=80)
    parser.add_argument("--room", choices=ROOMS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--listed", action="store_true")
    asked = parser.parse_args(argv)
    if asked.listed:
        late = []
        for one, test in listed():
            seen, seconds, _ = attempt(one, [test])
            if not seen or seconds > SOON:
                late.append(f"{one.file} ({test}, {seconds:.1f} s{'' if seen else ', NOT SEEN'})")
        print(f"{len(late)} are not red within {SOON:g} s: {', '.join(late)}")
        return int(bool(late))
    record = json.loads(asked.against.read_text()) if asked.against else []
    breaks = again(record, asked.seed) if record else drawn(asked.seed, asked.breaks)
    tried = []
    for one in breaks:
        if asked.room in (None, one.room):
            seen, seconds, test = attempt(one, tests(one))
            print(f"{'seen' if seen else 'NOT SEEN':8} {seconds:5.1f} s  {one.file}: {one.line.strip()}  ->  "
                  f"{one.changed.strip()}  {test}", flush=True)  # fmt: skip
            tried.append({**one._asdict(), "seen": seen, "seconds": round(seconds, 1), "test": test})
            if asked.out:
                asked.out.write_text(json.dumps(tried, indent=1) + "\n")
    return compare(record, tried)


def compare(record: list[dict], tried: list[dict]) -> int:
    """The table of rooms; 1 where one of them saw more in the record."""
    worse = 0
    for room in ROOMS:
        before, after = ([one["seen"] for one in some if one["room"] == room] for some in (record, tried))
        if after:
            known = f"{sum(before)} of {len(before)} before, " if before else ""
            print(f"{room:10} {known}{sum(after)} of {len(after)} seen")
            worse += sum(before) > sum(after)
    return int(worse > 0)


def drawn(seed: int, number: int) -> list[Break]:
    """As many of each room as its lines have a share in both packages, at least three."""
    lines = {room: sum(path.read_text().count("\n") for path in sources(room)) for room in ROOMS}
    counts = {room: max(3, round(number * lines[room] / sum(lines.values()))) for room in ROOMS}
    largest = max(counts, key=lambda room: counts[room])
    counts[largest] += number - sum(counts.values())
    return [one for room in ROOMS for one in candidates(room, seed)[: counts[room]]]


def again(record: list[dict], seed: int) -> list[Break]:
    """The record's breaks that can still be made, and others of their rooms for the rest."""
    known = [Break(**{name: one[name] for name in Break._fields}) for one in record]
    kept = [one for one in known if place(one) is not None]
    others = {room: (one for one in candidates(room, seed + 1) if one not in known) for room in ROOMS}
    return [one if one in kept else next(others[one.room]) for one in known]


def listed() -> list[tuple[Break, str]]:
    """With the test of each. Indentation is left out in the list."""
    found = []
    for row in tomllib.loads((Path(__file__).parent / "choosers.toml").read_text())["breaks"]:
        lines = [line for line in (ROOT / row["file"]).read_text().splitlines() if line.strip() == row["line"]]
        assert len(lines) == 1, f"{row['file']} has {len(lines)} lines '{row['line']}'"
        changed = lines[0].replace(row["line"], row["becomes"])
        found.append((Break("", row["file"], lines[0], changed, nth=0), row["test"]))
    return found


def sources(room: str) -> list[Path]:
    package, folders = ROOMS[room]
    found = (path for f in folders for path in (ROOT / package / f).glob("**/*.py" if f else "*.py"))
    return sorted(found)


def candidates(room: str, seed: int) -> list[Break]:
    """Every break of the room once, in an order that the seed draws; one per line."""
    by_line: dict[tuple[str, int], list[Break]] = {}
    for path in sources(room):
        text = path.read_text().splitlines()
        for at, changed in changes(text, ast.parse(path.read_text())):
            nth = text[:at].count(text[at])
            found = Break(room, str(path.relative_to(ROOT)), text[at], changed, nth)
            by_line.setdefault((found.file, at), []).append(found)
    rng = Random(f"{seed} {room}")
    return rng.sample([rng.choice(some) for some in by_line.values()], len(by_line))


def changes(text: list[str], tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines by number from zero, with what each may become. Words, annotations and declarations are left alone."""
    for node in ast.walk(tree):
        if getattr(node, "lineno", None) is None or node.lineno != node.end_lineno:
            continue
        line, start, end = text[node.lineno - 1], node.col_offset, node.end_col_offset
        if LEFT_ALONE.match(line) or "help=" in line or not line.isascii():
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from _between(node, node.left, node.comparators[0], COMPARED, line)
        elif isinstance(node, ast.BinOp) and type(node.op) in SIGNS and not any(map(_word, (node.left, node.right))):
            yield from _between(node, node.left, node.right, dict([SIGNS[type(node.op)]]), line)
        elif isinstance(node, ast.BoolOp):
            word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from _between(node, node.values[0], node.values[1], {word: other}, line)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node.lineno - 1, line[:start] + line[start + 4 :]
        elif isinstance(node, ast.If | ast.IfExp) and node.test.lineno == node.test.end_lineno == node.lineno:
            a, b = node.test.col_offset, node.test.end_col_offset
            yield node.lineno - 1, f"{line[:a]}not ({line[a:b]}){line[b:]}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield node.lineno - 1, line[:start] + CALLS[node.func.id] + line[start + len(node.func.id) :]
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool) and line[start:end].isalnum():
            other = not node.value if isinstance(node.value, bool) else node.value + 1
            yield node.lineno - 1, f"{line[:start]}{other}{line[end:]}"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and line.strip() == line[start:end]:
            yield node.lineno - 1, f"{line[:start]}pass"


def _between(node: ast.expr, left: ast.expr, right: ast.expr, table: dict[str, str], line: str) -> Iterator:
    """Operators stand between two operands, whatever brackets are around these."""
    if left.end_lineno == right.lineno == node.lineno:
        a, b = left.end_col_offset or 0, right.col_offset
        for word, other in table.items():
            if re.fullmatch(rf"[\s)]*{re.escape(word)}[\s(]*", line[a:b]):
                yield node.lineno - 1, line[:a] + line[a:b].replace(word, other, 1) + line[b:]


def _word(side: ast.expr) -> bool:
    return isinstance(side, ast.Constant) and isinstance(side.value, str)


def place(one: Break) -> int | None:
    """The number of the break's line in its file of today."""
    path = ROOT / one.file
    lines = path.read_text().splitlines() if path.exists() else []
    found = [number for number, line in enumerate(lines) if line == one.line]
    return found[one.nth] if one.nth < len(found) else None


def attempt(one: Break, files: list[str]) -> tuple[bool, float, str]:
    """Whether a test failed, after how many seconds of processor time, and which."""
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", "site", ".*_cache"))
        at = place(one)
        path = tree / one.file
        lines = path.read_text().splitlines()
        assert at is not None
        lines[at] = one.changed
        path.write_text("\n".join(lines) + "\n")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *files]
        with (Path(folder) / "said").open("w+") as said:
            running = subprocess.Popen(command, cwd=tree, stdout=said, stderr=said, start_new_session=True,
                                       env=os.environ | {"PYTHONPATH": str(tree)})  # fmt: skip
            seconds = _wait(running)
            said.seek(0)
            failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said.read(), re.MULTILINE)
        return running.returncode in FAILED, seconds, failed.group(1) if failed else ""


def _wait(running: subprocess.Popen) -> float:
    """Until it ends, or has had its minute; the seconds of processor time of all that it started."""
    begun, used = time.monotonic(), 0.0
    while running.poll() is None:
        used = max(used, _used(running.pid))
        if used > MINUTE or time.monotonic() - begun > LONGEST:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        time.sleep(0.2)
    return used


def _used(session: int) -> float:
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def tests(one: Break) -> list[str]:
    """The room's test files, those that name the module first, then what commands print, then those of its folder."""
    package, folders = ROOMS[one.room]
    found = [p for f in folders for p in (ROOT / "tests" / package / f).glob("**/test_*.py" if f else "test_*.py")]
    wants = [pattern for package, patterns in NEEDS.items() if find_spec(package) is None for pattern in patterns]
    absent = {path for pattern in wants for path in (ROOT / "tests").glob(pattern)}  # named alone, they fail
    found = [path for path in found if absent.isdisjoint([path, *path.parents])]
    module = Path(one.file).with_suffix("")
    dotted = ".".join(module.parts).removesuffix(".__init__")
    parent, _, stem = dotted.rpartition(".")
    names = rf"{re.escape(dotted)}\b|from {re.escape(parent)} import [^\n]*\b{stem}\b"

    def distance(path: Path) -> tuple[int, int, str]:
        named = re.search(names, path.read_text()) is not None
        alike = stem.strip("_") in path.stem
        return -(2 * named + alike), -(module.parent.name in path.parts), str(path)

    near = [path for path in found if distance(path)[0]]
    shown = [ROOT / "tests" / "approved" / "test_approved.py"] if package == SIM or one.room == "lab" else []
    rest = [path for path in found if path not in near]
    every = (*sorted(near, key=distance), *shown, *sorted(rest, key=distance))
    return [str(path.relative_to(ROOT)) for path in every if path.exists()]


if __name__ == "__main__":
    sys.exit(main())
