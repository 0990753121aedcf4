"""Who may import whom: the import rules of docs/design.md, read from the source and tried once for real."""

import subprocess
import sys
from graphlib import TopologicalSorter

import pytest
from scripts import ROOT
from sources import ENGINE, ODCSIM, inside, outside

SUPPORT = {name for name in ODCSIM if name.startswith("odcsim.support")}
NOUNS = (
    "errors trace schedule flat program recipe recipe_file question timeline profile model cost cluster network "
    "recipe_flags"
)
CONTRACT = {f"odcsim.{name}" for name in NOUNS.split()} | SUPPORT
EXECUTORS = {"odcsim.executors.analytic", "odcsim.executors.des"}
READERS = (
    "odcsim.results",
    "odcsim.plots",
    "odcsim.show.pages.page",
    "odcsim.show.pages.perfetto",
)  # of timelines, whoever wrote them


def test_the_rules_have_something_to_hold():
    assert set(ODCSIM) >= CONTRACT | EXECUTORS | {"odcsim.results.metrics"}
    assert "numpy" in outside(ODCSIM["odcsim.cost"])
    assert "odcsim.profile" in inside(ODCSIM["odcsim.cost"], ODCSIM)
    assert "odcsim.executors.des" in inside(ODCSIM["odcsim.executors.simulation"], ODCSIM)  # imported in a function
    assert "odcsim.show.pages.report" not in inside(ODCSIM["odcsim"], ODCSIM)  # for type checkers


@pytest.mark.parametrize("name", ODCSIM)
def test_the_simulator_never_imports_the_engine_or_what_it_needs(name):
    forbidden = {"torch", "pandas", "triton", "nvshmem", "odc_engine"}
    assert not outside(ODCSIM[name]) & forbidden


@pytest.mark.parametrize("name", sorted(CONTRACT))
def test_the_contract_imports_numpy_and_itself(name):
    known = {"rich"} if name == "odcsim.support.progress" else {"numpy"}
    assert outside(ODCSIM[name]) <= {"odcsim"} | known
    assert inside(ODCSIM[name], ODCSIM) - {"odcsim"} <= CONTRACT


@pytest.mark.parametrize("name", ENGINE)
def test_the_engine_imports_the_contract_the_catalogue_the_balancers_and_the_fit_alone(name):
    allowed = CONTRACT | {"odcsim", "odcsim.balance", "odcsim.catalog", "odcsim.catalog.fits"}
    fitting = {f"odcsim.fitting{module}" for module in ("", ".measurements", ".recorded", ".fit")}
    allowed |= {"odcsim.balance.library"} | fitting
    if name == "odc_engine.measuring.bandwidth":
        allowed |= {"odcsim.plots", "odcsim.show", "odcsim.show.pages", "odcsim.show.pages.page"}
    assert inside(ENGINE[name], ODCSIM) <= allowed


@pytest.mark.parametrize("known", [ODCSIM, ENGINE], ids=["odcsim", "odc_engine"])
def test_nobody_imports_in_a_circle(known):
    """A package is not its own modules here: its `__init__` runs before they do."""
    graph = {name: inside(path, known) - {name, name.rpartition(".")[0]} for name, path in known.items()}
    assert list(TopologicalSorter(graph).static_order())


def test_executors_do_not_know_each_other():
    for name in EXECUTORS:
        assert not inside(ODCSIM[name], ODCSIM) & (EXECUTORS - {name})


def is_reader(name: str) -> bool:
    return any(name == reader or name.startswith(reader + ".") for reader in READERS)


@pytest.mark.parametrize("name", [name for name in ODCSIM if is_reader(name)])
def test_who_reads_timelines_knows_no_executor(name):
    assert not inside(ODCSIM[name], ODCSIM) & (EXECUTORS | {"odcsim.executors.simulation"})


OF_THE_SCAN = {"odcsim.executors.taking"}  # what the analytic executor is made of, beside the scan


def test_only_the_entry_point_knows_the_executors():
    """The report simulates a minibatch for its picture, but which executor does it is not its business."""
    users = {name for name, path in ODCSIM.items() if inside(path, ODCSIM) & EXECUTORS}
    assert users == {"odcsim.executors.simulation", *OF_THE_SCAN}


@pytest.mark.parametrize(("package", "home"), [("simpy", "odcsim.executors.des"), ("plotly", "odcsim.plots")])
def test_one_place_knows_the_package(package, home):
    users = {name for name, path in ODCSIM.items() if package in outside(path)}
    assert {name for name in users if name != home and not name.startswith(home + ".")} == set()
    assert users or home not in ODCSIM


KERNELS = {name for name in ENGINE if name.startswith("odc_engine.kernels.")}
CALLERS = {"odc_engine.memory.gpu", "odc_engine.memory.pushes"}  # of kernels; loaded where there is a GPU
LIBRARIES = {"triton", "nvshmem", "cuda"}


def test_only_the_kernels_know_triton():
    assert {name for name, path in ENGINE.items() if "triton" in outside(path)} <= KERNELS


def test_all_but_the_kernels_can_be_imported_where_no_library_for_gpus_is_installed():
    pytest.importorskip("torch")
    names = sorted(name for name in set(ENGINE) - KERNELS - CALLERS if not name.endswith("__main__"))
    code = f"""
import importlib, sys
sys.modules |= dict.fromkeys({sorted(LIBRARIES)!r})
for name in {names!r}:
    importlib.import_module(name)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


def test_comparing_loads_neither_torch_nor_pandas(tmp_path):
    """Both are there to be found in this run, so that whoever tries to import them is seen, also where they are not
    installed and where a library imports them only if it can."""
    for name in ("torch", "pandas"):
        (tmp_path / f"{name}.py").write_text("")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import odcsim
question = odcsim.ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=2, minibatch=2, minibatches=2)
answer = odcsim.compare(question, executor="des")
assert answer.row("lb-mini", "on-demand").speedup > 0
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
import torch
assert torch.__file__.startswith({str(tmp_path)!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert {"odcsim", "numpy", "simpy"} <= loaded
    assert not loaded & {"torch", "pandas", "plotly", "pyarrow", "triton", "odc_engine"}
