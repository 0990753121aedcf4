"""What the doctor says of what connects GPUs: made-up files of the kernel's, and a driver without a GPU."""

import pytest

from odc_engine.doctor import connections


def found(root):
    return {finding.name: finding for finding in connections.between_machines(root)}


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


def told(gpus):
    return [[finding.name, finding.ok, finding.found] for finding in connections.between_gpus(gpus)]


def test_all_are_well_where_all_reach_and_add(fake_libraries):
    found = fake_libraries.ask(told, 4, devices=4).value
    assert found == [[name, True, "between all GPUs, 12 ways"] for name in ("peer access", "native atomics")]


def test_ways_without_are_counted_and_the_first_is_named(fake_libraries):
    """GPU 2 is on another switch: it reaches nobody. GPUs 0 and 1 have PCIe."""
    found = fake_libraries.ask(told, 3, devices=3, p2p="-a-;a--;---").value
    assert found == [
        ["peer access", False, "4 of 6 ways lack it, first GPU 0 to 2"],
        ["native atomics", False, "6 of 6 ways lack it, first GPU 0 to 1"],
    ]


def test_what_nobody_says_is_not_taken_for_granted(fake_libraries):
    reach, add = fake_libraries.ask(told, 2, devices=2, refuse="cuDeviceGetP2PAttribute=801").value
    assert reach[1]
    assert add[1:] == [False, "nobody says it of 2 of 2 ways"]


def test_a_single_gpu_has_no_link():
    assert connections.between_gpus(1) == []
