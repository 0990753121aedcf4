"""Who may import whom: the import rules of docs/rules.md, read from the source and tried once for real."""

import ast
import re
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter

import pytest
from needs import NEEDS
from public import private
from scripts import ROOT
from sources import Files, Source, everything, modules, planted, programs

PAGES = ("docs/design.md", "docs/rules.md", "docs/engine/inside.md")
DESIGN = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
ROWS = re.findall(r"^\| `(odcsim|odc_engine)/([\w/]+)` \| (?:.+?) \| (.*?) ?\|$", DESIGN, re.MULTILINE)
ROOMS = {f"{top}/{room}": {f"{top}/{other}" for other in re.findall(r"\w+", leans)} for top, room, leans in ROWS}
OPEN = "odcsim/support"  # to all, as the nouns are
TABLE = re.search(r"^\| layer of `odcsim` .*\n\|-.*\n((?:\|.*\n)+)", DESIGN, re.MULTILINE)[1]
LAYERS = [re.findall(r"`(\w+)`", line) for line in TABLE.splitlines()]  # the highest first
LAYER = {place: number for number, places in enumerate(LAYERS) for place in places}
EXECUTORS = {"odcsim.executors.analytic", "odcsim.executors.des"}
ENTRY = "odcsim.executors.simulation"
READERS = ("odcsim.results", "odcsim.plots", "odcsim.show.pages.page", "odcsim.show.pages.perfetto")  # of timelines
HOMES = {"simpy": "odcsim.executors.des", "plotly": "odcsim.plots", "triton": "odc_engine.kernels"}
TRAINERS = {"PIL", "accelerate", "datasets", "peft", "torchtitan", "transformers", "trl", "verl"}  # need these


def under(module: str, *rooms: str) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def contract(module: str) -> bool:
    """Whether all may import it: a noun at the top of odcsim, or support."""
    noun = module.count(".") == 1 and module.replace(".", "/") not in ROOMS and not module.endswith("__")
    return under(module, "odcsim.support") or (noun and under(module, "odcsim"))


def inside(source: Source, known: dict[str, Source]) -> list[tuple[int, str]]:
    """Lines and names of the modules among these that it imports."""
    return [(line, name) for line, name in source.imports if name in known]


def imports_that_climb(files: Files) -> list[str]:
    """A module of odcsim imports from its own layer and from those below it."""
    every = modules(files, "odcsim").items()
    known = {name: one for name, one in every if name.split(".")[-1] not in ("odcsim", "__main__")}
    return [
        source.at(line, f"{name} is of a higher layer")
        for module, source in known.items()
        for line, name in inside(source, known)
        if LAYER.get(name.split(".")[1], 0) < LAYER.get(module.split(".")[1], 0)
    ]


def places_without_one_layer(files: Files) -> list[str]:
    places = {name.split(".")[1]: one for name, one in modules(files, "odcsim").items() if "." in name}
    told = Counter(place for row in LAYERS for place in row)
    found = [one.at(1, f"{told[place]} layers") for place, one in places.items() if told[place] != 1]
    return [*(each for each in found if "__main__" not in each), *(f"no {place}" for place in told.keys() - places)]


def rooms_without_a_row(files: Files) -> list[str]:
    """Folders and rows of the table of rooms are the same, and the page names each file at the top."""
    ours = programs(files, "odcsim", "odc_engine")
    inits = [one for one in ours if one.name.count("/") > 1 and one.name.endswith("/__init__.py")]
    folders = {one.name.removesuffix("/__init__.py"): one for one in inits}
    top = [one for one in ours if re.fullmatch(r"\w+/(?!__)\w+\.py", one.name)]
    return [
        *(f"docs/design.md: no folder {room}" for room in ROOMS.keys() - folders),
        *(one.at(1, "no row in docs/design.md") for room, one in folders.items() if room not in ROOMS),
        *(one.at(1, "not in docs/design.md") for one in top if f"`{one.name}`" not in DESIGN),
        *(one.at(1, "as a room is called") for one in top if one.name.removesuffix(".py") in ROOMS),
    ]


def leaning(files: Files) -> dict[str, dict[str, str]]:
    """Of each room at the top those that it imports from, and where."""
    leaned: dict[str, dict[str, str]] = {room: {} for room in ROOMS if room.count("/") == 1}
    for package in ("odcsim", "odc_engine"):
        known = modules(files, package)
        for module, source in known.items():
            room = "/".join(module.split(".")[:2])
            for line, name in inside(source, known) if room in leaned else ():
                other = "/".join(name.split(".")[:2])
                if other in leaned.keys() - {room, OPEN}:
                    leaned[room].setdefault(other, source.at(line, f"{room} leans on {other}"))
    return leaned


def rooms_leaned_on_unsaid(files: Files) -> list[str]:
    """A room leans on those that its row names."""
    leaned = leaning(files)
    more = [said for room, others in leaned.items() for other, said in others.items() if other not in ROOMS[room]]
    return more + [f"{room} leans on no {other}" for room in leaned for other in ROOMS[room] - {*leaned[room]}]


def circles(files: Files) -> list[str]:
    """A package is not its own modules here: its `__init__` runs before they do."""
    known = modules(files)
    every = {name: {other for _, other in inside(one, known)} for name, one in known.items()}
    return circle({name: others - {name, name.rpartition(".")[0]} for name, others in every.items()})


def circles_of_rooms(files: Files) -> list[str]:
    return circle({room: {*others} for room, others in leaning(files).items()})


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as found:
        return [" imports ".join(reversed(found.args[1]))]
    return []


def imports_of_the_contract(files: Files) -> list[str]:
    """Numpy and itself; support's progress has rich."""
    known, found = modules(files, "odcsim"), []
    for module, source in known.items():
        if contract(module):
            foreign = source.packages - {"odcsim", "rich" if module == "odcsim.support.progress" else "numpy"}
            found += [source.at(1, f"imports {package}") for package in sorted(foreign)]
            others = [each for each in inside(source, known) if each[1] != "odcsim" and not contract(each[1])]
            found += [source.at(line, f"imports {name}") for line, name in others]
    return found


def imports_of_the_engine(files: Files) -> list[str]:
    """Of odcsim the contract, and otherwise public names."""
    return [
        source.at(line, f"takes {name}")
        for source in modules(files, "odc_engine").values()
        for line, name in private(source.tree)
        if under(name, "odcsim") and not (contract(name) or contract(name.rpartition(".")[0]))
    ]


def imports_of_executors(files: Files) -> list[str]:
    """Their entry point alone knows them, and who reads timelines, whoever wrote them, does not know even that."""
    found = []
    for module, source in modules(files, "odcsim").items():
        forbidden = set() if module == ENTRY else EXECUTORS - {module}
        forbidden = forbidden | {ENTRY} if under(module, *READERS) else forbidden
        found += [source.at(line, f"imports {name}") for line, name in source.imports if name in forbidden]
    return found


def packages_away_from_home(files: Files) -> list[str]:
    """SimPy, plotly and Triton are each known by one place."""
    return [
        source.at(line, f"imports {name}")
        for module, source in modules(files).items()
        for line, name in source.imports
        if (home := HOMES.get(name.partition(".")[0])) and not under(module, home)
    ]


def imports_of_tests(files: Files) -> list[str]:
    """What several need is a helper, so that a folder of tests runs by itself."""
    tests = [one for one in programs(files, "tests") if "/test_" in one.name]
    taken = [(one, *each) for one in tests for each in one.imports]
    return [one.at(line, f"imports {name}") for one, line, name in taken if name.startswith("test_")]


def names_of_tests(files: Files) -> list[str]:
    """Their folders are no packages, so pytest would take the one for the other, and collect neither."""
    names = [one.name for one in programs(files, "tests") if "/test_" in one.name]
    count = Counter(name.rpartition("/")[2] for name in names)
    return [f"{name}:1: called as another" for name in names if count[name.rpartition("/")[2]] > 1]


def needs_of_tests(files: Files) -> list[str]:
    """A test file is left out where a trainer's package that it imports, also by helpers, is not installed."""
    tests = {one.name: one for one in programs(files, "tests")}
    patterns = [pattern for package in TRAINERS & {*NEEDS} for pattern in NEEDS[package]]
    left_out = {path for pattern in patterns for path in (ROOT / "tests").glob(pattern)}
    return [
        one.at(1, f"imports {', '.join(sorted(needed))}, and is not in tests/helpers/needs.py")
        for name, one in tests.items()
        if "/test_" in name and ROOT / name not in left_out and (needed := at_once(name, tests) & TRAINERS)
    ]


def at_once(name: str, tests: dict[str, Source]) -> set[str]:
    """Packages that are imported when a file is, by helpers, too."""
    found, left, seen = set(), [name], {name}
    while left:
        for statement in tests[left.pop()].tree.body:
            names = [alias.name for alias in getattr(statement, "names", ()) if isinstance(alias, ast.alias)]
            if isinstance(statement, ast.ImportFrom):
                names = [str(statement.module), *(f"{statement.module}.{each}" for each in names)]
            found |= {each.partition(".")[0] for each in names}
            homes = ("tests/helpers", name.rpartition("/")[0])  # also of what serves one folder alone
            places = [f"{home}/{each.replace('.', '/')}" for each in names for home in homes]
            helpers = {file for place in places for file in (f"{place}.py", f"{place}/__init__.py") if file in tests}
            left += helpers - seen
            seen |= helpers
    return found


COST, ENGINE, ROOM = "odcsim/cost.py", "odc_engine/job.py", "odcsim/attic/__init__.py"
LEANS = {"odcsim/catalog/a.py": "\nfrom odcsim.results import b", "odcsim/results/__init__.py": ""}
ROUND = {COST: "def f():\n    from odcsim import model", "odcsim/model.py": "import odcsim.cost"}
ROOMS_ROUND = {"odcsim/show/a.py": "import odcsim.plots.a", "odcsim/plots/a.py": "import odcsim.show.b"}
ROOMS_ROUND |= {"odcsim/show/b.py": ""}
TAKES = {ENGINE: "from odcsim import catalog, cost\ncatalog.gpu, cost.Cost, catalog.rates", COST: ""}
AWAY = {"odcsim/plots/a.py": "import plotly", COST: "import simpy.core"}
HELPED = {"tests/test_a.py": "import b", "tests/helpers/b.py": "from c import d", "tests/helpers/c/d.py": "import trl"}
RULES = {  # each with files that break it, and what is said of them
    imports_that_climb: ({COST: "import odcsim.cli.run", "odcsim/cli/run.py": ""}, f"{COST}:1: odcsim.cli.run"),
    places_without_one_layer: ({"odcsim/attic/a.py": ""}, "odcsim/attic/a.py:1: 0 layers"),
    rooms_without_a_row: ({ROOM: ""}, f"{ROOM}:1: no row"),
    rooms_leaned_on_unsaid: (LEANS, "odcsim/catalog/a.py:2: odcsim/catalog leans on odcsim/results"),
    circles: (ROUND, "odcsim.cost imports"),
    circles_of_rooms: (ROOMS_ROUND, "odcsim/show imports odcsim/plots"),
    imports_of_the_contract: ({COST: "import scipy"}, f"{COST}:1: imports scipy"),
    imports_of_the_engine: (TAKES, "job.py:2: takes odcsim.catalog.rates"),
    imports_of_executors: ({"odcsim/plots/a.py": f"import {ENTRY}"}, "odcsim/plots/a.py:1: imports"),
    packages_away_from_home: (AWAY, f"{COST}:1: imports"),
    imports_of_tests: ({"tests/test_a.py": "from test_b import c"}, "tests/test_a.py:1: imports test_b"),
    names_of_tests: ({"tests/a/test_a.py": "", "tests/b/test_a.py": ""}, "tests/b/test_a.py:1: called as another"),
    needs_of_tests: (HELPED, "tests/test_a.py:1: imports trl"),
}


@pytest.mark.parametrize("rule", RULES)
def test_it_sees_what_breaks_it_and_nothing_does(rule):
    files, said = RULES[rule]
    assert said in "\n".join(rule(planted(files)))
    assert (broken := rule(everything())) == [], "\n".join(broken)


def test_what_type_checkers_alone_import_is_not_imported():
    known = modules(everything())
    assert "numpy" in known["odcsim.cost"].packages
    assert "odcsim.executors.des" in {name for _, name in known[ENTRY].imports}  # in a function
    assert "odcsim.show.pages.report" not in {name for _, name in known["odcsim"].imports}


def loaded(code: str, *options: str) -> set[str]:
    """Modules of a Python that has run this."""
    code += "\nimport sys; print(*sys.modules)"
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_all_but_the_kernels_can_be_imported_where_no_library_for_gpus_is_installed():
    pytest.importorskip("torch")
    kernels = "odc_engine.kernels", "odc_engine.memory.gpu"  # and who calls them; loaded where there is a GPU
    names = [name for name in modules(everything(), "odc_engine") if not under(name, *kernels)]
    names = [name for name in names if not name.endswith("__main__")]
    code = f"""
import importlib, sys
sys.modules |= dict.fromkeys(["triton", "nvshmem", "cuda"])
for name in {names!r}:
    importlib.import_module(name)
"""
    assert "odc_engine.job" in loaded(code, "-W", "error")


def test_comparing_loads_neither_torch_nor_pandas(tmp_path):
    """Both are there to be found in this run, so that whoever tries to import them is seen, also where they are not
    installed and where a library imports them only if it can."""
    for name in ("torch", "pandas"):
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "c.toml").write_text("jitter = 0.1\n")
    found = loaded(f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import odcsim
words = {{"gpu": "a100", "devices": 2, "minibatch": 2, "minibatches": 2, "cluster": {str(tmp_path / "c.toml")!r}}}
answer = odcsim.compare(odcsim.ask("longalign", "r1-distill-qwen-1.5b", **words))
assert answer.row("lb-mini", "on-demand").speedup > 0
import torch
assert torch.__file__.startswith({str(tmp_path)!r})
del sys.modules["torch"]
""")
    assert {"odcsim", "numpy", "simpy"} <= found
    assert not found & {"torch", "pandas", "plotly", "pyarrow", "triton", "odc_engine"}


def test_importing_a_package_and_its_command_loads_nothing_slow():
    for start in ("import odcsim", "import odc_engine", "from odcsim.cli import build_parser; build_parser()"):
        found = loaded(start)
        assert start.split()[1] in found
        assert not {"numpy", "torch", "scipy", "simpy", "plotly"} & found, start
