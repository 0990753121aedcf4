"""What is refused is named as whoever asked names it: an argument in Python, a flag on a command line."""

import pickle
import re
from concurrent.futures import ProcessPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import odcsim
from odcsim import profile
from odcsim.cli import main
from odcsim.errors import in_python
from odcsim.question import FIELDS

ASKED = {"gpu": "a100", "devices": 2, "minibatch": 2, "minibatches": 2, "max_tokens": 65536}
MODEL = "r1-distill-qwen-1.5b"
WORDS = st.text("abcdefgh", min_size=1, max_size=8)


def ask(**changes):
    return odcsim.ask("longalign", MODEL, **ASKED | changes)


@pytest.fixture(scope="module")
def comparison():
    return odcsim.compare(ask())


@given(names=st.lists(WORDS, min_size=1, max_size=3), number=st.integers(0, 10**9))
def test_a_flag_is_an_argument_in_python(names, number):
    flag, name = "-".join(names), "_".join(names)
    assert in_python(f"--{flag} {number:,} is much; see --{flag}") == f"{name}={number} is much; see {name}"


@pytest.mark.parametrize(
    "text", ["see 'odcsim fit --help' for more", "'--odd' is no trace", "a-b--c", "lengths -- all of them", ""]
)
def test_what_is_quoted_stays_as_it_is(text):
    assert in_python(text) == text


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ("trace", "model")])
def test_a_wrong_field_is_named_as_in_python(name):
    with pytest.raises(odcsim.InputError, match=rf"^({name} is|unknown {name}) ") as refused:
        ask(**{name: object()})
    assert "--" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"devices": 0}, "devices is 0; give at least 1"),
        ({"recompute": "ful"}, "unknown recompute 'ful'; did you mean 'full'?"),
        ({"gpu": None}, "neither gpu nor profile given; name a GPU ('odcsim catalog list') or a profile"),
        ({"minibatch": None, "global_batch": 9}, "global_batch=9 does not divide by 2 devices; give a multiple of 2"),
    ],
)
def test_a_question_is_refused_in_one_line(changes, line):
    with pytest.raises(odcsim.InputError, match=f"^{re.escape(line)}"):
        ask(**changes)


def test_every_file_may_be_a_path(tmp_path):
    (tmp_path / "c.toml").write_text("devices_per_node = 2\n")
    profile.write(ask().cost.profile, tmp_path / "p.json")
    found = ask(gpu=None, devices=4, profile=tmp_path / "p.json", cluster=tmp_path / "c.toml")
    assert found.cost.profile == ask().cost.profile
    assert found.cost.cluster.nodes == 2


def test_the_command_line_names_the_flag(capsys):
    words = f"compare longalign --model {MODEL} --gpu a100 --devices 4 --global-batch 9"
    assert main(words.split()) == 2
    assert "error: --global-batch 9 does not divide by 4 devices" in capsys.readouterr().err


def test_schedules_are_refused_as_in_python():
    with pytest.raises(odcsim.InputError, match=r"over max_tokens=4000; .* or see truncate and drop_over$"):
        odcsim.plan(ask(max_tokens=4000), "lb-mini")


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (("lb-mini", "on-demnd"), "no row of lb-mini under on-demnd; did you mean 'on-demand'?"),
        (("lb-mni", "on-demand"), "no row of lb-mni under on-demand; did you mean 'lb-mini'?"),
        (("lb-mini", "collective"), "no row of lb-mini under collective; lb-mini runs under on-demand"),
        (("nothing", "at all"), "no row of nothing under at all; there are native (collective, deferred, on-demand)"),
        ((None, 3), "no row of None under 3; there are"),
    ],
)
def test_a_row_that_is_not_there_is_told_by_what_was_meant(comparison, row, line):
    with pytest.raises(odcsim.InputError, match=f"^{re.escape(line)}"):
        comparison.row(*row)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("pricee", "compare() got an unexpected keyword argument 'pricee': did you mean 'price'?"),
        ("gpu", "compare() got an unexpected keyword argument 'gpu': say it to ask(), of which the setting comes"),
    ],
)
def test_a_word_that_a_comparison_does_not_take(comparison, word, line):
    with pytest.raises(TypeError, match=f"^{re.escape(line)}$"):
        odcsim.compare(comparison.setting, **{word: 1})


def test_what_is_offered_can_be_sent_to_another_process():
    assert pickle.loads(pickle.dumps(odcsim.compare)) is odcsim.compare
    with ProcessPoolExecutor(max_workers=1) as pool:
        failed = pool.submit(odcsim.load, "longaling").exception()
    assert str(failed).startswith("no trace is called 'longaling'; did you mean 'longalign'")
