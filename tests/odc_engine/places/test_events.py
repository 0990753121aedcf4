"""Marks whose events are used again: never while somebody holds one, and no more than were held at once."""

from hypothesis import given
from hypothesis import strategies as st

from odc_engine.places.events import EventPool


class Event:
    def record(self):
        """On whatever stream."""


@given(st.lists(st.integers(-1, 5)))
def test_what_is_held_is_not_used_again_and_no_more_are_made_than_were_held(steps):
    """-1: one more mark; else that mark of those held is let go."""
    made, held, most = [], [], 0

    def make():
        made.append(Event())
        return made[-1]

    events = EventPool(make)
    for step in steps:
        if step < 0:
            held.append(events.record())
        elif held:
            del held[step % len(held)]
        most = max(most, len(held))
        assert len({id(mark.event) for mark in held}) == len(held)
    assert len(made) == most
