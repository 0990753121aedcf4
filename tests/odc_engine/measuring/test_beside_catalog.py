"""A profile says by how much the catalogue was off on its machine, or why nothing can be said."""

from dataclasses import replace

from odc_engine.measuring.beside_catalog import known, line
from odcsim import catalog
from odcsim.catalog.fits import estimate
from odcsim.profile import stretched

MODEL = catalog.model("qwen3-0.6b")
GUESS = estimate(MODEL, catalog.gpu("h200"), 1)
MEASURED = replace(GUESS, hardware="8 x NVIDIA H200", dtype="bfloat16", longest=4096)


def test_a_profile_says_how_much_slower_it_is_or_that_nothing_can_be_said():
    """The factor, whether the catalogue's own interval holds it, and another dtype."""
    for factor in (0.5, 1.0, 1.3):
        found = line(stretched(MEASURED, factor), MODEL, "cuda")
        assert f"{factor:.2f} times" in found
        assert ("inside" in found) == (GUESS.low <= factor <= GUESS.high)
        assert "float32" not in found
    assert "float32" in line(replace(MEASURED, dtype="float32"), MODEL, "cuda")
    for hardware in ("2 cores", "2 x NVIDIA GeForce RTX 4090", "32 SMs each of NVIDIA H200"):
        device = "cpu" if "cores" in hardware else "cuda"
        assert "nothing, since" in line(replace(MEASURED, hardware=hardware), MODEL, device)


KNOWN = {
    "8 x NVIDIA H100 80GB HBM3": "h100",
    "8 x NVIDIA A100-SXM4-40GB": "a100-40gb",
    "8 x NVIDIA A100-SXM4-80GB": "a100",
    "8 x NVIDIA A100 80GB PCIe": "",
    "2 x NVIDIA H100 PCIe": "",
    "8 x NVIDIA H200 NVL": "",
    "4 x NVIDIA GB200": "gb200",
    "4 x NVIDIA B200": "b200",
    "8 x AMD Instinct MI300X OAM": "mi300x",
    "1 x NVIDIA L40": "",
}


def test_a_gpu_is_known_by_what_its_driver_calls_it():
    assert {hardware: known(hardware) for hardware in KNOWN} == KNOWN
