"""Models and GPUs of the catalogue, against what others published of them, and those of a file."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest

from odcsim import catalog
from odcsim.catalog import fits
from odcsim.catalog.estimates.rates import FILE, STARTS, families, family_of, figures, rates, spreads
from odcsim.cluster import GPU
from odcsim.decide.setting import cost_of
from odcsim.errors import InputError
from odcsim.recipe import CHOICES, Kernels, Recipe
from odcsim.say.setting_words import trust

# Published or recomputed elsewhere: parameters and active parameters in 10^9, bf16 megabytes of one layer, and the
# length at which causal attention costs as much as the matmuls, in thousands (0 where windows make it meaningless).
PUBLISHED = {
    "qwen2.5-0.5b": (0.49, 0.49, 30, 17), "qwen2.5-1.5b": (1.54, 1.54, 94, 30),
    "r1-distill-qwen-1.5b": (1.78, 1.78, 94, 30), "qwen2.5-3b": (3.09, 3.09, 154, 38),
    "qwen2.5-7b": (7.62, 7.62, 466, 65), "qwen2.5-14b": (14.77, 14.77, 551, 54),
    "qwen2.5-32b": (32.76, 32.76, 975, 95), "qwen2.5-72b": (72.71, 72.71, 1755, 107),
    "qwen3-0.6b": (0.60, 0.60, 31, 8), "qwen3-1.7b": (1.72, 1.72, 101, 25), "qwen3-4b": (4.02, 4.02, 202, 25),
    "qwen3-8b": (8.19, 8.19, 386, 47), "qwen3-14b": (14.77, 14.77, 661, 65), "qwen3-32b": (32.76, 32.76, 975, 60),
    "qwen3-30b-a3b": (30.5, 3.4, 1246, 14), "qwen3-235b-a22b": (235.1, 22.2, 4976, 27),
    "llama-3.2-1b": (1.24, 1.24, 122, 30), "llama-3.2-3b": (3.21, 3.21, 201, 33),
    "llama-3.1-8b": (8.03, 8.03, 436, 53), "llama-3.1-70b": (70.55, 70.55, 1711, 104),
    "llama-3.1-405b": (405.85, 405.85, 6375, 195), "gemma-3-1b": (1.00, 1.00, 54, 0),
    "gemma-3-4b": (3.88, 3.88, 189, 0), "gemma-3-12b": (11.77, 11.77, 448, 0), "gemma-3-27b": (27.01, 27.01, 826, 0),
    "mistral-7b-v0.3": (7.25, 7.25, 436, 53), "mistral-small-24b": (23.57, 23.57, 1112, 136),
    "mixtral-8x7b": (46.7, 12.9, 2903, 96), "gpt-oss-20b": (20.9, 4.2, 1646, 0), "gpt-oss-120b": (116.8, 5.75, 6426, 0),
    "gemma-2-2b": (2.61, 2.61, 156, 0), "gemma-2-9b": (9.24, 9.24, 396, 0), "gemma-2-27b": (27.23, 27.23, 1132, 0),
    "phi-3.5-mini": (3.82, 3.82, 227, 37), "phi-3-medium-128k": (13.96, 13.96, 682, 67),
    "phi-4": (14.66, 14.66, 682, 67), "phi-4-mini": (3.84, 3.84, 201, 33), "glm-4-9b-0414": (9.40, 9.40, 408, 50),
    "glm-4-32b-0414": (32.57, 32.57, 1007, 82),
    "olmo-2-0425-1b": (1.48, 1.48, 134, 33), "olmo-2-1124-7b": (7.30, 7.30, 405, 49),
    "olmo-2-1124-13b": (13.72, 13.72, 634, 62), "olmo-2-0325-32b": (32.23, 32.23, 975, 95),
    "olmo-3-1025-7b": (7.30, 7.30, 405, 0), "olmo-3-1125-32b": (32.23, 32.23, 975, 0),
    "smollm3-3b": (3.08, 3.08, 156, 38), "seed-oss-36b": (36.15, 36.15, 1080, 53), "command-r7b": (8.03, 8.03, 436, 0),
    "command-a": (111.06, 111.06, 3372, 0),
    "llama-4-scout-17b-16e": (107.8, 17.2, 4404, 0), "llama-4-maverick-17b-128e": (400.7, 17.2, 16610, 0),
}  # fmt: skip
EXACT = {  # the sums that the published checkpoints' index files state
    "qwen2.5-7b": 7_615_616_512, "llama-3.1-8b": 8_030_261_248, "gemma-2-9b": 9_241_705_984, "phi-4": 14_659_507_200,
    "glm-4-9b-0414": 9_400_279_040, "olmo-3-1025-7b": 7_298_011_136, "smollm3-3b": 3_075_098_624,
    "seed-oss-36b": 36_151_104_512, "command-r7b": 8_028_033_024, "r1-distill-qwen-7b": 7_615_616_512,
}  # fmt: skip
HUB = {
    "Qwen/Qwen3-8B": "qwen3-8b", "qwen/QWEN3-8b": "qwen3-8b", "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "google/gemma-2-9b-it": "gemma-2-9b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "r1-distill-qwen-7b",
    "CohereLabs/c4ai-command-r7b-12-2024": "command-r7b",
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_totals(name):
    total, active, megabytes, even = PUBLISHED[name]
    m = catalog.model(name)
    digits = 0.051 if active < total else 0.0051  # mixtures are published to one decimal
    assert (m.parameters / 1e9, m.active_parameters / 1e9) == pytest.approx((total, active), rel=0, abs=digits)
    assert m.layer_bytes() / 1e6 == pytest.approx(megabytes, abs=0.51)
    assert not even or m.even_length / 1e3 == pytest.approx(even, abs=0.55)


def test_every_model_loads_under_its_own_name_with_every_bias_and_norm_counted():
    assert {name: catalog.model(name).parameters for name in EXACT} == EXACT
    names = catalog.model_names()
    assert len(names) == len(set(names))
    assert set(PUBLISHED) | {"tiny", "nano", "r1-distill-qwen-7b", "r1-distill-llama-70b"} <= set(names)
    for name in names:
        m = catalog.model(name.upper())
        assert m.name == name == name.lower()
        assert 0 <= m.window_layers < m.layers
        assert catalog.model_source(name)
    gemma, oss = catalog.model("gemma-3-1b"), catalog.model("gpt-oss-20b")  # which mix windows with full layers
    assert (gemma.window, gemma.window_layers, gemma.full_layers) == (512, 22, 4)
    assert (oss.window, oss.window_layers, oss.full_layers) == (128, 12, 12)


def test_a_models_id_on_its_hub_is_its_name_but_a_folder_comes_first(tmp_path, monkeypatch):
    for of in (catalog.model, catalog.model_source):
        assert [of(hub) for hub in HUB] == [of(name) for name in HUB.values()]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    with pytest.raises(InputError):
        catalog.model("Qwen/Qwen3-8B")


GEFORCE = ("rtx3090", "rtx4090", "rtx5090")  # which run over their datasheet's clock
# GB/s of 16 lanes by hand: 16 or 32 GT/s x 16 lanes x 128/130 of the code / 8 bits. GeForce cards have half of it.
FOURTH, FIFTH = (rate * 16 * 128 / 130 / 8 for rate in (16, 32))
SLOTS = {"a100-pcie": FOURTH, "rtx-a6000": FOURTH, "l40s": FOURTH, "l20": FOURTH, "l4": FOURTH, "h100-pcie": FIFTH,
         "rtx3090": FOURTH / 2, "rtx4090": FOURTH / 2, "rtx5090": FIFTH / 2}  # fmt: skip
# FLOP/s by hand: those of a streaming multiprocessor in a cycle, times how many there are, times the boost clock.
BY_CLOCK = {"rtx3090": 512 * 82 * 1.695e9, "rtx4090": 512 * 128 * 2.52e9, "rtx5090": 512 * 170 * 2.407e9,
            "rtx-a6000": 1024 * 84 * 1.8e9, "l4": 1024 * 58 * 2.04e9}  # fmt: skip


@pytest.mark.parametrize("name", SLOTS)
def test_cards_have_their_slots_links_and_the_flops_of_their_units(name):
    card = catalog.gpu(name)
    assert card.link_bandwidth == pytest.approx(SLOTS[name] * 1e9, rel=2e-3)
    assert card.peak_flops == pytest.approx(BY_CLOCK.get(name, card.peak_flops), rel=5e-3)
    rates_of = {figure.name: figure.kind for figure in catalog.gpu_figures(name)}
    assert (rates_of["link_gb_s"] == "assumed") == (name in GEFORCE)


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_a_file_to_edit_is_that_gpu_until_somebody_edits_it(name, tmp_path):
    file = tmp_path / "mine.toml"
    text = catalog.gpu_toml(name)
    file.write_text(text)
    assert catalog.gpu(str(file)) == replace(catalog.gpu(name), name="mine")
    file.write_text(text.replace("# ", ""))  # every line of it
    with pytest.raises(InputError):
        catalog.gpu(str(file))
    file.write_text(text.replace("\n# ", "\n"))
    assert {figure.kind for figure in catalog.gpu_figures(str(file))} == {"given"}
    assert catalog.gpu(str(file)) == replace(catalog.gpu(name), name="mine", assumed=())


def test_every_gpu_is_plausible_and_every_figure_has_its_source():
    names = "a100 a100-40gb h100 h200 b200 b300 gb200 gb300 l40s mi300x mi325x mi355x h100-pcie a100-pcie".split()
    names += "rtx-a6000 rtx3090 rtx4090 rtx5090 a800 h800 h20 l20 l4 ascend-910b".split()
    assert set(catalog.gpu_names()) == set(names)
    for name in names:
        g = catalog.gpu(name.upper())
        assert g.name == name
        assert 0.4 < g.matmul_flops / g.peak_flops < (1.2 if name in GEFORCE else 0.97)
        assert 24e9 <= g.memory_bytes < 310e9
        assert g.nic_bandwidth < g.link_bandwidth < g.memory_bandwidth
        for figure in catalog.gpu_figures(name):
            assert figure.kind in ("datasheet", "measured", "assumed")
            assert figure.source.title
            assert figure.source.as_of.startswith("20")
            assert figure.source.url.startswith("https://") or figure.kind == "assumed"
    a100, h100 = catalog.gpu("a100"), catalog.gpu("h100")  # figures that are known elsewhere
    assert a100.nic_bandwidth * a100.devices_per_node == 800e9 / 8  # the paper's network
    assert (a100.matmul_flops, a100.link_bandwidth, a100.memory_bytes) == (271e12, 300e9, 85.2e9)
    assert (h100.peak_flops, catalog.gpu("gb200").peak_flops) == (989e12, 2500e12)  # without sparsity
    assert h100.memory_bytes == pytest.approx(81559 * 2**20, rel=1e-3)  # as a device reports it, not its name's 80 GB


ALL = "peak_tflops = 400\nmatmul_tflops = 300.5\nmemory_gb = 96\nmemory_tb_s = 3\nlink_gb_s = 200\nnic_gbit_s = 100\n"
ALL += 'devices_per_node = 4\ntitle = "Acme G1"\n'


def test_a_gpu_of_ones_own_has_the_figures_of_its_file_and_the_rest_of_what_it_is_like(tmp_path):
    """A slower one takes longer, and a fit that was published for the one it is like is not taken for it."""
    file, name = tmp_path / "g1.toml", str(tmp_path / "g1.toml")
    file.write_text(ALL)
    assert catalog.gpu(name) == GPU("g1", 400e12, 300.5e12, 96e9, 3e12, 200e9, 12.5e9, 4, "cdna4")
    assert catalog.gpu_title(name) == "Acme G1"
    assert {(f.kind, f.source.title) for f in catalog.gpu_figures(name)} == {("given", name)}
    file.write_text('like = "A100"\nmatmul_tflops = 27.1')
    assert catalog.gpu(name) == replace(catalog.gpu("a100"), name="g1", matmul_flops=27.1e12)
    assert [f.kind for f in catalog.gpu_figures(name)].count("given") == 1
    slow, usual = (cost_of("r1-distill-qwen-7b", gpu, None, 8) for gpu in (name, "a100"))
    assert (slow.profile.fidelity, usual.profile.fidelity) == ("catalogue", "published fit")
    assert slow.sample_seconds(np.array([8192])) > 5 * usual.sample_seconds(np.array([8192]))
    slow = 'like = "l40s"\npeak_tflops = 121'  # whose matmuls would reach more than that
    for taken, text in (("H100.toml", ALL), ("odd.toml", "memory_gb"), ("slow.toml", slow)):  # a known name; no TOML
        (tmp_path / taken).write_text(text)
        with pytest.raises(InputError):
            catalog.gpu(str(tmp_path / taken))


ODD = ["", "x" * 10_000, "a\0b", "../nowhere/config.json", "/", ".", "y" * 300 + "/config.json"]
UNLIKE = {  # nothing is proposed that would be of another kind
    catalog.gpu: ["rtx4080", "v100", "a10", "l40", "gh200"],
    catalog.model: ["zamba2-7b", "Zyphra/Zamba2-7B", "mamba-2.8b", "☃", *ODD],
}


def test_unknown_names_are_refused_without_one_of_another_kind():
    for of, names in UNLIKE.items():
        for name in names:
            with pytest.raises(InputError) as caught:
                of(name)
            assert len(str(caught.value)) < 1000
            assert name in ODD or "did you mean" not in caught.value.fix


# What GPUs reach: every GPU has a family, every figure a kind and a source, none is out of reason.
CONTENT = tomllib.loads(FILE.read_text(encoding="utf-8"))
KINDS = {"fitted", "measured", "chosen", "assumed", "datasheet"}


def test_every_gpu_is_in_one_family_and_every_figure_says_where_it_is_from():
    listed = [gpu for row in CONTENT["families"].values() for gpu in row["gpus"]]
    assert sorted(listed) == sorted(catalog.gpu_names())
    assert {family_of(gpu) for gpu in catalog.gpu_names()} == set(families())
    assert family_of("somebodys-gpu") not in spreads()  # taken for the least known
    assert CHOICES["attention"].values == ("usual", *CONTENT["attention"])
    assert CHOICES["precision"].values == ("bf16", *CONTENT["precisions"])
    for row in CONTENT["attention"].values():
        assert set(row) <= set(CONTENT["families"])
        for *shares, kind, source in row.values():
            assert len(shares) == 4
            assert kind in KINDS
            assert source in CONTENT["sources"]
    assert set(spreads()) <= {*families(), *STARTS}
    assert all(0.03 < found.deviation < 0.5 and found.publishers > 0 for found in spreads().values())


@pytest.mark.parametrize("family", families())
def test_shares_are_shares(family):
    found, known = rates(family), figures(family)
    assert all(0.3 < share <= 1 for share in (found.matmul, found.moved))
    assert 0 <= found.copying < 0.5
    assert all(1 < of.faster <= 2 for of in found.precisions.values())
    assert found.usual in found.attention
    for kernel in found.attention.values():
        assert all(0 < share < 0.8 for share in (kernel.forward, kernel.backward))
        assert 0 < kernel.short_forward < 2000
    assert {"matmul", "moved"} <= set(known)
    assert all(kind in KINDS and source for _, kind, source in known.values())


# What answers say of where rates are from agrees with the kinds of all that these seconds are made from.
CASES = [
    (gpu, kernel, precision)
    for gpu in catalog.gpu_names()
    for kernel, rows in CONTENT["attention"].items()
    if family_of(gpu) in rows
    for precision in ("bf16", *rates(family_of(gpu)).precisions)
]


@pytest.mark.parametrize(("gpu", "kernel", "precision"), CASES)
def test_words_about_rates_agree_with_their_kinds(gpu, kernel, precision):
    row = CONTENT["families"][family_of(gpu)]
    used = ["matmul", "narrow", "moved", "copying"] + [precision] * (precision != "bf16")
    kinds = {CONTENT["attention"][kernel][family_of(gpu)][4], *(row[name][1] for name in used)}
    kinds |= {figure.kind for figure in catalog.gpu_figures(gpu) if figure.name == "matmul_tflops"} & {"assumed"}
    recipe = Recipe(kernels=Kernels(attention=kernel, precision=precision))
    profile = fits.estimate(catalog.model("qwen3-0.6b"), catalog.gpu(gpu), 8, recipe)
    for words in (profile.origin, trust("catalogue", profile)):
        assert ("in published runs" in words) == bool(kinds & {"fitted", "measured", "datasheet"}), words
        for kind in ("chosen", "assumed"):
            assert (kind in words) == (kind in kinds), words
