"""The balancer of CONTRIBUTING.md, added as it says, is offered, planned, compared, shown and run.

Its steps are done on a copy of the package, and commands are called there.
"""

import json
import re
import textwrap

import pytest
from copied import House
from scripts import ROOT

from odcsim import schedule

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Add a balancer")[2]
BLOCKS = re.findall(r"^ *```python\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
FUNCTION, ROW = (textwrap.dedent(block) for block in BLOCKS[:2])
NAME, HELP = re.findall(r'Balancer\("([\w-]+)", \w+, "(.*?)"', ROW)[0]
SETTING = "uniform:min=2,max=40 --model nano --gpu a100 --devices 2 --minibatch 3 --minibatches 2".split()


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> House:
    found = House(tmp_path_factory.mktemp("house"))
    rules = found.folder / "odcsim/balance/rules.py"
    before, head, rows = rules.read_text().partition("BALANCERS = (")
    end = rows.rindex(")")
    rules.write_text(before + FUNCTION + "\n" + head + rows[:end] + ROW + rows[end:])
    found.run("-m", "odcsim", "balance", *SETTING, "--balancer", NAME, "-o", "s.jsonl")
    return found


def test_it_is_offered_with_its_line_of_help_and_its_schedules_are_written(house):
    assert re.search(rf", {NAME}$", house.run("-m", "odcsim", "balance", "--help"), re.MULTILINE)
    offered = " ".join(house.run("-m", "odcsim", "balance", "--help-all").split())
    assert f",{NAME}}}" in offered
    assert f"{NAME} (on-demand only): {HELP}" in offered
    file = schedule.read(house.folder / "s.jsonl")
    assert file.header.balancer == NAME
    for found in file.schedules:
        heaviest = sorted(range(6), key=lambda i: -found.lengths[i])
        assert [found.lengths[i] for ((i,), *_) in found.devices] == [found.lengths[i] for i in heaviest[:2]]


def test_it_is_compared_and_planned_under_the_sync_that_can_run_it(house):
    rows = json.loads(house.run("-m", "odcsim", "compare", *SETTING, "--json", "--html", "r.html"))["rows"]
    assert [row["sync"] for row in rows if row["balancer"] == NAME] == ["on-demand"]
    assert f"on-demand + {NAME}" in (house.folder / "r.html").read_text()
    planned = f"plan([5, 9, 7], devices=2, max_tokens=9, balancer='{NAME}').devices"
    assert house.run("-c", f"from odcsim.balance import plan; print({planned})") == "(((1,), (0,)), ((2,),))\n"


@pytest.mark.slow
def test_the_engine_proves_its_plan(house):
    pytest.importorskip("torch")
    words = "verify s.jsonl --sync on-demand --backend threads --json".split()
    assert json.loads(house.run("-m", "odc_engine", *words))["ok"]
