"""Profiler traces become a profile. The traces are synthetic, in the form in which torch.profiler exports them."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line import read_or_refused
from strategies import mutated

from odcsim import catalog, profile
from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.fitting import kineto
from odcsim.fitting.events import is_collective, kind_of

MODEL = catalog.model("r1-distill-qwen-1.5b")
CONSTANT, LINEAR, QUADRATIC = 0.05, 8e-5, 2e-9
LAYER, ROOT = 100_000_000, 500_000_000  # bytes
LATENCY, PER_BYTE = 1e-4, 5e-12


def kernel(name: str, begin: float, seconds: float, **args: object) -> dict:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 1e6 * begin, "dur": 1e6 * seconds, "args": args}


def span(name: str, begin: float, end: float, cat: str = "gpu_user_annotation") -> dict:
    return {"ph": "X", "cat": cat, "name": name, "ts": 1e6 * begin, "dur": 1e6 * (end - begin)}


def collective(name: str, size: int, begin: float, wait: float) -> dict:
    args = {"Collective name": name, "In msg nelems": size // 16, "Out msg nelems": size // 2, "dtype": "BFloat16"}
    seconds = LATENCY + PER_BYTE * size + wait
    return kernel("ncclDevKernel_AllGather_RING_LL(x)", begin, seconds, **args, **{"Group size": 8})


def compute_seconds(microbatches) -> float:
    every = np.array([n for m in microbatches for n in m])
    return CONSTANT * len(microbatches) + LINEAR * every.sum() + QUADRATIC * float(MODEL.squares(every).sum())


def traced(held: dict[int, list[tuple[int, ...]]], rank: int = 0, waits=(0.0, 0.3, 0.0, 0.2, 0.1)) -> dict:
    """Per step: compute in three kernels, two of them at once, with collectives under it and an optimizer after it."""
    events: list[dict] = [{"ph": "M", "name": "process_name", "args": {}}]
    now = 3.0
    for step, microbatches in held.items():
        seconds, begin = compute_seconds(microbatches), now
        events.append(span(f"ProfilerStep#{step}", begin - 2.9, begin + 0.1, "user_annotation"))  # the host runs ahead
        events.append(kernel("ampere_gemm", begin, 0.6 * seconds))
        events.append(kernel("flash_fwd", begin + 0.5 * seconds, 0.1 * seconds))
        events.append(kernel("flash_bwd", begin + 0.6 * seconds + 0.2, 0.4 * seconds))  # the host was late
        for i, wait in enumerate(waits):
            events.append(collective("_allgather_base", LAYER, begin + i * 0.01, wait))
            events.append(collective("_reduce_scatter_base", 2 * LAYER, begin + i * 0.01, wait))
        events.append(collective("_allgather_base", ROOT, begin, 0.0))
        events.append(kernel("ncclDevKernel_AllReduce(x)", begin, 0.01, **{"Collective name": "allreduce"}))
        end = begin + seconds + 0.2
        events.append(kernel("multi_tensor_apply_kernel", end, 0.03))
        events.append(span("Optimizer.step#AdamW.step", end, end + 0.03))
        now = end + 0.05
        events.append(span(f"ProfilerStep#{step}", begin, now))
        now += 0.5
    return {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 8}}


def drawn(steps: int, seed: int) -> dict[int, list[tuple[int, ...]]]:
    rng = np.random.default_rng(seed)
    return {
        n: [tuple(rng.integers(100, 30000, rng.integers(1, 6)).tolist()) for _ in range(rng.integers(1, 4))]
        for n in range(7, 7 + steps)
    }


@pytest.fixture
def files(tmp_path):
    """Two devices' traces of four steps, one of them packed, and what the steps held."""
    held = [drawn(4, rank) for rank in (0, 1)]
    (tmp_path / "a.json").write_text(json.dumps(traced(held[0], 0)))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(json.dumps(traced(held[1], 1)).encode()))
    rows = [f"{d},{n},{';'.join(map(str, m))}" for d, h in enumerate(held) for n, ms in h.items() for m in ms]
    (tmp_path / "l.csv").write_text("\n".join(["device,step,lengths", *rows, "0,99,5"]))
    return tmp_path


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "t.json"

    def written(content) -> kineto.DeviceTrace:
        path.write_text(json.dumps(content))
        return kineto.read_trace(path)

    return written


def test_compute_is_what_kernels_ran_without_collectives_optimizer_and_gaps(read):
    held = drawn(3, 5)
    trace = read(traced(held, rank=6))
    assert (trace.device, trace.devices) == (6, 8)
    assert trace.steps == pytest.approx({n: compute_seconds(m) for n, m in held.items()})
    assert trace.optimizer == pytest.approx((0.03,) * 3)
    assert {t[:3] for t in trace.transfers} == {("all-gather", 8, LAYER), ("reduce-scatter", 8, 2 * LAYER)} | {
        ("all-gather", 8, ROOT)
    }


def test_the_profile_gives_the_steps_back(files, capsys):
    """The command's, too, which needs lengths."""
    paths = [files / name for name in ("a.json", "b.json.gz")]
    found = kineto.fit_traces([*map(kineto.read_trace, paths)], files / "l.csv", MODEL, "a100")
    assert found.good
    p, layers = found.profile, MODEL.layers
    assert p.microbatch == pytest.approx(CONSTANT, rel=1e-6)
    assert layers * (p.forward.linear + p.backward.linear) == pytest.approx(LINEAR)
    assert layers * (p.forward.quadratic + p.backward.quadratic) == pytest.approx(QUADRATIC)
    assert not p.node_transfers_included
    # Of all kernels of a size the ones that waited least; reduce-scatters came in one size, which fits no line.
    gather = p.timing("all-gather", 8)
    assert (gather.constant, gather.per_byte) == pytest.approx((LATENCY, PER_BYTE))
    assert p.timing("reduce-scatter", 8) is None
    assert p.timing("optimizer", 8).constant == pytest.approx(0.03)
    words = ["fit", *map(str, paths), "--model", MODEL.name, "--gpu", "a100", "-o", str(files / "p.json")]
    assert main(words) == 2
    assert not (files / "p.json").exists()
    assert main([*words, "--lengths", str(files / "l.csv")]) == 0
    assert profile.read(files / "p.json") == p
    capsys.readouterr()


TABLES = [
    ("device,step,lengths\n0,7,5\n", 2),  # lacks a step
    ("step,lengths\n7,5\n8,5\n9,5\n10,5\n", 2),  # needs to say the device
    ("step,lengths\n-7,5\n", 1), ("device,step,lengths\n0,x,5\n", 1),
]  # fmt: skip


def test_lengths_that_do_not_fit_and_what_is_no_trace_of_a_gpu_are_refused(files, read):
    traces = [kineto.read_trace(files / name) for name in ("a.json", "b.json.gz")]
    for table, ranks in TABLES:
        (files / "s.csv").write_text(table)
        with pytest.raises(InputError):
            kineto.fit_traces(traces[:ranks], files / "s.csv", MODEL, "a100")
    for events in ([], [kernel("gemm", 0, 1)], [kernel("gemm", 0, 1), span("ProfilerStep#x", 0, 1)]):
        with pytest.raises(InputError):
            read({"traceEvents": events})
    with pytest.raises(InputError):
        read([])


@settings(max_examples=60)
@given(data=st.data())
def test_changed_traces_are_refused_or_read(read, data):
    with read_or_refused():
        assert read(data.draw(mutated(traced({1: [(5,)]}, waits=(0.1,))))).device >= 0


KERNELS = {
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all-gather",
    "void ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)": "all-reduce",
    "rccl_main_kernel": "",
    "mscclKernel_Sum_half_LL_false(ncclDevComm*)": "",
    "void mscclpp::allreduce7<__half>(void*)": "all-reduce",
    "void at::native::one_shot_all_reduce_kernel<c10::BFloat16>(...)": "all-reduce",
    "two_shot_all_reduce_kernel_inplace": "all-reduce",
    "multimem_all_gather_kernel": "all-gather",
}
COMPUTE = "void at::native::reduce_kernel<512, 1>(...)/sm90_xmma_gemm_bf16/vectorized_gather_kernel/Memcpy HtoD"


def test_kernels_of_collectives_are_told_from_those_that_compute():
    assert {name: kind_of(name) for name in KERNELS if is_collective(name)} == KERNELS
    assert not any(map(is_collective, COMPUTE.split("/")))
