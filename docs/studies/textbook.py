"""Largest differencing as textbooks write it: a state of `parts` sums for every sample. Slow, and easy to trust."""

import heapq


def textbook(weights, parts, *, equal=False):
    """The sums of the parts, sorted. Among equal spreads the state made last goes first."""
    heaviest = sorted(weights, reverse=True)
    if equal:
        heaviest += [0.0] * (-len(heaviest) % parts)
        states = [tuple(heaviest[i : i + parts]) for i in range(0, len(heaviest), parts)]
    else:
        states = [(weight, *[0.0] * (parts - 1)) for weight in heaviest]
    heap = [(min(state) - max(state), -made, state) for made, state in enumerate(states)]
    heapq.heapify(heap)
    made = len(heap)
    while len(heap) > 1:
        one, other = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        state = tuple(a + b for a, b in zip(sorted(one), sorted(other, reverse=True), strict=True))
        heapq.heappush(heap, (min(state) - max(state), -made, state))
        made += 1
    return sorted(heap[0][2])
