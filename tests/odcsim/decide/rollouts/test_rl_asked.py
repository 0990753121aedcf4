"""A step of reinforcement learning, asked in Python: the words of the command, and what it says."""

import inspect
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import odcsim
from odcsim.cli import main

RNG = np.random.default_rng(5)
LENGTHS = np.minimum(RNG.lognormal(7.0, 0.8, 160), 6000).astype(np.int64) + 1
TRACE = odcsim.Trace("rollouts", LENGTHS, group=np.repeat(np.arange(40), 4))
MODEL = "qwen3-0.6b"
USUAL = {"gpu": "h100", "devices": 2, "prompts": 8, "rollouts": 4, "steps": 2, "max_tokens": 8000}
WORDS = st.fixed_dictionaries(
    {},
    optional={
        "updates": st.sampled_from([1, 2]),
        "forward_passes": st.integers(0, 3),
        "critic": st.booleans(),
        "generation_seconds": st.sampled_from(["3min", "90", 12.5]),
        "seed": st.integers(0, 3),
        "recompute": st.sampled_from(["full", "none"]),
        "reshard": st.just(False),
    },
)


def flags(words):
    for name, value in words.items():
        if name == "reshard":
            yield "--no-reshard"
        elif value is not False:
            yield from (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rollouts.csv"
    lines = (f"{length},{group}" for length, group in zip(TRACE.lengths, TRACE.group, strict=True))
    path.write_text("length,group\n" + "\n".join(lines) + "\n")
    return path


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=WORDS)
def test_python_says_what_the_command_says(file, capsys, words):
    asked = USUAL | words
    assert main(["rl", str(file), "--model", MODEL, *flags(asked), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert json.loads(json.dumps(odcsim.rl(str(file), MODEL, **asked).as_json())) == told


@pytest.fixture(scope="module")
def found():
    return odcsim.rl(TRACE, MODEL, **USUAL, generation_seconds=12.5)


def test_what_the_command_prints_ends_in_its_sentences(found, file, capsys):
    assert main(["rl", str(file), "--model", MODEL, *flags(USUAL | {"generation_seconds": 12.5})]) == 0
    assert "\n".join(found.sentences()) in capsys.readouterr().out


def test_lengths_without_groups_are_said_to_have_none():
    alone = odcsim.rl(LENGTHS, MODEL, **USUAL)
    assert alone.as_json()["inputs"]["grouped"] is False
    assert "No groups are known" in alone.sentences()[-1]


def test_its_records_are_its_rows(found):
    assert found.records() == found.as_json()["rows"]
    assert [found.row(one["dealt"], one["run"]).as_json() for one in found.records()] == found.records()
    assert all(not isinstance(value, dict | list) for one in found.records() for value in one.values())


def test_it_is_shown_in_short(found):
    assert repr(found).startswith("<RolloutSteps: qwen3-0.6b on 2 x h100, rollouts, 8 prompts x 4 rollouts")
    assert "\n" not in repr(found)
    assert found._repr_html_().count("<tr>") == 1 + len(found.rows)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (("lb-mini", "on-demnd"), "no row of lb-mini under on-demnd; did you mean 'on-demand'?"),
        (("packd", "collective"), "no row of packd under collective; did you mean 'packed'?"),
        (("packed", "on-demand"), "no row of packed under on-demand; packed runs under collective"),
        ((None, None), "no row of None under None; there are padded"),
    ],
)
def test_a_row_that_is_not_there_is_told_by_what_was_meant(found, row, line):
    with pytest.raises(odcsim.InputError) as refused:
        found.row(*row)
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"prompts": 0}, "prompts is 0; give a whole number from 1"),
        ({"rollouts": 2.5}, "rollouts is 2.5; give a whole number from 1"),
        ({"updates": 3}, "8 prompts x 4 rollouts do not divide into 3 updates on 2 devices"),
        ({"forward_passes": 4}, "forward_passes is 4; give a whole number from 0 to 3"),
        ({"critic": "yes"}, "critic is 'yes'; give true or false"),
        ({"generation_seconds": "long"}, "generation_seconds holds 'long': 'long' is not a time"),
        ({"generation_seconds": -1}, "generation_seconds is -1; give seconds, or a time such as 3min"),
        ({"gpu": None}, "neither gpu nor profile given"),
        ({"devices": 0}, "devices is 0; give at least 1"),
    ],
)
def test_a_wrong_word_is_refused_in_one_line(words, line):
    with pytest.raises(odcsim.InputError) as refused:
        odcsim.rl(TRACE, MODEL, **USUAL | words)
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize(
    ("word", "line"),
    [("promts", "did you mean 'prompts'?"), ("minibatch", "it decides that itself, or has no use for it")],
)
def test_a_word_that_it_does_not_take_is_named(word, line):
    with pytest.raises(TypeError) as refused:
        odcsim.rl(TRACE, MODEL, **USUAL, **{word: 4})
    assert str(refused.value) == f"rl() got an unexpected keyword argument '{word}': {line}"


def test_help_shows_every_word():
    shown = inspect.signature(odcsim.rl).parameters
    assert {"trace", "model", "prompts", "rollouts", "updates", "steps", "gpu", "profile", "recompute"} <= set(shown)
    assert not {"minibatch", "global_batch", "in_order", "words"} & set(shown)
