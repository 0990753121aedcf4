"""What runs on a GPU. A peer's arena is an address in a table, so the same code moves bytes between GPUs of a node,
between processes on one GPU, and (interpreted) between processes on a CPU.

Nothing is known of the alignment of an address that comes out of a table, and elements would be moved one by one.
Shards begin at multiples of 16 bytes, and `tl.multiple_of` says so. A mask has the same effect, so only the last chunk
of a shard has one.

Sums are fp32, and of what was fp32 before: Triton's interpreter would add bf16 as if it were integers. ptxas makes
reductions of the atomics, whose result nobody reads; a GPU flushes subnormal sums to zero there.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# An annotation here is one for Triton.

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

# Triton would compile anew for device 1 and for a 16th meeting, in the midst of a run, and code would be no better.
ANY = ["offset", "rank", "devices", "turns", "count", "tries"]


@triton.jit
def _shard(table, device, offset, dtype: tl.constexpr):
    """Where a shard begins in a device's arena."""
    address = tl.load(table + device) + offset
    return tl.multiple_of(address.to(tl.pointer_type(dtype)), 16)


@triton.jit
def _turn(turn, rank, devices, block: tl.constexpr):
    """Device and first element of a turn. All devices' first chunks come first, beginning with the own one, so that
    devices do not all ask the same one at once."""
    return (rank + turn % devices) % devices, (turn // devices).to(tl.int64) * block


@triton.jit
def _part(whole, device, n, start):
    """Where a device's elements stand in a tensor that has everybody's end to end."""
    return whole + (device.to(tl.int64) * n + start)


@triton.jit(do_not_specialize=ANY)
def gather(table, out, offset, n, rank, devices, turns, dtype: tl.constexpr, block: tl.constexpr):
    """Copy n elements of every device's arena to where they belong in `out`, in its dtype."""
    within = tl.arange(0, block)
    for turn in range(tl.program_id(0), turns, tl.num_programs(0)):
        device, start = _turn(turn, rank, devices, block)
        source = _shard(table, device, offset, dtype) + start + within
        target = _part(out, device, n, start) + within
        if start + block <= n:
            tl.store(target, tl.load(source).to(out.dtype.element_ty))
        else:
            left = within < n - start
            tl.store(target, tl.load(source, mask=left).to(out.dtype.element_ty), mask=left)


@triton.jit
def _pushed(table, gradients, offset, n, turn, rank, devices, block: tl.constexpr):
    """Where a turn's gradients stand, where they go, and how many of the shard are left from there on."""
    device, start = _turn(turn, rank, devices, block)
    return _part(gradients, device, n, start), _shard(table, device, offset, tl.float32) + start, n - start


@triton.jit
def _added(target, value, left, masked: tl.constexpr):
    """Before sm_90 an instruction adds one number alone, and neighbours of a warp shall add to neighbours in memory:
    four in a row for each thread, as they are loaded, would take four times as many pieces of it."""
    within = tl.arange(0, value.shape[0])
    if not cuda_capability_geq(9):
        within = tl.max_contiguous(within, 1)
    target += within
    if masked:
        tl.atomic_add(target, value.to(tl.float32), mask=within < left, sem="relaxed", scope="sys")
    else:
        tl.atomic_add(target, value.to(tl.float32), sem="relaxed", scope="sys")


@triton.jit(do_not_specialize=ANY)
def add(table, gradients, offset, n, rank, devices, turns, block: tl.constexpr):
    """Add each device's n gradients to the fp32 sum in its arena, while others do the same. Two turns at a time: both
    are loaded before the first is added, since no load goes ahead of an addition. A turn behind the last one has
    nothing left."""
    within, programs = tl.arange(0, block), tl.num_programs(0)
    for turn in range(tl.program_id(0), turns, programs + programs):
        source, target, left = _pushed(table, gradients, offset, n, turn, rank, devices, block)
        source2, target2, left2 = _pushed(table, gradients, offset, n, turn + programs, rank, devices, block)
        if (left >= block) & (left2 >= block):
            value, value2 = tl.load(source + within), tl.load(source2 + within)
            _added(target, value, left, False)
            _added(target2, value2, left2, False)
        else:
            value = tl.load(source + within, mask=within < left)
            value2 = tl.load(source2 + within, mask=within < left2)
            _added(target, value, left, True)
            _added(target2, value2, left2, True)


@triton.jit(do_not_specialize=ANY)
def write(table, gradients, offset, n, rank, devices, turns, first: tl.constexpr, block: tl.constexpr):
    """Put each device's n gradients into a slot of its arena that nobody else writes to: over what is there where they
    are the `first`, else on top of it."""
    within = tl.arange(0, block)
    for turn in range(tl.program_id(0), turns, tl.num_programs(0)):
        device, start = _turn(turn, rank, devices, block)
        source = _part(gradients, device, n, start) + within
        target = _shard(table, device, offset, tl.float32) + start + within
        if start + block <= n:
            value = tl.load(source).to(tl.float32)
            tl.store(target, value if first else tl.load(target) + value)
        else:
            left = within < n - start
            value = tl.load(source, mask=left).to(tl.float32)
            tl.store(target, value if first else tl.load(target, mask=left) + value, mask=left)


@triton.jit(do_not_specialize=["turns"])
def total(slots, out, stride, n, turns, writers: tl.constexpr, block: tl.constexpr):
    """Add up slots of n elements, `stride` elements apart, in the order of writers: the same bits in every run."""
    within = tl.arange(0, block)
    for turn in range(tl.program_id(0), turns, tl.num_programs(0)):
        start = tl.cast(turn, tl.int64) * block
        source = slots + start + within
        if start + block <= n:
            value = tl.load(source)
            for _ in tl.static_range(1, writers):
                source += stride
                value += tl.load(source)
            tl.store(out + start + within, value)
        else:
            left = within < n - start
            value = tl.load(source, mask=left)
            for _ in tl.static_range(1, writers):
                source += stride
                value += tl.load(source, mask=left)
            tl.store(out + start + within, value, mask=left)


@triton.jit(do_not_specialize=ANY)
def tell(table, offset, rank, devices, count):
    """Tell every device that this one has come for the count-th time. One program: flags are 32 bits, one for each
    device, in everybody's arena."""
    for peer in range(devices):
        tl.atomic_xchg(_shard(table, peer, offset, tl.int32) + rank, count, sem="release", scope="sys")


@triton.jit(do_not_specialize=ANY)
def wait(table, offset, rank, devices, count, tries, missing):
    """Wait until all devices have told that they came for the count-th time. Who has not after so many looks is noted
    in `missing`, and not looked for by those that wait later."""
    for peer in range(devices):
        flag = _shard(table, rank, offset, tl.int32) + peer
        seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
        left = tl.where(tl.load(missing + peer) == 0, tries, 0)
        while (seen < count) & (left > 0):
            seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
            left -= 1
        if seen < count:
            tl.store(missing + peer, 1)


@triton.jit(do_not_specialize=ANY)
def meet(table, offset, rank, devices, count, tries, missing):
    """Tell, and wait."""
    tell(table, offset, rank, devices, count)
    wait(table, offset, rank, devices, count, tries, missing)
