"""Batch samplers of all devices, as each would make its own."""

import numpy as np

from odc_engine import BalancedBatches

LIMIT = 40


def drawn_lengths(seed=0, count=21):
    return np.random.default_rng(seed).integers(2, LIMIT + 1, count)


def samplers(lengths, devices, minibatch=3, **changed):
    """One for each device, as each would make it."""
    asked = {"max_tokens": LIMIT, "averaged": False, "sync": "on-demand", "balancer": "lb-mini"} | changed
    return [BalancedBatches(lengths, devices=devices, rank=r, minibatch=minibatch, **asked) for r in range(devices)]


def both(devices):
    return list(zip(*(sampler.minibatches() for sampler in devices), strict=True))
