"""A question's fields are declared once: whatever asks for them, carries, refuses or writes them follows."""

import json
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from functools import partial

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

import odcsim
from odcsim import profile
from odcsim.decide.asking import ask, read, setting_of
from odcsim.decide.setting import Setting
from odcsim.errors import InputError, in_python
from odcsim.question import FIELDS, TERMS, Question, Values, question_of
from odcsim.support.checked import Given
from odcsim.trace import Trace

MODEL = "r1-distill-qwen-1.5b"
SMALL = {"trace": "uniform:min=20,max=900,samples=64", "model": "tiny", "gpu": "a100", "devices": 2, "minibatch": 2}
WORDS = st.text("abcdefgh", min_size=1, max_size=8)


def asked(**changes):
    known = {"gpu": "a100", "devices": 2, "minibatch": 2, "minibatches": 2, "max_tokens": 65536}
    return odcsim.ask("longalign", MODEL, **known | changes)


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
    assert ask("longalign", MODEL, gpu="a100", devices=4, global_batch=24, max_tokens=0).minibatch == 6
    assert question_of({**SMALL, "lora": 16}).recipe.lora == 16
    assert Question(**SMALL).recipe.lora == 0


@pytest.mark.parametrize(
    "words",
    [{"devices": 0}, {"devices": -2}, {"devices": True}, {"devices": "two"}, {"minibatches": -1}, {"epochs": 0},
     {"price": float("inf")}, {"whole": "yes"}, {"minibatch": 2, "global_batch": 16}, {"truncate": 0},
     {"minibatch": None, "global_batch": 9}, {"truncate": "4q"}, {"truncate": 4.5}, {"gpu": None},
     *({name: object()} for name in FIELDS if name not in ("trace", "model"))],
    ids=lambda words: str([*words]),
)  # fmt: skip
def test_what_no_field_may_hold_is_refused_by_its_name(words):
    with pytest.raises(InputError) as refused:
        asked(**words)
    assert [*words][-1] in str(refused.value)
    assert "--" not in str(refused.value)  # as Python has it


def test_what_is_no_word_is_nobodys_argument_and_what_another_function_makes_is_asked_for():
    setting = asked()
    for call, word in (
        (asked, "minibach"),
        (partial(odcsim.compare, setting), "pricee"),
        (partial(odcsim.compare, setting), "gpu"),
    ):
        with pytest.raises(TypeError):
            call(**{word: 1})
    for wrong in (
        partial(odcsim.compare, "longalign"), partial(odcsim.plan, "x", "lb-mini"),
        partial(odcsim.sweep_max_tokens, 3, [4096]), partial(odcsim.simulate, "x", None),
        partial(odcsim.simulate, odcsim.plan(setting, "native"), "collective"), partial(odcsim.sweep, None),
        partial(odcsim.sweep, [1, 2]), partial(odcsim.write_report, "x", "y.html"),
        partial(asked, gpu=None, profile=odcsim.Fitted(setting.cost.profile, ())),
    ):  # fmt: skip
        with pytest.raises(InputError):
            wrong()


@given(names=st.lists(WORDS, min_size=1, max_size=3), number=st.integers(0, 10**9))
def test_a_flag_is_an_argument_in_python(names, number):
    flag, name = "-".join(names), "_".join(names)
    assert in_python(f"--{flag} {number:,} is much; see --{flag}") == f"{name}={number} is much; see {name}"
    for quoted in ("see 'odcsim fit --help' for more", "'--odd' is no trace", "a-b--c", "lengths -- all of them", ""):
        assert in_python(quoted) == quoted


def test_every_file_may_be_a_path(tmp_path):
    (tmp_path / "c.toml").write_text("devices_per_node = 2\n")
    profile.write(asked().cost.profile, tmp_path / "p.json")
    found = asked(gpu=None, devices=4, profile=tmp_path / "p.json", cluster=tmp_path / "c.toml")
    assert found.cost.profile == asked().cost.profile
    assert found.cost.cluster.nodes == 2


def test_a_row_that_is_not_there_is_refused():
    found = odcsim.compare(asked())
    assert found.row("lb-mini", "on-demand") in found.rows
    for pair in (("lb-mini", "on-demnd"), ("lb-mni", "on-demand"), ("lb-mini", "collective"), (None, 3)):
        with pytest.raises(InputError):
            found.row(*pair)


def test_what_is_offered_can_be_sent_to_another_process():
    assert pickle.loads(pickle.dumps(odcsim.compare)) is odcsim.compare
    with ProcessPoolExecutor(max_workers=1) as pool:
        failed = pool.submit(odcsim.load, "longaling").exception()
    with pytest.raises(InputError) as here:
        odcsim.load("longaling")
    assert str(failed) == str(here.value)


def test_lengths_are_read_once_as_the_question_says(tmp_path):
    (tmp_path / "a.csv").write_text("tokens,other\n5,1\n60,2\n")
    question = question_of({**SMALL, "trace": str(tmp_path / "a.csv"), "column": "tokens", "truncate": 30})
    once = read(question)
    assert isinstance(once.trace, Trace)
    assert once.trace.lengths.tolist() == [5, 30]
    assert read(once) == once
    with pytest.raises(InputError):
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
