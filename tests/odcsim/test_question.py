"""A question's fields are declared once: whatever asks for them, carries or writes them follows."""

import json
from dataclasses import fields, replace

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from odcsim.decide.asking import ask, read, setting_of
from odcsim.decide.setting import Setting
from odcsim.errors import InputError
from odcsim.question import FIELDS, TERMS, Question, Values, question_of
from odcsim.support.checked import Given
from odcsim.trace import Trace

MODEL = "r1-distill-qwen-1.5b"
SMALL = {"trace": "uniform:min=20,max=900,samples=64", "model": "tiny", "gpu": "a100", "devices": 2, "minibatch": 2}


def test_a_new_field_is_asked_for_carried_and_written_without_another_edit(tmp_path):
    words = "uniform:min=20,max=900,samples=64 --model tiny --gpu a100 --devices 2 --minibatch 2 --minibatches 2"
    out = toys.run(
        f"""
import json
from odcsim import ask, compare, sweep
from odcsim.cli import main
grid = {SMALL!r} | {{"minibatches": 2, "toy": [5, "7"]}}
print([row["toy"] for row in sweep(grid | {{"balancer": "native", "sync": "collective"}})])
print(ask("longalign", "{MODEL}", gpu="a100", toy=4).toy, ask("longalign", "{MODEL}", gpu="a100").toy)
main(["compare", *"{words} --toy 6 --json".split()])
main(["break-even", *"{words.replace(" --minibatches 2", "")} --toy 6 --max-tokens 900".split()])
main(["balance", *"{words} --toy 6 --balancer lb-mini -o s.jsonl".split()])
""",
        tmp_path,
        "question",
    )
    lines = out.splitlines()
    assert lines[:2] == ["[5, 7]", "4 3"]
    told = json.JSONDecoder().raw_decode("\n".join(lines[2:]))[0]
    assert told["inputs"]["toy"] == 6


def test_a_setting_has_the_terms_of_its_question():
    terms = {"minibatches": 3, "seed": 7, "in_order": True, "whole": True, "price": 2.5, "epochs": 2.0}
    setting = ask("longalign", MODEL, gpu="a100", **terms)
    assert {name: getattr(setting, name) for name in terms} == terms
    assert setting.inputs() == {name: getattr(setting, name) for name in TERMS}
    assert {f.name for f in fields(Setting)} >= set(TERMS)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"devices": 0}, "--devices is 0"),
        ({"minibatches": -1}, "--minibatches is -1"),
        ({"price": float("inf")}, "--price is inf"),
        ({"epochs": 0}, "--epochs is 0"),
        ({"whole": "yes"}, "--whole is 'yes'"),
        ({"minibatch": 2, "global_batch": 16}, "--minibatch 2 and --global-batch 16"),
        ({"global_batch": 18, "devices": 4}, "--global-batch 18 does not divide by 4 devices"),
        ({"truncate": 0}, "--truncate is 0"),
        ({"truncate": "4q"}, "--truncate: '4q' is not a whole number from 1, such as 4096 or 16k (16,384)"),
        ({"devices": "two"}, "--devices: 'two' is not a whole number from 1, such as 4096 or 16k (16,000)"),
        ({"truncate": 4.5}, "--truncate is 4.5; give a whole number from 1"),
        ({"devices": True}, "--devices is True; give a whole number from 1"),
        ({"devices": -2}, "--devices is -2; give at least 1"),
    ],
)
def test_what_no_field_may_hold_is_refused_by_its_flag(words, told):
    with pytest.raises(InputError) as error:
        ask("longalign", MODEL, gpu="a100", **words)
    assert str(error.value).startswith(told)


def test_what_is_no_word_is_nobodys_argument():
    with pytest.raises(TypeError, match="did you mean 'minibatch'"):
        ask("longalign", MODEL, gpu="a100", minibach=2)


def test_a_global_batch_is_shared_by_the_devices():
    assert ask("longalign", MODEL, gpu="a100", devices=4, global_batch=24, max_tokens=0).minibatch == 6


def test_lengths_are_read_once_as_the_question_says(tmp_path):
    (tmp_path / "a.csv").write_text("tokens,other\n5,1\n60,2\n")
    asked = question_of({**SMALL, "trace": str(tmp_path / "a.csv"), "column": "tokens", "truncate": 30})
    once = read(asked)
    assert isinstance(once.trace, Trace)
    assert once.trace.lengths.tolist() == [5, 30]
    assert read(once) == once
    with pytest.raises(InputError, match="truncate with lengths that nobody reads"):
        setting_of(replace(once, truncate=9))


@given(number=st.integers(0, 10**13), kind=st.sampled_from([about.values for about in FIELDS.values()]))
def test_a_command_line_a_file_and_python_hold_the_same_numbers(number: int, kind: Values):
    """Whatever one of the three takes the others take, and to the same value."""
    if kind.type not in (int, float):
        return
    holds = kind.holds(number)
    for read_one in (lambda: kind.said(f"{number}"), lambda: kind.given(Given("it", number))):
        try:
            found = read_one()
        except Exception:
            assert not holds or number > 10**12 - 1
        else:
            assert holds
            assert found == number


def test_every_field_says_of_itself_what_the_command_line_needs():
    for name, about in FIELDS.items():
        assert about.help, name
        assert about.letter or about.values.type is bool or about.values.among, name
        assert about.usual is None or about.values.holds(about.usual) or name == "model"
        assert not about.stops or about.control


def test_a_question_holds_its_recipe():
    assert question_of({**SMALL, "lora": 16}).recipe.lora == 16
    assert Question(**SMALL).recipe.lora == 0


def test_columns_of_a_sweep_are_the_fields():
    from odcsim.decide.sweeps.columns import KINDS

    assert [name for name in KINDS if name in FIELDS] == list(FIELDS)
    assert all(KINDS[name] is about.values.type for name, about in FIELDS.items())
