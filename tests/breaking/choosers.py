"""Single-line breaks of what chooses, and of the engine's meetings (choosers.toml): each, made in a copy of the tree,
must turn its test red within ten seconds.

    python tests/breaking/choosers.py          # all of them
    python tests/breaking/choosers.py --first 3 --only limit

Seconds are those of processors, of all of the test's run: a machine that is shared stretches the others.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_suffix(".toml")
COPIED = ("odcsim", "odc_engine", "tests", "pyproject.toml")
SECONDS = 10.0
HUNG = 6  # times as long by the clock, and a test is ended


@dataclass(frozen=True)
class Break:
    file: str
    line: str
    becomes: str
    test: str

    def made(self, text: str) -> str:
        """The file's text with it. Indentation stays."""
        places = [line for line in text.splitlines() if line.strip() == self.line]
        assert len(places) == 1, f"{self.file} has {len(places)} lines '{self.line}'"
        return text.replace(places[0], places[0].replace(self.line, self.becomes))


def breaks() -> list[Break]:
    return [Break(**row) for row in tomllib.loads(LIST.read_text())["breaks"]]


@dataclass(frozen=True)
class Run:
    code: int  # of pytest: 1 where a test failed
    seconds: float
    clock: float

    @property
    def red(self) -> bool:
        return self.code == 1 and self.seconds <= SECONDS


def run(one: Break, tree: Path) -> Run:
    """The test with the break made in a tree, which is as it was afterwards."""
    place, began, before = tree / one.file, time.monotonic(), _used()
    text = place.read_text()
    place.write_text(one.made(text))
    command = [sys.executable, "-m", "pytest", one.test, "-x", "-q", "-p", "no:cacheprovider"]
    env = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, timeout=HUNG * SECONDS, check=False)
        code = done.returncode
    except subprocess.TimeoutExpired:
        code = -1
    finally:
        place.write_text(text)
    return Run(code, _used() - before, time.monotonic() - began)


def _used() -> float:
    of = resource.getrusage(resource.RUSAGE_CHILDREN)
    return of.ru_utime + of.ru_stime


def copy(into: Path) -> Path:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, into / name)
    return into


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, help="so many of them")
    parser.add_argument("--only", default="", help="those whose file's name holds this")
    asked = parser.parse_args()
    listed = [one for one in breaks() if asked.only in one.file][: asked.first]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="choosers-") as folder:
        tree = copy(Path(folder))
        for one in listed:
            found = run(one, tree)
            failed += not found.red
            told = "red" if found.red else "NOT RED" if found.code != 1 else "LATE"
            print(
                f"{told:7} {found.seconds:5.1f} s ({found.clock:.1f} by the clock)  {one.file}: {one.becomes}",
                flush=True,
            )
    print(f"{len(listed) - failed} of {len(listed)} are red within {SECONDS:g} s")
    return 1 if failed or not listed else 0


if __name__ == "__main__":
    sys.exit(main())
