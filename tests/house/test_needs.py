"""Test files are left out where a package that they import is not installed, instead of ending the whole run."""

import ast
from pathlib import Path

from needs import NEEDS
from scripts import ROOT

TESTS = ROOT / "tests"
EXTRAS = {
    "PIL",
    "accelerate",
    "datasets",
    "peft",
    "torchtitan",
    "transformers",
    "trl",
    "verl",
}  # those of trainers alone


def imported(path: Path) -> set[str]:
    """Packages that a file imports when it is imported, through helpers, too."""
    found: set[str] = set()
    left, seen = [path], {path}
    while left:
        own = left.pop()
        names = {name for statement in ast.parse(own.read_text("utf-8")).body for name in _names(statement)}
        found |= {name.split(".")[0] for name in names}
        for helper in {file for name in names for file in _helpers(name)} - seen:
            seen.add(helper)
            left.append(helper)
    return found


def _names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        module = statement.module or ""
        return [module, *(f"{module}.{alias.name}" for alias in statement.names)]
    return []


def _helpers(name: str) -> list[Path]:
    place = TESTS / "helpers" / name.replace(".", "/")
    return [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()]


def test_what_needs_a_trainer_s_package_is_left_out_without_it():
    left_out = {path for package in EXTRAS & {*NEEDS} for pattern in NEEDS[package] for path in TESTS.glob(pattern)}
    needing = {path for path in TESTS.rglob("test_*.py") if imported(path) & EXTRAS}
    assert needing
    assert sorted(needing - left_out) == []
