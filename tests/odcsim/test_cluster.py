"""Clusters and the file that describes one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import damaged

from odcsim.catalog import gpu
from odcsim.cluster import Cluster, cluster_of, read_cluster
from odcsim.errors import InputError

BASE = cluster_of(gpu("a100"), 16)
WHOLE = """devices_per_node = 4
nics_per_node = 2
link_gb_s = 300.5
nic_gbit_s = 400
one_sided_slowdown = 3
latency_us = 5
jitter = 0.1
sample_noise = 0.05
swing = 0.2
spell_seconds = 0.5
link_share = 0.7
nic_share = 0.9
hop_us = 3
[slow]
3 = 1.5
"0" = 1
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("clusters") / "c.toml"


def test_a_file_says_what_is_otherwise(path):
    path.write_text(WHOLE)
    slow = ((0, 1), (3, 1.5))
    assert read_cluster(path, BASE) == Cluster(
        16, 4, 300.5e9, 50e9, 2, 3.0, 5 * 1e-6, 0.1, slow, 0.05, 0.2, 0.5, 0.7, 0.9, 3 * 1e-6, 312e12, BASE.memory_bytes
    )
    path.write_text("")
    assert read_cluster(path, BASE) == BASE


def test_another_size_of_node_brings_its_nics(path):
    path.write_text("devices_per_node = 4")
    found = read_cluster(path, BASE)
    assert (found.devices_per_node, found.nics_per_node, found.nodes, found.shared_links) == (4, 4, 4, False)


@pytest.mark.parametrize(
    ("devices", "per_node", "nics", "nodes", "shared"),
    [(8, 8, 8, 1, False), (8, 8, 1, 1, False), (9, 8, 8, 2, False), (16, 8, 4, 2, True), (3, 8, 1, 1, False)],
)
def test_links_are_shared_between_nodes_alone(devices, per_node, nics, nodes, shared):
    cluster = Cluster(devices, per_node, 1e9, 1e9, nics)
    assert (cluster.nodes, cluster.shared_links) == (nodes, shared)


def test_the_usual_cluster_has_a_nic_for_each_device():
    assert not BASE.shared_links
    assert (BASE.devices, BASE.devices_per_node, BASE.nodes) == (16, 8, 2)
    assert cluster_of(gpu("a100"), 16, 16).nodes == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("devices_per_nod = 4", "unknown key 'devices_per_nod'; did you mean 'devices_per_node'"),
        ("devices_per_node = 0", "devices_per_node is 0; expected a whole number from 1"),
        ("devices_per_node = 4.0", "devices_per_node is 4.0; expected a whole number"),
        ("devices_per_node = true", "devices_per_node is True"),
        ("link_gb_s = 0", "link_gb_s is 0; expected a number from 1e-06"),
        ("link_gb_s = 1e308", "link_gb_s is 1e.308"),
        ("nic_gbit_s = nan", "nic_gbit_s is nan"),
        ("nic_gbit_s = inf", "nic_gbit_s is inf"),
        ("nic_gbit_s = '400'", "nic_gbit_s is '400'"),
        ("latency_us = -1", "latency_us is -1; expected a number from 0"),
        ("latency_us = " + "9" * 400, "latency_us is huge"),
        ("latency_us = 0x" + "f" * 9000, "latency_us is huge"),
        ("jitter = 1979-05-27", "jitter is datetime"),
        ("slow = 3", "slow is 3; expected a table"),
        ("[slow]\n16 = 2", "slow names device '16'; devices are 0 to 15"),
        ("[slow]\n-1 = 2", "slow names device '-1'"),
        ("[slow]\nfirst = 2", "slow names device 'first'"),
        ("[slow]\n" + "1" * 5000 + " = 2", "slow names device '1111"),
        ("[slow]\n1 = 0", "slow device 1 is 0"),
        ("[slow]\n1 = [1]", r"slow device 1 is \[1\]"),
        ("jitter", "cannot be read"),
        ("jitter = " + "[" * 20_000, "cannot be read"),
    ],
)
def test_a_wrong_value_is_named(text, problem, path):
    path.write_text(text)
    with pytest.raises(InputError, match=problem) as caught:
        read_cluster(path, BASE)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(path):
    with pytest.raises(InputError, match="no such file; give a cluster's TOML file"):
        read_cluster(path.with_name("missing.toml"), BASE)
    with pytest.raises(InputError, match="cannot be read"):
        read_cluster(path.parent, BASE)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        read_cluster(path, BASE)


@settings(max_examples=200)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_make_a_cluster(data, path):
    path.write_bytes(data.draw(damaged(WHOLE.encode())))
    try:
        found = read_cluster(path, BASE)
    except InputError as error:
        line = str(error)
    else:
        assert isinstance(found, Cluster)
        return
    assert line.startswith(str(path))
    assert "\n" not in line
