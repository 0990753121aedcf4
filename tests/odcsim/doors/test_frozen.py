"""What questions come to at every door is what it was: `frozen.py` says how to freeze it anew."""

from dataclasses import replace

import frozen
import pytest
import ways_in

FIRST = (0, 6, 22)  # of the default run


@pytest.fixture(scope="module", autouse=True)
def folder():
    with ways_in.beside_files() as path:
        yield path


@pytest.mark.parametrize(
    "number", [n if n in FIRST else pytest.param(n, marks=pytest.mark.slow) for n in range(frozen.QUESTIONS)]
)
def test_a_question_comes_to_the_same_figures(number):
    assert not list(frozen.differences(number, frozen.asked()[number]))


def test_another_figure_is_seen():
    number, question = FIRST[0], frozen.asked()[FIRST[0]]
    other = replace(question, minibatches=question.minibatches + 1)
    assert any("speedup" in line for line in frozen.differences(number, other))
