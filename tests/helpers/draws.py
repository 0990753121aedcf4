"""Lengths and costs to balance: shapes drawn from published moments, not data."""

import numpy as np


def longalign(seed, count):
    """Truncated exponential on [5500, 65536], mean about 16.5K."""
    rng = np.random.default_rng(seed)
    drawn = 5500 + rng.exponential(11_300, size=2 * count + 64)
    return drawn[drawn <= 65536][:count].astype(np.int64)


def lognormal(seed, count, *, median, sigma, most):
    drawn = np.random.default_rng(seed).lognormal(np.log(median), sigma, count)
    return drawn.clip(16, most).astype(np.int64)


def clipped(seed, count):
    """Like longalign, but one in 34 is of the largest length: costs that are off do the most harm to such."""
    return lognormal(seed, count, median=11_900, sigma=0.9, most=65_536)


def swe(seed, count):
    return lognormal(seed, count, median=33_200, sigma=0.52, most=65_536)


def chat(seed, count):
    return lognormal(seed, count, median=684, sigma=1.06, most=16_384)


def cost(lengths):
    """Linear and quadratic seconds of a published 7B fit."""
    x = lengths / 32_000
    return 8.77 * x + 4.35 * x * x
