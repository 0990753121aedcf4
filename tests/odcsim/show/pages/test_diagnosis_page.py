"""The page of a diagnosis: all that the command says, a picture of each thing, and nothing from outside."""

import re
from dataclasses import replace
from html import unescape

import pytest
from diagnosed import SHARES, diagnosis

import odcsim
from odcsim import plots
from odcsim.decide.diagnosis import words
from odcsim.decide.diagnosis.found import PARTS
from odcsim.show.pages.diagnosis_page import write_diagnosis


def shown(told, path):
    write_diagnosis(told, path)
    return unescape(path.read_text(encoding="utf-8"))


def test_it_says_what_the_command_says(tmp_path):
    told = diagnosis()
    page = shown(told, tmp_path / "page.html")
    assert told.sentences()[0] in page
    assert all(PARTS[name] in page for name in SHARES)
    assert page.count("<figure ") == 4
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)


def test_what_a_file_holds_is_no_markup(tmp_path):
    told = diagnosis()
    page = tmp_path / "page.html"
    write_diagnosis(replace(told, run=replace(told.run, source="<script>alert(1)</script>")), page)
    assert "<script>alert" not in page.read_text(encoding="utf-8")


def test_without_ways_or_tracks_there_are_no_pictures_of_them(tmp_path):
    told = diagnosis({"compute": 1.0}, (), ranks=(), late=())
    bare = replace(told, run=replace(told.run, steps=tuple(replace(s, tracks=()) for s in told.run.steps)))
    page = shown(bare, tmp_path / "page.html")
    assert page.count("<figure ") == 1
    assert "Stragglers: who waits for whom" not in page
    assert words.rests(bare.changes)[0] in page


@pytest.mark.parametrize("worst", [0, 4, 11])
def test_the_step_that_is_drawn_is_the_one_of_which_most_is_waiting(worst):
    told = diagnosis()
    by_step = {name: [9.0 if at == worst and name == "lengths" else 0.1 for at in range(12)] for name in PARTS}
    figure = plots.worst_step(told.run, replace(told.found, by_step=by_step))
    assert figure.layout.title.text == f"Step {worst}, in which most was waiting"


def test_a_step_of_which_nothing_is_known_is_not_drawn():
    told = diagnosis()
    bare = replace(told.run, steps=tuple(replace(step, tracks=()) for step in told.run.steps))
    with pytest.raises(odcsim.InputError, match="what ranks did within a step is not known"):
        plots.worst_step(bare, told.found)
