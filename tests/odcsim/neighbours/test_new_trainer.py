"""The trainer of CONTRIBUTING.md, added as it says, is offered, told its settings and compared."""

import json
import re
import textwrap

from copied import House
from scripts import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Add a trainer")[2].partition("\n## ")[0]
MODULE = textwrap.dedent(re.findall(r"^ *```python\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)[0])
SETTING = "uniform:min=2,max=40 --model nano --gpu a100 --devices 2 --minibatch 3 --minibatches 2".split()


def test_it_is_offered_stands_in_the_field_and_is_told_its_settings(tmp_path):
    house = House(tmp_path)
    line = "        accelerate.ACCELERATE,\n        in_rows.ROWS,\n"
    house.add("odcsim/neighbours", "in_rows", MODULE, among=line)
    assert "accelerate,rows}" in house.run("-m", "odcsim", "flags", "--help-all")
    field = json.loads(house.run("-m", "odcsim", "compare", *SETTING, "--field", "--json"))
    assert "collective" in [row["sync"] for row in field["rows"] if row["balancer"] == "rows"]
    compared = house.run("-m", "odcsim", "compare", *SETTING, "--trainer", "rows", "--json")
    [own] = [row for row in json.loads(compared)["rows"] if row.get("made")]
    assert own["sync"] == "collective"
    (house.folder / "rows.json").write_text(compared)
    told = house.run("-m", "odcsim", "flags", "rows", "rows.json").splitlines()
    settings = [line.partition(" #")[0] for line in told if not line.startswith("#")]
    (house.folder / "run.yaml").write_text("\n".join(told))
    audit = ("audit", "run.yaml", "--lengths", SETTING[0], "--model", "nano", "--gpu", "a100", "--devices", "2")
    assert json.loads(house.run("-m", "odcsim", *audit, "--json"))["trainer"] == "rows"
    assert settings == [f"max_tokens: {own['made']['max_tokens']}", "samples: 6"]
