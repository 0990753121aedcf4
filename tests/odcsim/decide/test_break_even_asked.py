"""Where on-demand stops paying, asked in Python: the words of the command, and what it says."""

import inspect
import json

import numpy as np
import pytest

import odcsim
from odcsim.cli import main
from odcsim.decide.answer import NOTABLE

LENGTHS = np.minimum(np.random.default_rng(3).lognormal(7.7, 0.9, 1100), 8192).astype(np.int64) + 1
MODEL = "qwen2.5-1.5b"
USUAL = {"gpu": "a100", "devices": 4, "minibatch": 2, "max_tokens": 9000}


@pytest.fixture(scope="module")
def found():
    return odcsim.break_even(LENGTHS, MODEL, **USUAL)


@pytest.mark.parametrize("words", [{}, {"max_tokens": None, "recompute": "none", "seed": 1}])
def test_python_says_what_the_command_says(tmp_path, capsys, words):
    file = tmp_path / "lengths.csv"
    file.write_text("length\n" + "\n".join(map(str, LENGTHS)) + "\n")
    asked = USUAL | words
    flags = [word for n, v in asked.items() if v is not None for word in (f"--{n.replace('_', '-')}", str(v))]
    assert main(["break-even", str(file), "--model", MODEL, *flags, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert json.loads(json.dumps(odcsim.break_even(str(file), MODEL, **asked).as_json())) == told


def test_its_records_are_the_spots_of_its_curves(found):
    records = found.records()
    assert len(records) == sum(len(curve.spots) for curve in found.curves)
    for one in records:
        curve = found.curve(one["changed"])
        assert any(one["value"] == spot.value and one["lead"] == spot.lead for spot in curve.spots)
        assert one["pays"] == (None if one["lead"] is None else one["lead"] >= NOTABLE)
    assert {one["label"] for one in records if one["here"]} <= {curve.here for curve in found.curves}


def test_it_is_shown_in_short(found):
    assert repr(found).startswith("<BreakEven: qwen2.5-1.5b on 4 x a100, lengths: On-demand pays here: it is")
    assert "\n" not in repr(found)
    assert found._repr_html_().count("<tr>") == 1 + len(found.curves)


def test_where_nothing_fits_it_says_what_would():
    unfit = odcsim.break_even(LENGTHS, "llama-3.1-70b", gpu="a100", devices=2, minibatch=2)
    assert unfit.ways_out
    assert "Out of memory: what you ask about does not fit." in unfit.sentences()[1]
    assert unfit.regrets == ()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"devices": 0}, "devices is 0; give at least 1"),
        ({"gpu": None}, "neither gpu nor profile given"),
        ({"minibatch": 4, "global_batch": 16}, "minibatch=4 and global_batch=16; one says the other"),
        ({"recompute": "ful"}, "unknown recompute 'ful'; did you mean 'full'?"),
    ],
)
def test_a_wrong_word_is_refused_in_one_line(words, line):
    with pytest.raises(odcsim.InputError) as refused:
        odcsim.break_even(LENGTHS, MODEL, **USUAL | words)
    assert str(refused.value).startswith(line)


def test_what_it_does_not_take_or_have_is_named(found):
    with pytest.raises(TypeError, match=r"break_even\(\) got an unexpected keyword argument 'price': it decides that"):
        odcsim.break_even(LENGTHS, MODEL, **USUAL, price=2)
    with pytest.raises(odcsim.InputError, match=r"no curve of 'netwrk'; did you mean 'network'\?|links in a node"):
        found.curve("netwrk")


def test_help_shows_every_word():
    shown = inspect.signature(odcsim.break_even).parameters
    assert {"trace", "model", "gpu", "devices", "minibatch", "max_tokens", "sharding", "recompute"} <= set(shown)
    assert not {"minibatches", "price", "words"} & set(shown)
