"""Whatever people do in a training loop is right or refused: never a third thing. docs/habits.md says which."""

from dataclasses import fields

import pytest
from habits import EVERY, sentence
from habits_page import ROW
from scripts import ROOT
from users import found

from odc_engine.fsdp.remedies import ATTACHED, BY_HAND

PAGE = (ROOT / "docs/habits.md").read_text(encoding="utf-8")


COMPILED = ("training: compiled_layers", "training: compiled_model", "training: compiled_step")
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in COMPILED else name for name in EVERY]


@pytest.mark.by_default(80)
@pytest.mark.parametrize("name", NAMES)
def test_right_or_refused_as_the_page_says(pools, name):
    if wanting := EVERY[name].wanting:
        pytest.skip(wanting)
    came_to = found(pools, EVERY[name])
    assert not came_to.startswith(("FAILED", "WRONG"))
    told = came_to if came_to == "works" else f"refused: {came_to}"
    assert (sentence(EVERY[name]), told) in ROW.findall(PAGE)


@pytest.mark.parametrize("words", [BY_HAND, ATTACHED], ids=["by hand", "attached"])
def test_every_way_out_is_one_that_a_habit_was_told(words):
    assert [told for told in (getattr(words, each.name) for each in fields(words)) if told not in PAGE] == []


def test_the_page_has_every_habit_once_and_no_other():
    assert sorted(told for told, _ in ROW.findall(PAGE)) == sorted(map(sentence, EVERY.values()))
    assert len(EVERY) >= 60
