"""The trainer of CONTRIBUTING.md, added as it says, is offered, told its settings and compared."""

import json
import re
import textwrap

import pytest
from copied import House
from scripts import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Add a trainer")[2].partition("\n## ")[0]
MODULE = textwrap.dedent(re.findall(r"^ *```python\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)[0])
SETTING = "uniform:min=2,max=40 --model nano --gpu a100 --devices 2 --minibatch 3 --minibatches 2".split()


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> House:
    found = House(tmp_path_factory.mktemp("house"))
    line = "        llama_factory.LLAMA_FACTORY, accelerate.ACCELERATE,\n        in_rows.ROWS,\n"
    found.add("odcsim/neighbours", "in_rows", MODULE, among=line)
    return found


def test_it_is_offered(house):
    assert "accelerate,rows}" in house.run("-m", "odcsim", "flags", "--help-all")


def test_it_stands_in_the_field_and_is_told_its_settings(house):
    field = json.loads(house.run("-m", "odcsim", "compare", *SETTING, "--field", "--json"))
    assert "collective" in [row["sync"] for row in field["rows"] if row["balancer"] == "rows"]
    compared = house.run("-m", "odcsim", "compare", *SETTING, "--trainer", "rows", "--json")
    assert [row["sync"] for row in json.loads(compared)["rows"] if row.get("made")] == ["collective"]
    (house.folder / "rows.json").write_text(compared)
    told = house.run("-m", "odcsim", "flags", "rows", "rows.json").splitlines()
    assert [line.partition(" #")[0] for line in told if not line.startswith("#")] == [
        f"max_tokens: {next(row['made']['max_tokens'] for row in json.loads(compared)['rows'] if row.get('made'))}",
        "samples: 6",
    ]
