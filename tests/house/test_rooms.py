"""The table of rooms in docs/design.md and the folders are one and the same, and so are its arrows and the imports."""

import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from scripts import ROOT
from sources import ENGINE, ODCSIM, inside

ROW = re.compile(r"^\| `(odcsim|odc_engine)/([\w/]+)` \| (.+?) \| (.*?) ?\|$", re.MULTILINE)
ROOMS = {
    f"{package}/{room}": {f"{package}/{other}" for other in re.findall(r"\w+", leans)}
    for package, room, _, leans in ROW.findall((ROOT / "docs/design.md").read_text(encoding="utf-8"))
}

OPEN = "odcsim/support"  # to all, as the nouns are


def folders() -> set[str]:
    every = (path.parent for package in ("odcsim", "odc_engine") for path in (ROOT / package).rglob("__init__.py"))
    return {str(path.relative_to(ROOT)) for path in every if path.parent != ROOT}


def room_of(module: str) -> str:
    """The room at the top that a module lies in, with all that is inside it; the module itself where it lies there."""
    return "/".join(module.split(".")[:2])


def leaned_on(room: str) -> set[str]:
    known = ODCSIM if room.startswith("odcsim/") else ENGINE
    names = {name for module, path in known.items() if room_of(module) == room for name in inside(path, known)}
    return {room_of(name) for name in names} & set(ROOMS) - {room, OPEN}


def test_every_folder_is_a_row_and_every_row_a_folder():
    assert folders() == set(ROOMS)


@pytest.mark.parametrize("room", [room for room in sorted(ROOMS) if room.count("/") == 1])
def test_a_room_leans_on_what_its_row_says(room):
    assert leaned_on(room) == ROOMS[room]


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_says_in_a_line_what_happens_there(room):
    text = (ROOT / room / "__init__.py").read_text(encoding="utf-8")
    assert re.match(r'"""[A-Z].+\.(""")?$', text.splitlines()[0])


def test_no_two_rooms_lean_on_each_other():
    assert list(TopologicalSorter(ROOMS).static_order())


@pytest.mark.parametrize("package", ["odcsim", "odc_engine"])
def test_what_lies_at_the_top_is_named(package):
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    top = [path.name for path in (ROOT / package).glob("*.py") if not path.name.startswith("__")]
    assert [name for name in top if f"`{package}/{name}`" not in text] == []
    assert not {Path(name).stem for name in top} & {Path(room).name for room in ROOMS if room.startswith(package)}
