"""Runs whose minibatches stand in another order than in their file."""

from collections.abc import Container
from dataclasses import replace

import numpy as np

from odcsim.timeline import Timeline


def order(own: int, total: int, seed: int) -> list[int]:
    """Where each minibatch stands in a run: the others spread between the file's own, all else by chance.

    The first minibatches of a run are slower than its last ones, so no schedule has one place in all runs.
    """
    rng = np.random.default_rng(seed)
    ways = rng.permutation(own), own + rng.permutation(total - own)
    places = sorted(((i + 0.5) / len(way), int(n)) for way in ways for i, n in enumerate(way))
    return [n for _, n in places]


def restored(line: Timeline, places: list[int], digest: str) -> Timeline:
    """A run of minibatches in the order of `places` as if it had been in the order of their file."""
    numbers, back = np.array(places), np.argsort(places)
    blocks = tuple(replace(block, minibatches=numbers[block.minibatches]) for block in line.blocks)
    about = replace(line.about, digest=digest)
    return replace(line, about=about, blocks=blocks, samples=line.samples[back], tokens=line.tokens[back])


def only(line: Timeline, numbers: Container[int]) -> Timeline:
    """Some minibatches of a run."""
    blocks = []
    for block in line.blocks:
        kept = np.array([n in numbers for n in block.minibatches], dtype=bool)
        if kept.any():
            times = {"asked": block.asked[:, kept], "had": block.had[:, kept]}
            blocks.append(replace(block, minibatches=block.minibatches[kept], counts=block.counts[kept], **times))
    return replace(line, blocks=tuple(blocks))
