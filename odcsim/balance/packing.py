"""Samples into microbatches under the token limit. Samples are numbered from the heaviest down."""

from odcsim.balance.karmarkar_karp import differencing

Microbatch = list[int]


def fewest(samples: list[int], tokens: list[int], max_tokens: int) -> int:
    """No packing needs fewer microbatches than this; often one needs more."""
    return max(1, -(-sum([tokens[i] for i in samples]) // max_tokens)) if samples else 0


def packed(samples: list[int], weights: list[float], tokens: list[int], max_tokens: int) -> list[Microbatch]:
    """The fewest microbatches whose balanced split fits."""
    count = fewest(samples, tokens, max_tokens)
    while (microbatches := pack(samples, weights, tokens, max_tokens, count)) is None:
        count += 1
    return microbatches


def pack(
    samples: list[int], weights: list[float], tokens: list[int], max_tokens: int, count: int
) -> list[Microbatch] | None:
    """Exactly `count` microbatches of balanced cost, heaviest first; None where that puts one over the limit.

    It asks whether the balanced split fits, not whether some less balanced one would.
    """
    parts = differencing([weights[i] for i in samples], count)
    packed = [[samples[i] for i in sorted(part)] for part in parts]
    if any(sum([tokens[i] for i in part]) > max_tokens for part in packed):
        return None
    return sorted(packed, key=lambda part: (-sum([weights[i] for i in part]), part))
