"""How much of an arena is set aside for bytes that a network carries. Needs no torch."""

ROOM = 256 << 20  # bytes at most: a round of so many takes milliseconds, beside which its start is nothing


def room_for(part: int, others: int) -> int:
    """Return bytes for a part of the largest unit of each of so many ranks, or for as much of all parts as fits at
    once."""
    return min(ROOM, part * others)
