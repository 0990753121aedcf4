"""What `odc_engine doctor` says of variables of the environment, alone and together."""

import json
import os

import pytest
from fake_nvshmem import FakeNvshmem

from odc_engine import OnDemand
from odc_engine.backends.nvshmem import library as nvshmem_library
from odc_engine.backends.nvshmem.heap import GRANULE, check_heap, heap_size, taken
from odc_engine.backends.nvshmem.memory import NvshmemMemory
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.cli import main
from odc_engine.decoder.model import Decoder
from odc_engine.doctor import abilities as doctor
from odc_engine.doctor import environment, room
from odc_engine.doctor.environment import Facts
from odc_engine.fsdp.sharding import shard
from odcsim import catalog
from odcsim.errors import InputError
from odcsim.program import prefetch_named

KNOWN = ("NVSHMEM_", "NCCL_", "SLURM_", "GLOO_", "MASTER_", "LOCAL_", "CUDA_")
TASKS = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
ACROSS = TASKS | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def findings(env, gpus=8, arena=None, **known):
    found = environment.examine(Facts(env, gpus, arena, **known))
    assert len({f.name for f in found}) == len(found)
    return {f.name: f for f in found}


def test_each_known_one_is_told_with_its_value_and_those_of_libraries_too():
    assert findings({}) == findings({"HOME": "/root", "SLURM_CLUSTER_NAME": "ada"}) == {}
    for name in environment.MEANS:
        finding = findings({name: "17"})[name]
        assert "'17'" in finding.found
        assert bool(finding.advice) != finding.ok
    found = findings({"NVSHMEM_QP_DEPTH": "64", "NCCL_ALGO": "Ring"})
    assert len(found) == 2
    assert all(f.ok and environment.READ_BY_NONE in f.found for f in found.values())


CARDS = {"interfaces": ("lo", "eth0", "ib0")}
PROBLEMS = [
    ({"RANK": "0"}, {}, "RANK", "without WORLD_SIZE"),
    ({"WORLD_SIZE": "2"}, {}, "WORLD_SIZE", "without RANK"),
    (TORCHRUN | {"MASTER_ADDR": "localhost"}, {}, "MASTER_ADDR", "no other machine"),
    (ACROSS | {"GLOO_SOCKET_IFNAME": "lo"}, {}, "GLOO_SOCKET_IFNAME", "no other machine"),
    (ACROSS | {"NCCL_SOCKET_IFNAME": "lo"}, {}, "NCCL_SOCKET_IFNAME", "no other machine"),
    ({"NCCL_SOCKET_IFNAME": "eth7"}, CARDS, "NCCL_SOCKET_IFNAME", "no such interface here, but eth0, ib0, lo"),
    ({"NCCL_SOCKET_IFNAME": "=eth"}, CARDS, "NCCL_SOCKET_IFNAME", "no such interface"),
    ({"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "eth7"}, CARDS, "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "no such interface"),
    ({"GLOO_SOCKET_IFNAME": "eth"}, CARDS, "GLOO_SOCKET_IFNAME", "no such interface"),
    ({"GLOO_SOCKET_IFNAME": "eth0,eth1"}, CARDS, "GLOO_SOCKET_IFNAME", "no such interface"),
    (ACROSS, {"host": "127.0.1.1"}, "GLOO_SOCKET_IFNAME", "this machine's name means 127.0.1.1"),
    (ACROSS, {"host": "::1"}, "GLOO_SOCKET_IFNAME", "this machine's name means ::1"),
    (ACROSS, {"host": ""}, "GLOO_SOCKET_IFNAME", "this machine's name has no address"),
    ({"CUDA_VISIBLE_DEVICES": ""}, {"gpus": 0}, "CUDA_VISIBLE_DEVICES", "no GPU is left"),
    (TASKS | {"CUDA_VISIBLE_DEVICES": "0,1"}, {"gpus": 2}, "CUDA_VISIBLE_DEVICES", "4 devices share 2 GPUs"),
    ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, {}, "CUDA_DEVICE_MAX_CONNECTIONS", "queue behind compute"),
    ({"CUDA_LAUNCH_BLOCKING": "1"}, {}, "CUDA_LAUNCH_BLOCKING", "nothing overlaps"),
    ({"NVSHMEM_SYMMETRIC_SIZE": "256M"}, {"arena": 1 << 30}, "NVSHMEM_SYMMETRIC_SIZE", "too small for the model"),
    ({"NVSHMEM_SYMMETRIC_SIZE": "much"}, {}, "NVSHMEM_SYMMETRIC_SIZE", "is not a size"),
    ({"NVSHMEM_DISABLE_P2P": "1"}, {}, "NVSHMEM_DISABLE_P2P", "over a network"),
    (ACROSS | {"NVSHMEM_REMOTE_TRANSPORT": "none"}, {}, "NVSHMEM_REMOTE_TRANSPORT", "several machines"),
    ({"NVSHMEM_DEBUG": "INFO"}, {"gpus": 0}, "NVSHMEM_DEBUG", "ends the process"),
    ({"NCCL_P2P_DISABLE": "1"}, {}, "NCCL_P2P_DISABLE", "cuda_ipc fails"),
    ({"NCCL_IB_DISABLE": "1"}, {}, "NCCL_IB_DISABLE", "another NVSHMEM_REMOTE_TRANSPORT"),
]


@pytest.mark.parametrize(("env", "facts", "name", "told"), PROBLEMS)
def test_what_is_at_odds_is_named_with_the_way_out(env, facts, name, told):
    finding = findings(env, **facts)[name]
    assert not finding.ok
    assert told in finding.found
    assert finding.advice


HARMLESS = [
    ({"NCCL_SOCKET_IFNAME": "eth,en"}, CARDS),
    ({"NCCL_SOCKET_IFNAME": "=ib0:4000"}, CARDS),
    ({"NCCL_SOCKET_IFNAME": "^docker"}, CARDS),
    ({"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "ib"}, CARDS),
    ({"GLOO_SOCKET_IFNAME": "eth0,ib0"}, CARDS),
    (ACROSS | {"GLOO_SOCKET_IFNAME": "eth0"}, CARDS | {"host": "127.0.1.1"}),
    (ACROSS, {"host": "10.0.0.7"}),
    (ACROSS, {"host": "fd00::7"}),
    (TASKS, {"host": "127.0.1.1"}),
    (TORCHRUN | {"MASTER_ADDR": "gpu01"}, {}),
    (TORCHRUN | {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, {}),
    (ACROSS, {}),
    (TASKS | {"GLOO_SOCKET_IFNAME": "lo", "NVSHMEM_REMOTE_TRANSPORT": "none"}, {}),
    (TASKS | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, {"gpus": 4}),
    (TASKS | {"CUDA_VISIBLE_DEVICES": "3"}, {"gpus": 1}),  # as with --gpus-per-task
    ({"CUDA_DEVICE_MAX_CONNECTIONS": "8", "CUDA_LAUNCH_BLOCKING": "0"}, {}),
    ({"NVSHMEM_SYMMETRIC_SIZE": "2G"}, {"arena": 1 << 30}),
    ({"NVSHMEM_DISABLE_P2P": "0", "NCCL_P2P_DISABLE": "0", "NVSHMEM_DEBUG": "INFO"}, {}),
]


@pytest.mark.parametrize(("env", "facts"), HARMLESS)
def test_what_is_in_order_is_not_complained_of(env, facts):
    assert all(f.ok for f in findings(env, **facts).values())


IGNORED = [
    (TORCHRUN | TASKS, "ignored: torchrun started"),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}, "script of a batch job"),
    (TASKS | {"SLURM_NTASKS": "1"}, "a task alone"),
]


@pytest.mark.parametrize(("env", "told"), IGNORED)
def test_what_is_ignored_is_told_and_no_fault(env, told):
    finding = findings(env)["SLURM_PROCID"]
    assert finding.ok
    assert told in finding.found


def test_a_heap_s_size_is_read_as_the_library_does_and_takes_whole_granules_and_one_of_the_library_s():
    sizes = {"": 0, "1024": 1024, "20m": 20 << 20, "3.5K": 3584, ".5G": 1 << 29, "2t": 2 << 40, "20kk": 20480}
    assert {text: heap_size({"NVSHMEM_SYMMETRIC_SIZE": text}) for text in sizes} == sizes
    assert [taken(nbytes) // GRANULE for nbytes in (1, GRANULE, GRANULE + 1)] == [2, 2, 3]
    assert taken(1) % GRANULE == 0


def test_a_heap_too_small_is_refused_before_the_library_ends_the_process(monkeypatch):
    monkeypatch.delenv("NVSHMEM_SYMMETRIC_SIZE", raising=False)
    check_heap(1 << 40)  # unset: the engine sets it
    monkeypatch.setenv("NVSHMEM_SYMMETRIC_SIZE", "128M")
    check_heap(64 << 20)
    with pytest.raises(InputError, match=r"NVSHMEM_SYMMETRIC_SIZE=128M is too small for an arena of 67 MB.*134217729"):
        check_heap((64 << 20) + 1)


@pytest.fixture
def clean(monkeypatch):
    for name in [name for name in os.environ if name in environment.MEANS or name.startswith(KNOWN)]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("clean")
def test_doctor_asks_for_a_model_s_heap(monkeypatch, capsys):
    monkeypatch.setenv("NVSHMEM_SYMMETRIC_SIZE", "1G")
    for model, good in (("nano", True), ("qwen3-8b", False)):
        assert main(["doctor", "--model", model, "--devices", "16", "--json"]) == (not good)
        printed = json.loads(capsys.readouterr().out)["findings"]
        [finding] = [f for f in printed if f["area"] == "environment"]
        assert finding["name"] == "NVSHMEM_SYMMETRIC_SIZE"
        assert finding["ok"] == good
    assert main(["doctor", "--model", "qwen3-9b"]) == 2
    assert "qwen3-8b" in capsys.readouterr().err


@pytest.mark.usefixtures("clean")
def test_a_model_s_arena_is_the_one_that_the_engine_asks_for(pools):
    """Units begin at round places."""
    assert room.arena("nano", 2) == pytest.approx(pools(2).run(arena_of, "nano")[0], rel=0.3)


def arena_of(_rank, name):
    """Bytes that a model of this name asks for on two machines."""
    model = Decoder(catalog.model(name), seed=0)
    shard(model, list(model.layers), prefetch_named("fsdp2"))
    library = FakeNvshmem((1, 1))
    comm = OnDemand(model, memory=NvshmemMemory(SharedMemory(timeout=30.0), library), accumulate="slots")
    [asked] = library.process.arenas
    comm.close()
    return asked


def test_doctor_tells_versions_of_nvshmem(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(nvshmem_library, "versions", lambda: ("3.4.5", "0.4.1"))
    finding = doctor._nvshmem()
    assert finding.ok
    assert all(version in finding.found for version in ("3.4.5", "0.4.1"))
