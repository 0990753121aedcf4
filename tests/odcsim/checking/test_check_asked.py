"""A plan checked in Python: the words of the command, what it says, and plans that are no files."""

import inspect
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import odcsim
from odcsim import schedule
from odcsim.cli import main

MICROBATCHES = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=3), min_size=1, max_size=3)
PLANS = st.lists(MICROBATCHES, min_size=2, max_size=3)
WORDS = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(1, 300),
        "sync": st.sampled_from(["collective", "on-demand", "deferred"]),
        "strict": st.booleans(),
    },
)
LENGTHS = [10 * (n + 1) for n in range(12)]


def flags(words):
    for name, value in words.items():
        if value is not False:
            yield from (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=PLANS, words=WORDS, with_lengths=st.booleans())
def test_python_says_what_the_command_says(tmp_path, capsys, plan, words, with_lengths):
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "lengths.csv").write_text("length\n" + "\n".join(map(str, LENGTHS)) + "\n")
    read, given_ = ({"lengths": of} if with_lengths else {} for of in (str(tmp_path / "lengths.csv"), LENGTHS))
    code = main(["check", str(tmp_path / "plan.json"), *flags(read | words), "--json"])
    told = json.loads(capsys.readouterr().out)
    found = odcsim.check(str(tmp_path / "plan.json"), **read, **words)
    assert json.loads(json.dumps(found.as_json())) == told
    assert code == int(not found.ok)
    assert main(["check", str(tmp_path / "plan.json"), *flags(read | words)]) == code
    assert capsys.readouterr().out.splitlines() == found.sentences()
    for form in (plan, tuple(tuple(map(tuple, device)) for device in plan)):
        alone = odcsim.check(form, **given_, **words)
        assert (alone.records(), alone.ok) == (found.records(), found.ok)


@pytest.fixture(scope="module")
def setting():
    lengths = np.random.default_rng(0).integers(100, 4000, 200)
    return odcsim.ask(lengths, "qwen3-0.6b", gpu="h100", devices=4, minibatch=4, minibatches=3, max_tokens=5000)


@pytest.mark.parametrize("balancer", ["lb-mini", "lb-micro", "pool"])
def test_schedules_are_checked_as_their_file_is(setting, balancer, tmp_path):
    made = odcsim.plan(setting, balancer)
    schedule.write(made, tmp_path / "s.jsonl")
    found, of_file = (odcsim.check(one, max_tokens=5000) for one in (made, tmp_path / "s.jsonl"))
    assert (found.records(), found.sync, found.ok) == (of_file.records(), of_file.sync, True)
    assert found.sync == ("collective" if balancer == "lb-micro" else "on-demand")
    forced = odcsim.check(made, sync="collective")
    assert forced.ok == (balancer == "lb-micro")


def test_plans_for_other_trainers_are_checked_as_they_are():
    plan = odcsim.balance.plan([5, 9, 3, 7], devices=2, max_tokens=12)
    assert odcsim.check(plan, lengths=[5, 9, 3, 7], max_tokens=12).ok
    assert not odcsim.check(plan, lengths=[5, 9, 3, 7], max_tokens=8).ok


def test_batches_in_a_row_are_dealt():
    found = odcsim.check([[0, 1], [2], [3], [4, 5]], devices=2, accumulate=2)
    assert found.summary == "1 minibatch on 2 devices, 2 microbatches each: nothing that hangs it"


def test_it_is_shown_in_short():
    found = odcsim.check([[[0], [1]], [[2]]])
    assert repr(found).startswith("<PlanCheck: plan: 1 minibatch on 2 devices, 1 to 2 microbatches each: 1 finding")
    assert "sync waits for ever" in found._repr_html_()
    assert found.records()[0]["kind"] == "counts"


@pytest.mark.parametrize(
    ("plan", "words", "line"),
    [
        ("nowhere.json", {}, "nowhere.json: no such file"),
        ([], {}, "plan: is no plan"),
        ([[[0]], [0]], {}, "plan: is no plan"),
        ([[["a"]], [[0]]], {}, "plan: a sample is 'a'"),
        ({"a": 1}, {}, "plan: has neither devices nor"),
        (3, {}, "plan: is no plan"),
        ([[[0]], [[1]]], {"sync": "on-demnd"}, "sync is 'on-demnd'; did you mean 'on-demand'?"),
        ([[[0]], [[1]]], {"devices": -1}, "devices is -1; give a whole number from 0"),
        ([[[0]], [[1]]], {"accumulate": 0}, "accumulate is 0; give a whole number from 1"),
        ([[[0]], [[1]]], {"max_tokens": 2.5}, "max_tokens is 2.5; give a whole number from 0"),
        ([[[0]], [[9]]], {"lengths": [1, 2]}, "plan: sample 9 is not among the lengths"),
        ([[[0]], [[1]]], {"lengths": [1, 0]}, "sample 1: length 0; give at least 1"),
        ([[[0]], [[1]]], {"images": "i"}, "images i without lengths"),
        ([[[0]], [[1]]], {"images": "i", "lengths": [1, 2]}, "column or images with lengths that nobody reads"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(plan, words, line):
    with pytest.raises(odcsim.InputError) as refused:
        odcsim.check(plan, **words)
    assert str(refused.value).startswith(line)
    assert "--" not in str(refused.value)


def test_help_shows_every_word():
    own = "plan lengths column skip_bad images max_tokens devices accumulate sync strict"
    assert list(inspect.signature(odcsim.check).parameters) == own.split()
