"""The kernels on one GPU, against what a plain copy reaches in the same run. Not run yet.

    pytest tests/benchmarks/test_bench_kernels.py -m gpu --benchmark-only -s

Rates count bytes read and written: a copy, a gather and a slot's first write pass over memory twice, an atomic sum
three times, a total of W slots W + 1 times.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt")

from odc_engine.probes.kernels import fastest  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
MB = 1 << 20
DEVICES = 4  # arenas of one GPU's memory, so this is about the kernels and not about links
BOUND = 0.85  # of the copy, for gathers and slots
PASSES = {"copy": 2, "gather": 2, "gather bf16": 2, "write": 2, "write on top": 3, "add": 3, "total": DEVICES + 1}


def launches():
    from odc_engine.kernels.transfers import USUAL, Launch

    return {
        "usual": USUAL,
        **{f"{b} x {p} x {w}": Launch(b, p, w) for b in (2048, 4096, 8192) for p in (132, 264, 528) for w in (4, 8)},
    }


def moves(size, launch):
    """Everything that moves `size` bytes of fp32 (half of it in bf16)."""
    from odc_engine.kernels import transfers

    n = size // 4 // DEVICES
    whole, spare = torch.randn(2, DEVICES * n, device="cuda")
    half = spare.bfloat16()
    arenas = list(torch.zeros(DEVICES, n, device="cuda"))
    slots = torch.randn(DEVICES, n, device="cuda").view(-1)
    table = transfers.table([arena.data_ptr() for arena in arenas], "cuda")
    place = transfers.Shards(table, 0, 0, n)
    return {
        "copy": lambda: spare.copy_(whole),
        "gather": lambda: transfers.gather(place, spare, torch.float32, launch),
        "gather bf16": lambda: transfers.gather(place, half, torch.bfloat16, launch),
        "write": lambda: transfers.write(place, whole, first=True, launch=launch),
        "write on top": lambda: transfers.write(place, whole, first=False, launch=launch),
        "add": lambda: transfers.add(place, whole, launch),
        "total": lambda: transfers.total(slots, DEVICES, n, spare[:n], launch),
    }


def rates(size, launch) -> dict[str, float]:
    """Bytes a second of each."""
    moved = {"gather bf16": size // 2, "total": size // DEVICES}
    return {name: PASSES[name] * moved.get(name, size) / fastest(m) for name, m in moves(size, launch).items()}


@pytest.mark.parametrize("size", [16 * MB, 64 * MB, 256 * MB, 1024 * MB], ids=lambda size: f"{size // MB} MB")
def test_against_a_copy(benchmark, size):
    """Gathers and slots at 85 % of the copy's rate; atomic sums are told, with their distance."""
    found: dict[str, dict[str, float]] = {}
    benchmark.pedantic(lambda: found.update({name: rates(size, launch) for name, launch in launches().items()}))
    print(f"\n{size // MB} MB, {torch.cuda.get_device_name()}, GB/s and share of the copy")
    for name, each in found.items():
        share = {way: f"{rate / 1e9:.0f} ({rate / each['copy']:.0%})" for way, rate in each.items()}
        print(f"{name:<16}", share)
    usual = found["usual"]
    benchmark.extra_info |= {way: round(rate / usual["copy"], 3) for way, rate in usual.items()}
    for way in ("gather", "gather bf16", "write"):
        assert usual[way] >= BOUND * usual["copy"], f"{way}: {usual[way] / usual['copy']:.0%} of the copy"
