"""A recipe's file says what flags say; flags win; what is wrong in it is told in one line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.recipe import CHOICES, RECOMPUTE, USUAL, Recipe, flags, recipe_of
from odcsim.recipe_file import KEYS, read
from odcsim.recipe_flags import add_recipe, chosen
from odcsim.support.command import Parser

FILE = """sync = "collective"
recompute = "selective"
sharding = "hybrid"
attention = "fa3"
compile = true
precision = "fp8"
loss = "whole"
optimizer = "8bit"
offload = true
lora = 16
copies = "engines"
reduce = "bf16"
accumulate = "slots"
dtype = "bfloat16"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(FILE)
    return path


def asked(*words: str, engine: bool = True) -> Recipe:
    parser = Parser(prog="odcsim toy")
    add_recipe(parser, flags(engine=engine))
    return recipe_of(chosen(parser.parse_args([str(word) for word in words])))


def test_a_file_chooses_all_that_flags_do(file: Path) -> None:
    words = "--sync collective --recompute selective --sharding hybrid --attention fa3 --compile --precision fp8 "
    words += "--loss whole --optimizer 8bit --offload --lora 16 --copies engines --reduce bf16 --accumulate slots"
    assert asked("--recipe", file) == asked(*words.split(), "--dtype", "bfloat16")
    assert set(KEYS) == {*flags(), *flags(engine=True), "selective", "compile"}


@pytest.mark.parametrize("first", [True, False])
def test_flags_win_wherever_they_stand(file: Path, first: bool) -> None:
    words = ["--lora", "0", "--stack", "plain", "--recompute", "none"]
    found = asked(*words, "--recipe", file) if first else asked("--recipe", file, *words)
    assert (found.lora, found.kernels.stack, found.recompute) == (0, "plain", "none")
    assert (found.kernels.attention, found.sync) == ("fa3", "collective")
    assert asked("--recipe", file, "--no-recompute").recompute == "none"


@given(st.sampled_from(sorted(RECOMPUTE)), st.sampled_from(CHOICES["attention"].values), st.integers(0, 4096))
def test_any_value_of_a_flag_is_one_of_the_file(tmp_path_factory, recompute, attention, rank):
    path = tmp_path_factory.getbasetemp() / "recipe.toml"
    path.write_text(f'recompute = "{recompute}"\nattention = "{attention}"\nlora = {rank}\n')
    assert read(path) == {"recompute": recompute, "attention": attention, "lora": rank}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('attn = "fa3"', "unknown key 'attn'; "),
        ("lora_rank = 8", "unknown key 'lora_rank'; did you mean 'lora'?"),
        ('attention = "fa4"', "attention is 'fa4'; one of usual, fa2, fa3"),
        ('recompute = "some"', "recompute is 'some'; one of full, operators, layers, none"),
        ("lora = -1", "lora is -1; expected a whole number from 0"),
        ("lora = true", "lora is True; expected a whole number from 0"),
        ("offload = 1", "offload is 1; expected true or false"),
        ("compile = 'yes'", "compile is 'yes'; expected true or false"),
        ("[recipe]\nlora = 8", "unknown key 'recipe'"),
        ("lora =", "cannot be read"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_command_line_tells_it_and_what_nothing_acts_on(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, engines = (asked("--recipe", file, engine=engine) for engine in (False, True))
    assert ours.inputs() == engines.inputs()
    assert (ours.dtype, engines.dtype) == (USUAL.dtype, "bfloat16")
    assert "odcsim toy: leaves out accumulate, dtype of" in capsys.readouterr().err
    file.write_text("lora = 'x'")
    with pytest.raises(SystemExit) as caught:
        asked("--recipe", file)
    assert caught.value.code == 2
    assert f"odcsim toy: error: {file}: lora is 'x'" in capsys.readouterr().err


def test_no_file_and_no_flag_is_as_usual() -> None:
    assert asked("--sync", USUAL.sync) == USUAL
    with pytest.raises(SystemExit):
        asked()


def test_a_comparison_is_that_of_its_flags(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('attention = "fa2"\nrecompute = "none"\nlora = 8\n')
    words = ["compare", "uniform:min=100,max=2000", "--model", "qwen3-0.6b", "--gpu", "h100", "--devices", "2"]
    words += ["--minibatch", "2", "--minibatches", "4"]
    printed = []
    for more in (["--recipe", str(file)], ["--attention", "fa2", "--recompute", "none", "--lora", "8"]):
        assert not main([*words, *more])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "without recompute with attention by fa2 with adapters of rank 8" in printed[0]
