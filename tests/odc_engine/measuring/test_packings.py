"""Schedules made to be measured hold what a fit needs, whatever the limit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from odc_engine.measuring import calibration
from odc_engine.measuring.calibration import LEAST, SPLITS
from odcsim import catalog, schedule
from odcsim.fitting.robust import distinct
from odcsim.program import check_counts

NANO = catalog.model("nano")
limits = st.integers(2 * LEAST * max(SPLITS), 100_000)  # from what `odc_engine profile` takes
devices = st.integers(1, 4)
seconds = st.tuples(st.floats(1e-5, 1e-2), st.floats(1e-6, 1e-5), st.floats(1e-10, 1e-8), st.floats(0, 1e-3))


def held(file: schedule.ScheduleFile) -> list[list[tuple[int, ...]]]:
    """Lengths in each microbatch of each device, over all minibatches."""
    found: list[list[tuple[int, ...]]] = [[] for _ in range(file.header.devices)]
    for one in file.schedules:
        for own, device in zip(found, one.devices, strict=True):
            own += [tuple(one.lengths[i] for i in microbatch) for microbatch in device]
    return found


@given(limits, seconds)
def test_every_coefficient_can_be_told_apart(most, coefficients):
    """The columns of a fit, over the seconds that it will be relative to: whatever those are."""
    columns = np.array([(1, sum(p), sum(n * n for n in p), len(p)) for p in calibration.packings(most)], dtype=float)
    assert len(columns) > 2 * columns.shape[1]
    assert distinct(columns / (columns @ np.array(coefficients))[:, None])


@given(limits)
def test_packings_reach_the_limit_and_stay_within(most):
    found = calibration.packings(most)
    assert len(set(found)) == len(found)
    assert max(sum(p) for p in found) == max(max(p) for p in found) == most
    assert min(min(p) for p in found) >= LEAST
    assert {len(p) for p in found} == set(SPLITS)


@given(limits, devices, st.integers(0, 99))
def test_each_device_runs_every_packing_once_in_an_order_of_its_own(most, devices, seed):
    file = calibration.mixed(NANO, devices, most, seed)
    every = sorted(calibration.packings(most))
    orders = held(file)
    assert [sorted(own) for own in orders] == [every] * devices
    assert len({tuple(own) for own in orders}) == devices
    assert held(calibration.mixed(NANO, devices, most, seed)) == orders
    assert held(calibration.mixed(NANO, devices, most, seed + 1)) != orders


@given(limits, devices, st.integers(2, 5))
def test_of_fewer_packings_some_are_full_and_all_devices_have_the_same(most, devices, every):
    orders = held(calibration.mixed(NANO, devices, most, 0, every))
    assert [sorted(own) for own in orders] == [sorted(calibration.packings(most)[::every])] * devices
    assert max(sum(p) for p in orders[0]) == most
    if every % len(SPLITS):
        assert len({len(p) for p in orders[0]}) > 1  # samples that are not all of them long


@settings(max_examples=20)
@given(most=limits, devices=devices)
def test_files_come_back_and_run_under_every_sync_in_a_few_microbatches_a_minibatch(most, devices, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "packings.jsonl"
    for file in (calibration.mixed(NANO, devices, most, 0), calibration.short(NANO, devices)):
        schedule.write(file, path)
        assert schedule.read(path) == file
        assert (file.header.model, file.header.devices) == ("nano", devices)
        assert {n for one in file.schedules for n in one.microbatches} <= {2, 3}
        for one in file.schedules:
            assert max(sum(one.lengths[i] for i in m) for own in one.devices for m in own) <= file.header.max_tokens
            check_counts("collective", one.microbatches)
