"""Public names: the same as ever, importable, and loaded no earlier than they are used."""

import subprocess
import sys
from importlib import import_module

import pytest
from public import NAMES, missing, private


@pytest.mark.parametrize("module", NAMES)
def test_public_names_are_those_that_were_always_public(module):
    if module.startswith("odc_engine"):
        pytest.importorskip("torch")
    found = import_module(module)
    assert set(found.__all__) == NAMES[module]
    assert len(found.__all__) == len(NAMES[module])
    assert [name for name in NAMES[module] if not hasattr(found, name)] == []


@pytest.mark.parametrize(
    "start", ["import odcsim", "import odc_engine", "from odcsim.cli import build_parser; build_parser()"]
)
def test_importing_a_package_and_its_command_loads_nothing_slow(start):
    code = f"{start}; import sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert start.split()[1] in loaded
    assert not {"numpy", "torch", "scipy", "simpy", "plotly"} & set(loaded)


def test_public_names_are_listed_before_they_are_loaded():
    code = "import odcsim; print(*dir(odcsim)); odcsim.balance.plan, odcsim.plots.idle"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    rooms = {name.removeprefix("odcsim.") for name in NAMES if name.startswith("odcsim.")}
    assert {name for name in listed if not name.startswith("__")} == NAMES["odcsim"] | rooms


@pytest.mark.parametrize("package", ["odcsim", "odcsim.balance", "odc_engine", "odc_engine.trainers"])
def test_a_name_that_is_not_there_is_no_attribute(package):
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        import_module(package).nothing  # noqa: B018


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import numpy as np, odcsim\nodcsim.compare(odcsim.ask('t', 'm')).rows\nnp.zeros(3)", []),
        ("import odcsim\nodcsim.balance.plan([1]).devices\nodcsim.plots.idle([])", []),
        ("from odcsim import plots\nplots.idle([]).update_layout()", []),
        ("from odcsim.balance import plan", []),
        ("from odc_engine import OnDemand", []),
        ("import odcsim.timeline as t\nt.read('a').blocks", []),
        ("import odcsim\nodcsim.cost", ["odcsim.cost"]),
        ("import odcsim\nodcsim.heuristics.bound", ["odcsim.heuristics", "odcsim.heuristics.bound"]),
        ("import odcsim.cost", ["odcsim.cost"]),
        (
            "def f():\n    from odcsim.heuristics.bound import lower_bound",
            ["odcsim.heuristics.bound.lower_bound"],
        ),
        ("from odcsim import plots as p\np.rows", ["odcsim.plots.rows"]),
        ("from odc_engine.trainers import OnDemandMixin, rows", ["odc_engine.trainers.rows"]),
        ("from odc_engine.packed import pack", ["odc_engine.packed.pack"]),
    ],
)
def test_what_is_private_is_seen_in_a_program(code, names):
    assert sorted(private(code)) == names


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from odcsim import plots\nplots.idle\nplots.idel", ["odcsim.plots.idel"]),
        ("def f():\n    from odcsim.nowhere import a", ["odcsim.nowhere.a"]),
        ("import odcsim.cost as c\nc.Cost, c.Costs", ["odcsim.cost.Costs"]),
        ("import numpy as np\nnp.nothing", []),
    ],
)
def test_what_is_missing_is_seen_in_a_program(code, names):
    assert missing(code) == names
