"""What to rent, asked in Python: the words of the command, and what it says."""

import inspect
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import odcsim
from odcsim.cli import main
from odcsim.question import FIELDS
from odcsim.recipe import ASKED, SEARCHED

LENGTHS = np.minimum(np.random.default_rng(0).lognormal(7.3, 0.9, 400), 8192).astype(np.int64) + 1
MODEL = "qwen2.5-1.5b"
USUAL = {"gpus": ["h100"], "devices": [4, 8], "global_batch": 32, "minibatches": 3}
WORDS = st.fixed_dictionaries(
    {},
    optional={
        "price": st.sampled_from([2.5, {"h100": 2.5}, "h100=$2.5", "2"]),
        "gpus": st.sampled_from([["h100"], "h100", ("h100",)]),
        "devices": st.sampled_from([4, [8, 4], "8,5"]),
        "deadline": st.sampled_from([30.0, "90s", 40]),
        "epochs": st.sampled_from([0.5, 3]),
        "seed": st.integers(0, 3),
        "truncate": st.just(4096),
        "in_order": st.booleans(),
        "trainer": st.sampled_from(["trl", "verl", "odc"]),
        "lora": st.sampled_from([0, 16]),
    },
)


def flags(words):
    """The same on a command line."""
    for name, value in words.items():
        if isinstance(value, dict):
            value = ",".join(f"{one}={of}" for one, of in value.items())
        elif isinstance(value, list | tuple):
            value = ",".join(map(str, value))
        if value is not False:
            yield from (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("length\n" + "\n".join(map(str, LENGTHS)) + "\n")
    return path


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=WORDS)
def test_python_says_what_the_command_says(file, capsys, words):
    asked = USUAL | words
    assert main(["advise", str(file), "--model", MODEL, *flags(asked), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert json.loads(json.dumps(odcsim.advise(str(file), MODEL, **asked).as_json())) == told


def test_lengths_may_be_given_themselves(file):
    read, given_ = (odcsim.advise(trace, MODEL, **USUAL) for trace in (file, LENGTHS.tolist()))
    assert [one.as_json() for one in given_.offers] == [one.as_json() for one in read.offers]
    assert given_.offers


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"gpus": []}, "gpus is []; give kinds to rent"),
        ({"gpus": 3}, "gpus is 3; give kinds to rent"),
        ({"gpus": "h10"}, "unknown GPU 'h10'; did you mean 'h100'"),
        ({"devices": 0}, "devices is 0; give a whole number from 1"),
        ({"devices": [8, 8.5]}, "devices is 8.5; give a whole number from 1"),
        ({"devices": "8,x"}, "devices holds 'x': 'x' is not a whole number"),
        ({"devices": []}, "devices is []; give numbers of GPUs"),
        ({"global_batch": None}, "global_batch is None"),
        ({"global_batch": 4000}, "global_batch=4000 and 'lengths' has 400 samples"),
        ({"deadline": 0}, "deadline is 0; give seconds, or a time such as 12h"),
        ({"deadline": "soon"}, "deadline holds 'soon': 'soon' is not a time"),
        ({"budget": 5}, "a budget without a price of h100; price h100=2.5, or no budget"),
        ({"budget": -1, "price": 2}, "budget is -1; give a number from 0"),
        ({"price": -1}, "price is -1; give a number from 0"),
        ({"price": True}, "price is True; give a number from 0"),
        ({"price": {"h100": "x"}}, "price holds 'x': 'x' is not a number from 0"),
        ({"price": {"a100": 1}}, "price of a100; give prices of h100"),
        ({"price": "h100=2,3"}, "price holds '3' beside others"),
        ({"epochs": 0}, "epochs is 0; give more than 0"),
        ({"offload": 3}, "offload is 3"),
    ],
)
def test_a_wrong_word_is_refused_in_one_line(words, line):
    with pytest.raises(odcsim.InputError) as refused:
        odcsim.advise(LENGTHS, MODEL, **USUAL | words)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("gpu", "did you mean 'gpus'?"),
        ("recompute", "it decides that itself, or has no use for it"),
        ("deadlin", "did you mean 'deadline'?"),
        ("nothing_of_it", "known: attention, budget"),
    ],
)
def test_a_word_that_it_does_not_take_is_named_with_the_one_that_was_meant(word, line):
    with pytest.raises(TypeError) as refused:
        odcsim.advise(LENGTHS, MODEL, **USUAL, **{word: "x"})
    assert str(refused.value).startswith(f"advise() got an unexpected keyword argument '{word}': {line}")


def test_help_shows_every_word():
    shown = inspect.signature(odcsim.advise).parameters
    own = {"trace", "model", "gpus", "devices", "global_batch", "price", "deadline", "budget"}
    asked = {"column", "tokenizer", "sample", "truncate", "drop_over", "cluster", "minibatches", "seed", "in_order"}
    assert set(shown) >= own | asked | {"epochs"} | (set(ASKED) - set(SEARCHED))
    assert set(shown) - own <= set(FIELDS) | set(ASKED)
    assert not set(shown) & {"gpu", "words", *SEARCHED}
    assert (shown["epochs"].default, shown["minibatches"].default) == (1.0, 96)


@pytest.mark.parametrize("value", [2.5, "two", float("inf")])
def test_only_whole_numbers_are_whole(value):
    with pytest.raises(odcsim.InputError, match=r"^devices(: 'two')? is "):
        odcsim.ask(LENGTHS, MODEL, gpu="h100", devices=value)
