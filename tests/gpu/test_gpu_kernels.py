"""The kernels on tensors of this GPU: right bytes, rates beside a plain copy's, and what they cost a product beside
them."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import shard_laws
import torch

from odc_engine.doctor.selftest import kernels

pytestmark = [pytest.mark.gpu, pytest.mark.limit(25), pytest.mark.usefixtures("transfers")]
MB = 1 << 20
DEVICES = 4
ODD, SMALL = 10_007, 301  # elements of a shard, of which nothing is aligned
CASES = 40
WRITERS, SLOTS = 8, 5 << 29  # bytes of slots: the last ones begin behind 2 GiB, and behind 4 of twice as many
LONG, PER_ELEMENT = (1 << 29) + 37, 4 * (4 + 2 + 1)  # elements of each device's, and bytes with what is compared
FILLED, SMALL_ROOM = 0.8, 8 << 30  # of what is free; a CPU's is not touched
ROUNDS = 30
SIDE, SMALL_SIDE = 8192, 192  # of the matrices
GEMMS, MOVES = 6, 40


def test_kernels(device, cpu):
    """Do the Triton kernels move the right bytes?"""
    assert kernels(SMALL if cpu else ODD, device) == dict.fromkeys(("write", "gather", "add", "total"), True)


LAWS = {
    "gather": lambda of, case, _: shard_laws.check_gather(of, case),
    "add": lambda of, case, seed: shard_laws.check_add(of, case, seed % 4),
    "write": lambda of, case, seed: shard_laws.check_write(of, case, 1 + seed % 3),
    "total": lambda of, case, seed: shard_laws.check_total(of, case, [(1 + seed + i) % 4 for i in range(4)]),
}


@pytest.mark.parametrize("law", LAWS)
def test_drawn_cases(transfers, device, cpu, law):
    """Do they with odd sizes, places, launches and dtypes?"""
    sizes = (99, (64,), (1, 7)) if cpu else (20_000, (256, 4096), (1, 600))
    for seed in range(2 if cpu else CASES):
        case = shard_laws.drawn(seed, device, *sizes)
        print(case, flush=True)
        LAWS[law](transfers, case, seed)


@pytest.mark.usefixtures("gpu")
def test_many_streams(transfers):
    """Do streams that add at once lose nothing?"""
    shard_laws.check_streams(transfers)


@pytest.mark.usefixtures("gpu")
def test_rounding(transfers):
    """Is bf16 rounded to the nearest?"""
    shard_laws.check_rounding(transfers)


def test_large_units(transfers, device, cpu, note):
    """Do they where slots exceed 2 and 4 GiB, and elements 2^31?

    Where memory is short, as large as there is room for.
    """
    room = int(FILLED * (SMALL_ROOM if cpu else torch.cuda.mem_get_info()[0]))
    if room < SLOTS:
        pytest.skip(f"there is room for {room / 1e9:.1f} GB, and slots that pass 2 GiB take {SLOTS / 1e9:.1f}")
    for end in (SLOTS, 2 * SLOTS):
        if end <= room:
            shard_laws.check_far_apart(transfers, device, WRITERS, end // WRITERS)
            note(slots_end_at=end)
    elements = min(SMALL if cpu else LONG, room // PER_ELEMENT)
    shard_laws.check_long(transfers, device, elements)
    note(elements=elements)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_sanitizer(tool):
    """Do they stay within the memory that is theirs, by NVIDIA's checker?"""
    beside = Path("/usr/local/cuda/bin/compute-sanitizer")
    program = shutil.which("compute-sanitizer") or (str(beside) if beside.exists() else None)
    if program is None:
        pytest.skip("compute-sanitizer is not installed; it comes with CUDA's compiler")
    code = "from odc_engine.doctor.selftest import kernels; assert all(kernels(1003, 'cuda').values())"
    command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", code]
    # An allocator that hands out pieces of larger memory would hide what is read beside a tensor.
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    assert subprocess.run(command, env=env, check=False).returncode == 0


def parts_of(size, device):
    """Arenas of that many bytes together, a table of them, and a tensor of that size. A GPU moves zeros faster."""
    from odc_engine.kernels import transfers

    n = size // 4 // DEVICES
    arenas, whole = torch.randn(DEVICES, n, device=device), torch.randn(DEVICES * n, device=device)
    return arenas, transfers.Shards(transfers.table([a.data_ptr() for a in arenas], device), 0, 0, n), whole


@pytest.mark.limit(40)
@pytest.mark.usefixtures("gpu")
def test_rates(transfers, note):
    """How fast do they move bytes, beside a plain copy?"""
    from odc_engine.kernels import copies
    from odc_engine.places.streams import lasted

    for size in (256, 16, 64, 1, 1024):
        arenas, place, whole = parts_of(size * MB, "cuda")
        parts, spare = copies.Parts(list(arenas)), torch.empty_like(whole)
        moves = {  # an atomic sum passes over memory three times
            "copy": (2, lambda spare=spare, whole=whole: spare.copy_(whole)),
            "gather": (2, lambda parts=parts, spare=spare: parts.collect(spare)),
            "write": (2, lambda place=place, whole=whole: transfers.write(place, whole, first=True)),
            "add": (3, lambda place=place, whole=whole: transfers.add(place, whole)),
        }
        fastest = {name: min(lasted(move, 1) for _ in range(ROUNDS)) for name, (_, move) in moves.items()}
        note(**{f"{size} MB": {name: passes * size * MB / fastest[name] for name, (passes, _) in moves.items()}})
    note(copies=copies.counts())


def ends(streams, works):
    """Seconds from a common start until each stream has done its work so many times. A CPU does it in turn."""
    if streams[0] is None:
        start, found = time.perf_counter(), []
        for work, repeats in works:
            for _ in range(repeats):
                work()
            found.append(time.perf_counter() - start)
        return found
    from odc_engine.places.streams import HEAD_START, pause

    start, marks = torch.cuda.Event(enable_timing=True), []
    torch.cuda.synchronize()
    with torch.cuda.stream(streams[0]):
        # All is given during a pause: giving a kernel takes longer than a small one runs.
        pause(HEAD_START * sum(repeats for _, repeats in works))
        start.record()
    for stream, (work, repeats) in zip(streams, works, strict=True):
        stream.wait_event(start)
        with torch.cuda.stream(stream):
            for _ in range(repeats):
                work()
            marks.append(torch.cuda.Event(enable_timing=True))
            marks[-1].record()
    torch.cuda.synchronize()
    return [start.elapsed_time(mark) / 1000 for mark in marks]


@pytest.mark.limit(60)
def test_beside_a_product(transfers, device, cpu, note):
    """What do a matrix product and transfers cost each other, by SMs, copy engine and priority?"""
    from odc_engine.kernels import copies

    side, kind = (SMALL_SIDE, torch.float32) if cpu else (SIDE, torch.bfloat16)
    one, other = torch.randn(2, side, side, device=device, dtype=kind)
    out = torch.empty_like(one)
    arenas, place, spare = parts_of(MB if cpu else 256 * MB, device)
    parts = copies.Parts(list(arenas), elsewhere=range(DEVICES))  # as if of other GPUs, whose copies have the hint
    usual, same, high = [None] * 3 if cpu else [torch.cuda.Stream(priority=p) for p in (0, 0, -1)]

    def gemm():
        torch.mm(one, other, out=out)

    def best(*given):
        """Of each stream with its work, in the round that ended first."""
        streams, works = zip(*((stream, (work, repeats)) for stream, work, repeats in given), strict=True)
        return min((ends(streams, works) for _ in range(3)), key=max)

    [alone] = best((usual, gemm, GEMMS))
    note(gemms_alone=alone)
    ways = {"copy engine": lambda: parts.collect(spare)}
    for launch in () if cpu else (transfers.ALONE, transfers.USUAL):
        given = place, spare, torch.float32, launch
        ways[f"{launch.programs} programs"] = lambda given=given: transfers.gather(*given)
    for name, move in ways.items():
        [by_itself] = best((high, move, MOVES))
        found = {"moves_alone": by_itself}
        for priority, stream in (("same priority", same), ("higher priority", high)):
            gemms, moves = best((usual, gemm, GEMMS), (stream, move, MOVES))
            found[priority] = {"gemms": gemms / alone, "moves": moves / by_itself, "both": max(gemms, moves)}
        # One after the other would take the sum; side by side at no cost the longer of the two.
        both = found["higher priority"]["both"]
        found["hidden"] = (alone + by_itself - both) / min(alone, by_itself)
        note(**{name: found})
    note(copies=copies.counts(), one_batch=copies.batches())
