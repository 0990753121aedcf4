"""How much room an arena has for what a network carries to it and from it. Needs no torch."""

ROOM = 256 << 20  # bytes at most: a round of so many takes milliseconds, beside which its start is nothing


def room_for(part: int, others: int) -> int:
    """Bytes for a part of the largest unit of each of so many devices, or for as much of all parts as fits at once."""
    return min(ROOM, part * others)
