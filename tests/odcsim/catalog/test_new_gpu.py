"""A GPU with a precision and an attention kernel of its own is added by three files, and priced by its figures."""

import json

from copied import House

GPU = """
[gpus.r100]
title = "a GPU of tomorrow"
peak_tflops = [4000, "datasheet", "ml-engineering"]
matmul_tflops = [3200, "assumed", "lowest-share"]
memory_gb = [288, "datasheet", "ml-engineering"]
memory_tb_s = [13.0, "datasheet", "ml-engineering"]
link_gb_s = [1800, "datasheet", "ml-engineering"]
nic_gbit_s = [800, "datasheet", "ml-engineering"]
devices_per_node = [8, "datasheet", "ml-engineering"]
"""
FAMILY = """
[families.rubin]
gpus = ["r100"]
matmul = [0.8, "assumed", "between"]
narrow = [110, "assumed", "between"]
moved = [0.54, "assumed", "between"]
copying = [0.17, "assumed", "between"]
fp8 = [2.0, "assumed", "between"]
fp4 = [4.0, "assumed", "between"]
usual = "fa4"

[attention.fa4]
rubin = [0.5, 0.4, 600, 500, "assumed", "between"]
"""
EDITS = {
    "catalog/gpus.toml": [("\n[sources.", f"{GPU}\n[sources.")],
    "catalog/rates.toml": [
        ("fp8 = [16, 5]", "fp8 = [16, 5]\nfp4 = [18, 4.5]"),
        ("\n[sources.", f"{FAMILY}\n[sources."),
    ],
    "recipe.py": [('"triton")', '"triton", "fa4")'), ('("bf16", "fp8")', '("bf16", "fp8", "fp4")')],
}
CODE = """
import json
from odcsim import catalog
from odcsim.catalog import fits
from odcsim.errors import InputError
from odcsim.recipe import recipe_of
model = catalog.model("llama-3.1-8b")
def of(gpu, **chosen):
    try:
        found = fits.estimate(model, catalog.gpu(gpu), 8, recipe_of(chosen))
        return [found.forward.linear, found.forward.quadratic, found.high, found.origin]
    except InputError:
        return None
print(json.dumps({"fp4": of("r100", precision="fp4"), "fp8": of("r100", precision="fp8"), "bf16": of("r100"),
                  "older": [of("b200", precision="fp4"), of("b200", attention="fa4")], "known": of("b200")}))
"""


def test_it_is_offered_and_priced_and_others_refuse_what_is_its_own(tmp_path):
    house = House(tmp_path)
    for name, edits in EDITS.items():
        file = tmp_path / "odcsim" / name
        text = file.read_text(encoding="utf-8")
        for before, after in edits:
            assert before in text
            text = text.replace(before, after, 1)
        file.write_text(text, encoding="utf-8")
    found = json.loads(house.run("-c", CODE))
    assert found["older"] == [None, None]
    assert found["known"] is not None
    times = [found[name][0] for name in ("fp4", "fp8", "bf16")]
    assert times == sorted(set(times))
    assert found["fp4"][1] == found["bf16"][1] > 0
    assert found["fp4"][2] > found["bf16"][2]  # nobody has published a run in it
    assert "fa4" in found["fp4"][3]
    offered = house.run("-m", "odcsim", "compare", "--help-all")
    assert "fp4}" in offered
    assert "fa4}" in offered
    assert "r100" in house.run("-m", "odcsim", "catalog", "list")
    words = (
        "uniform:min=2,max=40 --model nano --gpu r100 --devices 2 --minibatch 3 --minibatches 2 --precision fp4".split()
    )
    asked = json.loads(house.run("-m", "odcsim", "compare", *words, "--json"))["inputs"]
    assert (asked["gpu"], asked["precision"]) == ("r100", "fp4")
