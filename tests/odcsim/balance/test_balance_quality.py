"""How good the balancers are on shapes of long-context data; bounds leave about twice what was measured."""

import numpy as np
import pytest
from draws import cost, longalign, swe

from odcsim.balance import balance

LIMIT = 65_536


def bound(weights, devices):
    """No partition has a lighter heaviest device: the mean, the longest, or two of the first N + 1 on one device."""
    heaviest = np.sort(weights)[::-1]
    return max(weights.sum() / devices, heaviest[0], heaviest[devices - 1] + heaviest[devices])


def parts(name, lengths, devices):
    """Costs of the microbatches of each device, and of all samples."""
    weights = cost(lengths)
    found = balance(name, lengths, weights, devices, LIMIT)
    return [[sum(weights[i] for i in part) for part in device] for device in found], weights


def gap(name, lengths, devices):
    found, weights = parts(name, lengths, devices)
    return max(map(sum, found)) / bound(weights, devices) - 1


def idle_in_lockstep(name, lengths, devices):
    """Share of the time that devices wait when every step takes as long as its heaviest microbatch."""
    found, weights = parts(name, lengths, devices)
    return 1 - weights.sum() / (devices * sum(max(step) for step in zip(*found, strict=True)))


def idle_on_demand(name, lengths, devices):
    found, weights = parts(name, lengths, devices)
    return 1 - weights.sum() / devices / max(map(sum, found))


def mean(measure, name, draw, devices, samples, draws):
    return np.mean([measure(name, draw(seed, devices * samples), devices) for seed in range(draws)])


@pytest.mark.parametrize(
    ("draw", "devices", "samples", "most"),
    [
        (longalign, 8, 4, 0.012),
        (longalign, 8, 8, 0.0015),
        (longalign, 64, 8, 0.0005),
        (swe, 8, 4, 0.012),
        (swe, 64, 4, 0.005),
        (swe, 64, 8, 0.0007),
    ],
)
def test_lb_mini_comes_close_to_the_lower_bound(draw, devices, samples, most):
    assert mean(gap, "lb-mini", draw, devices, samples, 40 if devices == 8 else 4) < most


@pytest.mark.parametrize(("devices", "draws"), [(8, 40), (64, 4)])
def test_swaps_bring_equal_counts_close_to_what_equal_counts_allow(devices, draws):
    def gap_of_equal_counts(name, lengths, devices):
        weights = np.sort(cost(lengths))
        forced = weights[-1] + weights[: len(weights) // devices - 1].sum()
        lowest = bound(weights, devices)
        return (1 + gap(name, lengths, devices)) * lowest / max(lowest, forced) - 1

    assert mean(gap_of_equal_counts, "lb-micro", longalign, devices, 8, draws) < 0.002


@pytest.mark.parametrize(("devices", "samples", "draws"), [(8, 4, 60), (64, 8, 6)])
def test_in_lockstep_sorted_slice_waits_less_than_lb_micro_and_that_less_than_local_sort(devices, samples, draws):
    idle = [
        mean(idle_in_lockstep, name, longalign, devices, samples, draws)
        for name in ("sorted-slice", "lb-micro", "local-sort", "native")
    ]
    assert idle == sorted(idle)
    assert idle[0] < idle[1] - 0.01
    assert mean(idle_on_demand, "lb-mini", longalign, devices, samples, draws) < idle[0] - 0.1


def test_sorted_slice_evens_out_the_totals_of_devices_that_meet_only_at_the_end():
    inside = mean(idle_in_lockstep, "sorted-slice", longalign, 64, 8, 4)
    assert mean(idle_on_demand, "sorted-slice", longalign, 64, 8, 4) < inside - 0.01
