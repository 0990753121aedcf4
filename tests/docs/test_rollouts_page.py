"""Generation against published logs: the page is what its study writes, and its intervals hold most of them."""

import re

import numpy as np
import pytest
import rollouts

from odcsim.decide.generation import HIGH, LOW


def test_most_published_times_are_within_the_interval():
    times = [log.seconds / log.predict() for log in rollouts.read()]
    assert len(times) == 15
    assert np.mean([LOW <= of <= HIGH for of in times]) >= 0.9
    assert 0.85 < np.median(times) < 1.15


def test_answers_are_drawn_with_the_mean_and_the_share_that_are_cut():
    for mean, most, cut in ((800, 4000, None), (6400, 8192, 0.47), (1700, 8192, 0.002)):
        drawn = rollouts.draw(mean, most, cut, 20_000, 0)
        assert drawn.mean() == pytest.approx(mean, rel=0.02)
        assert (drawn == most).mean() == pytest.approx(rollouts.RUNAWAY if cut is None else cut, abs=0.01)


@pytest.mark.slow
@pytest.mark.drawn(0)
def test_the_page_is_what_the_study_writes():
    """In whatever month."""
    texts = (rollouts.page(), (rollouts.HERE.parent / "rollouts.md").read_text())
    anew, there = (re.sub(r"\d{4}-\d\d, on a machine", "", text) for text in texts)
    assert anew == there
