"""Laws of transfers by rates: nothing beats its line, more devices are not faster, and each term can be seen alone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import catalog
from odcsim.catalog.fits import estimate
from odcsim.cluster import Cluster, cluster_of
from odcsim.cost import Cost

KINDS = (Cluster.collective, Cluster.one_sided)
MODEL = catalog.model("r1-distill-qwen-1.5b")
clusters = st.builds(
    Cluster,
    gpus=st.integers(1, 512),
    devices_per_node=st.sampled_from([1, 4, 8]),
    link_bandwidth=st.floats(1e10, 1e12),
    nic_bandwidth=st.floats(1e9, 1e11),
    nics_per_node=st.sampled_from([1, 4, 8]),
    nic_share=st.floats(0.1, 1.0),
    link_share=st.floats(0.1, 1.0),
)
sizes = st.floats(1e3, 1e10)
TWO = Cluster(16, 8, 300e9, 12.5e9, 8, latency=0.0, hop=0.0)


@given(clusters, sizes)
def test_no_device_pulls_more_through_its_card_than_the_card_carries(cluster, size):
    """What was wrong: 275 MB in 9.65 ms through 12.5 GB/s. Inside a node all kinds take the same, and a device alone
    moves nothing."""
    least = size * (cluster.nodes - 1) / cluster.nodes / cluster.nic_bandwidth
    assert cluster.one_sided(size, cluster.gpus) >= least
    assert cluster.collective(size, cluster.gpus) >= least / cluster.nics_per_node
    assert cluster.exchange(size, collective=False) >= least / cluster.devices_per_node
    one = replace(cluster, gpus=cluster.devices_per_node)
    assert len({kind(one, size, one.gpus) for kind in KINDS}) == 1
    assert {kind(replace(cluster, gpus=1), size, 1) for kind in KINDS} == {0}


@given(clusters, sizes, st.integers(1, 8))
def test_a_collective_takes_longer_the_more_devices_it_passes(cluster, size, times):
    per = cluster.devices_per_node
    few, many = (replace(cluster, gpus=n * per).collective(size, n * per) for n in (times, 2 * times))
    assert many >= few


def test_each_term_can_be_seen_alone():
    """A collective's latency grows with the devices where nodes are many; shares of rates are what it reaches. A pull
    is as slow as its card or as was measured. An exchange between nodes uses one card alone, or all together."""
    size, near = 1e9, replace(TWO, nic_bandwidth=1e15)
    at = [replace(TWO, gpus=n, hop=1e-3).collective(0.0, n) for n in (8, 16, 512)]
    assert at == pytest.approx([0, 15e-3, 511e-3])
    assert TWO.collective(size, 16) == pytest.approx(size / 2 / (8 * 12.5e9 * TWO.nic_share))
    assert near.collective(size, 16) == pytest.approx(size * 15 / 16 / (300e9 * 0.8))
    assert near.collective(size, 16, inside=False) < 1e-6
    assert TWO.one_sided(size, 16) == pytest.approx(size / 2 / 12.5e9)
    measured, one = replace(TWO, one_sided_slowdown=10.0), replace(TWO, gpus=8)
    assert measured.one_sided(size, 16) == pytest.approx(10 * measured.collective(size, 16))
    # What a fit made inside a node holds already is not counted twice.
    assert all(kind(one, size, 8, inside=False) == 0 < kind(one, size, 8) for kind in KINDS)
    assert TWO.exchange(size, collective=True) == pytest.approx(size / 2 / (8 * 12.5e9 * TWO.nic_share))
    assert TWO.exchange(size, collective=False) == pytest.approx(size / 2 / 12.5e9 / TWO.nic_share / 8)


@pytest.mark.parametrize("devices", [8, 16])
@pytest.mark.parametrize("reduce", ["fp32", "bf16"])
def test_in_backward_a_link_takes_in_gathers_and_pushes_at_once(devices, reduce):
    """So a push takes what its bytes and those of a gather take, unless layers stay whole or collectives queue."""
    gpu = catalog.gpu("a100")
    cluster = replace(cluster_of(gpu, devices), latency=0.0)
    usual = Cost(MODEL, estimate(MODEL, gpu, devices), cluster).by(reduce=reduce)
    whole, weight = usual.by(reshard=False), {"fp32": 2, "bf16": 1}[reduce]
    for pulls in (True, False):
        beside, alone = (how.transfers(pulls) for how in (usual, whole))
        gather = beside["gather layer"]
        if pulls:
            assert alone["push layer"] == pytest.approx(weight * gather)
        assert beside["push layer"] == pytest.approx(alone["push layer"] + gather * pulls)
        assert {what for what in alone if alone[what] != beside[what]} <= {"push layer"}
