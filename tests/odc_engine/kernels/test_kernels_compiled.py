"""The kernels compiled for three generations of GPUs, which needs none: as launches compile them, whose types and
constants are Triton's own finding. They become code, it moves 16 bytes at a time, and no register is spilled."""

import re
import subprocess
from collections import Counter
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
import torch
import triton
from fake_gpu import fake_gpu
from meta_arena import META, kernels, minibatch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from odc_engine.kernels import device, transfers
from odc_engine.kernels.transfers import USUAL
from odc_engine.memory.arena import UnitShape

INTERPRETED = "kernels are interpreted in this process (TRITON_INTERPRET)"
pytestmark = [pytest.mark.skipif(not hasattr(device.gather, "params"), reason=INTERPRETED), pytest.mark.by_default(8)]
GENERATIONS = 80, 90, pytest.param(100, marks=pytest.mark.slow)
DEVICES, WHOLE, ODD = 4, 1 << 20, (1 << 20) + 37
DENSE = {"fp32": torch.float32, "bf16": torch.bfloat16}
SIZES = {"fp32": 4, "bf16": 2}
RESIDENT = {"total": 4}  # programs that an SM shall hold at once, of what runs alone; of all others one
REGISTERS = 1 << 16  # of an SM


def meta(count, dtype):
    return torch.empty(count, dtype=dtype, device=META)


def shards(n):
    return transfers.Shards(transfers.table([0] * DEVICES, META), 1, 0, n)


def add_up(writers, n):
    transfers.total(meta(writers * -(-n // 16) * 16, torch.float32), writers, n, meta(n, torch.float32))


def push(n, dense, **how):
    (transfers.write if how else transfers.add)(shards(n), meta(DEVICES * n, DENSE[dense]), **how)


def gather(n, published, dense):
    transfers.gather(shards(n), meta(DEVICES * n, DENSE[dense]), DENSE[published])


# What launches it, of so many elements; bytes of each element that it loads and stores; and elements that it adds.
LAUNCHES = {
    **{f"gather {t} to {d}": (gather, {"published": t, "dense": d}, SIZES[t], SIZES[d]) for t in DENSE for d in DENSE},
    **{f"add {d}": (push, {"dense": d}, SIZES[d], 0) for d in DENSE},
    **{f"write {d} first": (push, {"dense": d, "first": True}, SIZES[d], 4) for d in DENSE},
    **{f"write {d} on top": (push, {"dense": d, "first": False}, SIZES[d] + 4, 4) for d in DENSE},
    **{f"total of {w}": (add_up, {"writers": w}, 4 * w, 4) for w in (1, 4, 16)},
}
ADDS = [name for name in LAUNCHES if name.startswith("add")]


@cache
def compiled(name: str, *, n: int, capability: int = 90):
    """The code of the one kernel that a call launches, and the launch."""
    launch, how, *_ = LAUNCHES[name]
    with fake_gpu(*kernels(), capability=capability) as gpu:
        launch(n=n, **how)
        [found] = gpu.launches
        return gpu.code(found), found


@pytest.fixture(autouse=True, scope="module")
def fresh(tmp_path_factory):
    """Compile anew: a cache could hold what another version made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def bytes_of(code, kind: str) -> dict[int, int]:
    """How many of these instructions, on memory of all, there are of each width in bytes."""
    found: Counter[int] = Counter()
    for name in re.findall(rf"\b{kind}\.global\.[.\w]+", code["ptx"]):
        vector, bits = re.search(r"(?:\.v(\d))?\.[bf](\d+)$", name).groups()
        found[int(vector or 1) * int(bits) // 8] += 1
    return dict(found)


def resources(code, folder: Path) -> tuple[int, int, int]:
    """Registers of a thread, and bytes of stack and of local memory."""
    (folder / "cubin").write_bytes(code["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    command = [str(tool), "--dump-resource-usage", str(folder / "cubin")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return tuple(int(re.search(rf"\b{what}:(\d+)", told)[1]) for what in ("REG", "STACK", "LOCAL"))


@pytest.mark.parametrize("capability", GENERATIONS)
@pytest.mark.parametrize("name", LAUNCHES)
def test_sixteen_bytes_are_moved_at_a_time_none_of_them_twice_and_no_register_is_spilled(name, capability, tmp_path):
    """Nothing else but addresses and counts is loaded by itself, where a shard's elements are a multiple of 16. There
    are two paths, of whole chunks and of the last one, and `add` has two chunks in each. Where a shard ends anywhere
    the dense tensor's parts begin anywhere, and the last chunk has a mask: accesses to arenas stay wide."""
    *_, loaded, stored = LAUNCHES[name]
    code, launch = compiled(name, n=WHOLE, capability=capability)
    assert f".target sm_{capability}" in code["ptx"]
    once = (4 if name in ADDS else 2) * USUAL.block // (32 * launch.warps)  # elements of a thread
    loads = bytes_of(code, "ld")
    assert loads.pop(16) * 16 == once * loaded
    assert set(loads) <= {8, 4}  # addresses from tables, and counts
    assert sum(loads.values()) <= 2 * 16
    assert bytes_of(code, "st") == ({16: once * stored // 16} if stored else {})
    width = 16 if capability >= 90 else 4
    assert bytes_of(code, "atom") == ({width: once * 4 // width} if name in ADDS else {})
    kind = {"gather": "ld", "add": "atom", "write": "st", "total": "ld"}[name.split()[0]]
    odd, _ = compiled(name, n=ODD, capability=capability)
    assert (width if name in ADDS else 16) in bytes_of(odd, kind)
    assert [resources(each, tmp_path)[1:] for each in (code, odd)] == [(0, 0)] * 2


@pytest.mark.parametrize("capability", GENERATIONS)
@pytest.mark.parametrize("name", ADDS)
def test_two_chunks_are_loaded_before_either_is_added(name, capability):
    """On whichever path. No load goes ahead of an addition by itself, as both could be of the same place. On an A100,
    where an instruction adds one number, 32 numbers of a warp are 128 bytes in a row; from sm_90 on each thread adds
    four. ptxas turns atomics into reductions: a round trip each would wait for the other GPU."""
    code, each = compiled(name, n=WHOLE, capability=capability)[0], 4 if capability >= 90 else 1
    order = re.findall(r"\b(LDG\.E\.128|REDG?)\b", code["sass"])
    loads = 2 * USUAL.block * LAUNCHES[name][2] // 16 // (32 * USUAL.warps)
    adds = 2 * USUAL.block // each // (32 * USUAL.warps)
    assert [(kind[:3], len(list(same))) for kind, same in groupby(order)] == 2 * [("LDG", loads), ("RED", adds)]
    assert re.search(rf"\bREDG?\.E\.ADD\.{'F32x4' if each == 4 else 'F32'}\b\S*\.SYS\b", code["sass"])
    assert not re.search(r"\bATOM", code["sass"])
    layouts = dict(
        re.findall(r"^(#blocked\d*) = #ttg\.blocked<\{sizePerThread = \[(\d+)\]", code["ttgir"], re.MULTILINE)
    )
    used = re.findall(r"tt\.atomic_rmw .*: \(tensor<\d+x!tt\.ptr<f32>, (#blocked\d*)>", code["ttgir"])
    assert [int(layouts[layout]) for layout in used] == [each] * 4


@pytest.mark.parametrize("capability", GENERATIONS)
def test_an_sm_holds_as_many_programs_as_launches_mean(capability, tmp_path):
    """Four at once of what runs alone, and one of what runs beside matrix products: of all that an arena launches, of
    units of any size."""
    units = [UnitShape(str(n), n, n, torch.bfloat16) for n in (WHOLE, ODD, 1)]
    with fake_gpu(*kernels(), capability=capability) as gpu:
        for accumulate, per_node in (("locked", None), ("slots", None), ("slots", 2)):
            minibatch(units, 1, 4, accumulate, per_node)
        every = {launch.source: launch for launch in gpu.launches}.values()
        assert {launch.name for launch in every} == {"gather", "add", "write", "total"}
        for launch in every:
            registers, *beside = resources(gpu.code(launch), tmp_path)
            assert beside == [0, 0]
            assert registers * 32 * launch.warps * RESIDENT.get(launch.name, 1) <= REGISTERS, launch.arguments


def test_a_pause_looks_at_the_clock_again_and_again():
    """Nothing comes of it, and yet no compiler may leave it out."""
    from odc_engine.kernels.pause import pause

    made = triton.compile(ASTSource(pause, {"nanoseconds": "i64"}), target=GPUTarget("cuda", 90, 32))
    assert made.asm["ptx"].count("%globaltimer") >= 2
    assert re.search(r"bra", made.asm["ptx"])
    assert made.asm["cubin"][:4] == b"\x7fELF"


def test_meetings_are_acquired_and_released_in_the_whole_system():
    flags, missing = shards(DEVICES), meta(DEVICES, torch.int32)
    with fake_gpu(*kernels()) as gpu:
        transfers.meet(flags, 7, 1 << 40, missing)
        ptx = gpu.code(gpu.launches[0])["ptx"]
    told, seen = "atom.global.sys.release.exch.b32", "ld.global.sys.acquire.b32"
    assert set(re.findall(r"\b((?:atom|ld)\.global\.sys\S+)", ptx)) == {told, seen}
