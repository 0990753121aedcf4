"""A trainer's settings, asked in Python: what the command prints, of a result, of its JSON and of a file."""

import inspect
import json

import numpy as np
import pytest

import odcsim
from odcsim.cli import main
from odcsim.neighbours import TRAINERS

LENGTHS = np.minimum(np.random.default_rng(2).lognormal(7.0, 0.9, 400), 6000).astype(np.int64) + 1
MODEL = "qwen3-0.6b"


@pytest.fixture(scope="module", params=["trl", "verl"])
def trainer(request):
    return request.param


@pytest.fixture(scope="module")
def comparison(trainer):
    asked = {"gpu": "h100", "devices": 4, "minibatch": 8, "minibatches": 3, "max_tokens": 8000}
    return odcsim.compare(odcsim.ask(LENGTHS, MODEL, **asked, trainer=trainer))


@pytest.fixture(scope="module")
def advice(trainer):
    asked = {"gpus": "h100", "devices": [2, 4], "global_batch": 32, "minibatches": 3}
    return odcsim.advise(LENGTHS, MODEL, **asked, trainer=trainer)


@pytest.mark.parametrize("kind", ["comparison", "advice"])
def test_python_says_what_the_command_says(kind, trainer, request, tmp_path, capsys):
    result = request.getfixturevalue(kind)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(result.as_json()))
    several = 4 if TRAINERS[trainer].rollouts else 1
    assert main(["flags", trainer, str(path), "--rollouts", str(several)]) == 0
    told = capsys.readouterr().out
    for given in (result, result.as_json(), path, str(path)):
        assert f"{odcsim.flags(trainer, given, rollouts=several)}\n" == told


def test_settings_are_those_of_the_lines(comparison, trainer):
    found = odcsim.flags(trainer, comparison)
    assert found.settings == TRAINERS[trainer].settings(found.row)
    assert found.settings
    for name in found.settings:
        assert any(line.startswith(name) for line in found.lines)


def test_a_row_is_chosen_by_its_number_or_its_name(comparison, trainer):
    best = odcsim.flags(trainer, comparison).row
    number = [row.pair for row in comparison.rows].index((best.balancer, best.way)) + 1
    assert odcsim.flags(trainer, comparison, row=number).row == best
    assert odcsim.flags(trainer, comparison, row=(best.balancer, best.way)).row == best


def test_it_is_shown_in_short(comparison, trainer):
    found = odcsim.flags(trainer, comparison)
    assert repr(found).startswith(f"<TrainerFlags: {trainer}, {found.row.way} + {found.row.balancer}: ")
    assert found._repr_html_().count("<tr>") == 1 + len(found.settings)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"trainer": "tlr"}, "unknown trainer 'tlr'; did you mean 'trl'?"),
        ({"trainer": 3}, "unknown trainer 3; known: "),
        ({"row": 0}, "row is 0; give a whole number from 1"),
        ({"row": 999}, "comparison: row=999 of "),
        ({"row": ("lb-mini", "on-demnd")}, "comparison: no row of lb-mini under on-demnd; there are "),
        ({"row": "best"}, "row is 'best'; give a whole number from 1"),
        ({"rollouts": 1.5}, "rollouts is 1.5; give a whole number from 1"),
        ({"result": 3}, "no comparison and no advice: 3; give what odcsim.compare or odcsim.advise gives"),
        ({"result": {}}, "JSON: has no rows"),
        ({"result": "nowhere.json"}, "nowhere.json: no such file"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(comparison, trainer, changes, line):
    known = {"trainer": trainer, "result": comparison} | changes
    with pytest.raises(odcsim.InputError) as refused:
        odcsim.flags(known.pop("trainer"), known.pop("result"), **known)
    assert str(refused.value).startswith(line)


def test_help_shows_every_word():
    assert list(inspect.signature(odcsim.flags).parameters) == ["trainer", "result", "row", "rollouts"]
