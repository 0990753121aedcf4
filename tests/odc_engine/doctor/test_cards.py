"""What the doctor says of the network between GPUs of several machines, from made-up files of the kernel's."""

import pytest

from odc_engine.doctor import network


def found(root):
    return {finding.name: finding for finding in network.examine(root)}


def put(root, name, text):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_a_machine_without_a_card_is_told_how_to_get_one(tmp_path):
    cards = found(tmp_path)["InfiniBand"]
    assert (cards.ok, cards.found.partition(":")[0]) == (False, "no device")
    assert "/dev/infiniband" in cards.advice


@pytest.mark.parametrize(("state", "ok"), [("4: ACTIVE\n", True), ("1: DOWN\n", False)])
def test_a_card_counts_where_a_port_is_active(tmp_path, state, ok):
    put(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n")
    put(tmp_path, "sys/class/infiniband/mlx5_1/ports/1/state", state)
    cards = found(tmp_path)["InfiniBand"]
    assert cards.ok == ok
    assert cards.found.startswith("active: mlx5_1" if ok else "no port of mlx5_0, mlx5_1 is active")


def test_cards_read_gpus_by_a_module_or_by_the_open_driver(tmp_path):
    assert not found(tmp_path)["nvidia_peermem"].ok
    put(tmp_path, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.1\n")
    assert "DMA-BUF" in found(tmp_path)["nvidia_peermem"].found
    put(tmp_path, "sys/module/nvidia_peermem/refcnt", "0\n")
    assert found(tmp_path)["nvidia_peermem"].found.startswith("loaded")
