"""What the doctor says of the links between GPUs, by a driver without a GPU."""

from odc_engine.doctor import pairs


def told(gpus):
    return [[finding.name, finding.ok, finding.found] for finding in pairs.examine(gpus)]


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
    assert pairs.examine(1) == []
