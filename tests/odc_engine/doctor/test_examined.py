"""What the doctor says of memory, of what connects GPUs, by a driver without one, and of kernels that are tried."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import shards
import torch

from odc_engine.cli import main
from odc_engine.doctor import abilities, connections, room, selftest
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.far import FarArena
from odcsim import catalog

NODE, GPU = 8, 85_000_000_000
KERNELS = ("write", "gather", "add", "total")


def asked(kind, name, devices, accumulate):
    """Bytes that an arena of a model's units asks its memory for."""
    model, told = catalog.model(name), []

    def allocate(nbytes):
        told.append(nbytes)
        raise StopIteration

    parts = [-(-each // devices) for each in (model.root_parameters, *[model.layer_parameters] * model.layers)]
    shapes = [UnitShape(f"unit {i}", n, n, torch.float32) for i, n in enumerate(parts)]
    with pytest.raises(StopIteration):
        kind(SimpleNamespace(rank=0, size=devices, allocate=allocate, why_not_add=""), shapes, accumulate)
    return told[0]


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "qwen3-8b"])
def test_room_is_the_arena_that_the_engine_asks_for(name):
    model = catalog.model(name)
    assert room.slots(model, 16) == pytest.approx(asked(FarArena, name, 16, "slots"), rel=0.01)
    assert room.locked(model, NODE) == pytest.approx(asked(Arena, name, NODE, "locked"), rel=0.01)


ROOM = [
    (("qwen3-8b", 16, 0, 0), {"locked": True, "slots": True, "hybrid": True}),
    (("qwen3-8b", 16, NODE, GPU), {"slots": True, "hybrid": True}),
    (("qwen3-32b", 16, NODE, GPU), {"slots": False, "hybrid": False}),
    (("nano", 8, NODE, 0), {"locked": True, "slots": True}),
    (("nano", 12, NODE, 0), {"slots": True}),  # no mesh of whole machines
]


@pytest.mark.parametrize(("which", "ways"), ROOM)
def test_each_way_is_held_against_a_gpu_s_memory(which, ways):
    """One machine has no hybrid, and several no common sum."""
    found = room.examine(*which)
    assert {finding.name: finding.ok for finding in found} == ways
    assert all(finding.ok or finding.advice for finding in found)


def between_machines(root, files=()):
    for name, text in dict(files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return {finding.name: finding for finding in connections.between_machines(root)}


def test_a_card_counts_where_a_port_is_active(tmp_path):
    cards = between_machines(tmp_path)["InfiniBand"]
    assert not cards.ok
    assert cards.advice
    first, second = (f"sys/class/infiniband/mlx5_{n}/ports/1/state" for n in range(2))
    for state, ok in (("1: DOWN\n", False), ("4: ACTIVE\n", True)):
        cards = between_machines(tmp_path, {first: "1: DOWN\n", second: state})["InfiniBand"]
        assert cards.ok == ok
        assert ("mlx5_0" in cards.found) == (not ok)
        assert "mlx5_1" in cards.found


def test_cards_read_gpus_by_a_module_or_by_the_open_driver(tmp_path):
    assert not between_machines(tmp_path)["nvidia_peermem"].ok
    driver = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.1\n"}
    assert "DMA-BUF" in between_machines(tmp_path, driver)["nvidia_peermem"].found
    module = between_machines(tmp_path, {"sys/module/nvidia_peermem/refcnt": "0\n"})["nvidia_peermem"]
    assert module.found.startswith("loaded")


def told(gpus):
    return [[finding.name, finding.ok, finding.found] for finding in connections.between_gpus(gpus)]


def test_ways_that_do_not_reach_or_add_are_counted_and_the_first_is_named(fake_libraries):
    """GPU 2 is on another switch: it reaches nobody. GPUs 0 and 1 have PCIe."""
    assert connections.between_gpus(1) == []
    names = ["peer access", "native atomics"]
    found = fake_libraries.ask(told, 4, devices=4).value
    assert found == [[name, True, "between all GPUs, 12 ways"] for name in names]
    found = fake_libraries.ask(told, 3, devices=3, p2p="-a-;a--;---").value
    ways = ("4 of 6 ways lack it, first GPU 0 to 2", "6 of 6 ways lack it, first GPU 0 to 1")
    assert found == [[name, False, way] for name, way in zip(names, ways, strict=True)]
    reach, add = fake_libraries.ask(told, 2, devices=2, refuse="cuDeviceGetP2PAttribute=801").value
    assert reach[1]
    assert add[1:] == [False, "nobody says it of 2 of 2 ways"]


@pytest.mark.skipif(bool(abilities.gpus()[0]), reason="there is a GPU here")
def test_without_a_gpu_a_selftest_ends_with_a_status_of_its_own(capsys):
    assert main(["doctor", "--gpu-selftest", "--json"]) == 3
    last = json.loads(capsys.readouterr().out)["findings"][-1]
    assert (last["area"], last["ok"]) == ("selftest", False)


def test_a_process_that_tries_kernels_is_told_by_each_or_by_its_last_words(monkeypatch):
    run = subprocess.run

    def answered(code):
        monkeypatch.setattr(selftest.subprocess, "run", lambda _, **how: run([sys.executable, "-c", code], **how))
        return [(each.name, each.ok, each.found) for each in selftest.examine(True)]

    right = dict.fromkeys(KERNELS, True) | {"add": False}
    found = answered(f"print('loaded'); print({json.dumps(json.dumps(right))})")
    assert {name: ok for name, ok, _ in found} == right
    assert [text for _, ok, text in found if not ok] == ["wrong bytes"]
    assert answered("raise RuntimeError('illegal access')") == [("kernels", False, "RuntimeError: illegal access")]
    assert answered("import os; os._exit(7)") == [("kernels", False, "exit status 7")]
    monkeypatch.setattr(selftest, "SECONDS", 0.5)
    assert answered("import time; time.sleep(60)") == [("kernels", False, "no answer within 0.5 s")]


def tried(_rank, wrong):
    transfers = shards.interpreted()
    with pytest.MonkeyPatch.context() as patch:
        if wrong:
            patch.setattr(transfers, wrong, lambda *_, **__: None)
        return selftest.kernels(300, "cpu")


@pytest.mark.skipif(not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt")
def test_kernels_that_move_no_bytes_are_seen(pools):
    assert pools(1).run(tried, "") == [dict.fromkeys(KERNELS, True)]
    for name in ("gather", "total"):
        assert pools(1).run(tried, name) == [dict.fromkeys(KERNELS, True) | {name: False}]
