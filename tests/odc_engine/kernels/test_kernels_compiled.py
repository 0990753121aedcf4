"""The kernels compiled for sm_90, which needs no GPU: they become code, and it moves 16 bytes at a time."""

import re
from functools import cache

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from odc_engine.kernels import device
from odc_engine.kernels.transfers import USUAL

TYPES = {"table": "*i64", "offset": "i64", "stride": "i64", "slots": "*fp32", "n": "i32", "rank": "i32"}
TYPES |= {"counts": "*i32", "across": "i32", "half": "i64"}
COUNT = "ld.global.b32"  # of gradients in a slot
LOAD, STORE, ATOMIC = "ld.global.v4.b32", "st.global.v4.b32", "atom.global.sys.relaxed.add.v4.f32"
DENSE = ("*fp32", "*bf16")
VARIANTS = {
    **{f"gather {t} to {d}": ("gather", {"out": d}, {"dtype": t}) for t in ("fp32", "bf16") for d in DENSE},
    **{f"add {d}": ("add", {"gradients": d}, {}) for d in DENSE},
    **{f"write {d} first={f}": ("write", {"gradients": d}, {"first": f}) for d in DENSE for f in (True, False)},
    **{f"total of {w}": ("total", {"out": "*fp32"}, {"writers": w}) for w in (1, 4)},
    "merge of 4": ("merge", {"slots": "*u8"}, {"writers": 4}),
}


@cache
def compiled(name: str, *, whole_chunks: bool, capability: int = 90):
    """`whole_chunks`: a shard's elements are a multiple of 16, so that every part of a dense tensor is aligned."""
    kernel, types, constants = VARIANTS[name]
    function = getattr(device, kernel)
    if not hasattr(function, "params"):
        pytest.skip("kernels are interpreted in this process (TRITON_INTERPRET)")
    constants = {"block": USUAL.block, **constants}
    if "dtype" in constants:
        constants["dtype"] = {"fp32": triton.language.float32, "bf16": triton.language.bfloat16}[constants["dtype"]]
    signature = {p: "constexpr" if p in constants else {**TYPES, "devices": "i32", **types}[p] for p in arguments(name)}
    aligned = [p for p, kind in signature.items() if kind.startswith("*") or p in ("offset", "stride", "half")]
    aligned += ["n"] if whole_chunks else []
    source = ASTSource(
        function,
        signature,
        {(arguments(name).index(p),): value for p, value in constants.items()},
        {(arguments(name).index(p),): [["tt.divisibility", 16]] for p in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": USUAL.warps})


def arguments(name: str) -> list[str]:
    return getattr(device, VARIANTS[name][0]).arg_names


@pytest.fixture(autouse=True, scope="module")
def fresh(tmp_path_factory):
    """Compile anew: a cache could hold what another version made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def instructions(name: str, *, whole_chunks: bool) -> list[str]:
    ptx = compiled(name, whole_chunks=whole_chunks).asm["ptx"]
    return re.findall(r"\b((?:ld|st|atom|red)\.global\.[.\w]+)", ptx)


def expected(name: str) -> set[str]:
    kernel = VARIANTS[name][0]
    return {LOAD, ATOMIC if kernel == "add" else STORE} | ({COUNT} if kernel == "merge" else set())


def test_a_pause_looks_at_the_clock_again_and_again():
    """Nothing comes of it, and yet no compiler may leave it out."""
    from odc_engine.kernels.pause import pause

    if not hasattr(pause, "params"):
        pytest.skip("kernels are interpreted in this process (TRITON_INTERPRET)")
    made = triton.compile(ASTSource(pause, {"nanoseconds": "i64"}), target=GPUTarget("cuda", 90, 32))
    assert made.asm["ptx"].count("%globaltimer") >= 2
    assert re.search(r"bra", made.asm["ptx"])
    assert made.asm["cubin"][:4] == b"\x7fELF"


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kernel_becomes_code_for_a_gpu_that_is_not_here(name):
    made = compiled(name, whole_chunks=True)
    assert made.asm["cubin"][:4] == b"\x7fELF"
    assert len(made.asm["cubin"]) > 1000
    assert ".target sm_90" in made.asm["ptx"]


@pytest.mark.parametrize("capability", [80, 100])
@pytest.mark.parametrize("name", ["gather bf16 to *fp32", "add *bf16", "write *bf16 first=False", "merge of 4"])
def test_other_generations_get_code_too(name, capability):
    made = compiled(name, whole_chunks=True, capability=capability)
    assert made.asm["cubin"][:4] == b"\x7fELF"
    assert f".target sm_{capability}" in made.asm["ptx"]


@pytest.mark.parametrize("name", VARIANTS)
def test_sixteen_bytes_at_a_time(name):
    """Nothing else but the table's addresses is loaded by itself, where a shard's elements are a multiple of 16."""
    assert set(instructions(name, whole_chunks=True)) - {"ld.global.b64"} == expected(name)


@pytest.mark.parametrize("name", VARIANTS)
def test_arenas_are_read_and_written_sixteen_bytes_at_a_time_even_where_a_shard_ends_anywhere(name):
    """The dense tensor's parts begin anywhere then, and the last chunk has a mask. All other accesses stay wide."""
    wide = {i for i in instructions(name, whole_chunks=False) if ".v4." in i}
    in_arenas = {"gather": {LOAD}, "add": {ATOMIC}, "write": {STORE}, "total": {LOAD, STORE}, "merge": {LOAD, STORE}}
    assert wide >= in_arenas[VARIANTS[name][0]]


def test_meetings_are_acquired_and_released_in_the_whole_system():
    pointers = {"table": "*i64", "missing": "*i32"}
    numbers = {"offset": "i64", "rank": "i32", "devices": "i32", "count": "i32", "tries": "i32"}
    signature = {p: (pointers | numbers)[p] for p in device.meet.arg_names}
    ptx = triton.compile(ASTSource(device.meet, signature), target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    told, seen = "atom.global.sys.release.exch.b32", "ld.global.sys.acquire.b32"
    assert set(re.findall(r"\b((?:atom|ld)\.global\.sys\S+)", ptx)) == {told, seen}


def test_a_program_can_look_at_which_sm_it_runs():
    from odc_engine.kernels import where

    made = triton.compile(ASTSource(where.sms, {"out": "*i32"}), target=GPUTarget("cuda", 90, 32))
    assert "%smid" in made.asm["ptx"]


@pytest.mark.parametrize("name", ["add *fp32", "add *bf16"])
def test_nothing_comes_back_from_an_atomic(name):
    """ptxas turns them into reductions: a round trip each would wait for the other GPU."""
    sass = compiled(name, whole_chunks=True).asm["sass"]
    assert re.search(r"\bREDG?\.E\.ADD\.F32x4\S*\.SYS\b", sass)
    assert not re.search(r"\bATOM", sass)
