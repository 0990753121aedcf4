"""The recipe: what cannot be chosen is refused; flags, files and headers say the same, without anybody's help."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from odcsim import catalog, recipe_file
from odcsim import timeline as timelines
from odcsim.catalog.fits import estimate
from odcsim.cluster import cluster_of
from odcsim.cost import Cost
from odcsim.decide.asking import ask
from odcsim.errors import InputError
from odcsim.executors.simulation import Simulation
from odcsim.recipe import CHOICES, RECOMPUTE, USUAL, Recipe, fields_of, flag, flags, recipe_of
from odcsim.recipe_flags import add_recipe, chosen
from odcsim.support.command import Parser

A100, MODEL = catalog.gpu("a100"), catalog.model("r1-distill-qwen-1.5b")
ASKED = ("longalign", MODEL.name)
WORDS = (
    "--sync collective --recompute selective --sharding hybrid --attention fa3 --compile --precision fp8 --loss whole "
    "--optimizer 8bit --offload --lora 16 --copies engines --reduce bf16 --accumulate slots --dtype bfloat16"
).split()
FILE = """sync = "collective"\nrecompute = "selective"\nsharding = "hybrid"\nattention = "fa3"\ncompile = true
precision = "fp8"\nloss = "whole"\noptimizer = "8bit"\noffload = true\nlora = 16\ncopies = "engines"\nreduce = "bf16"
accumulate = "slots"\ndtype = "bfloat16"
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "recipe.toml").write_text(FILE)
    return tmp_path / "recipe.toml"


def asked(*words: object, engine: bool = True) -> Recipe:
    """What a command line asks for."""
    parser = Parser(prog="odcsim toy")
    add_recipe(parser, flags(engine=engine))
    return recipe_of(chosen(parser.parse_args([f"{word}" for word in words])))


@st.composite
def recipes(draw):
    def value(name: str):
        choice = CHOICES[name]
        if isinstance(choice.usual, bool):
            return draw(st.booleans())
        if isinstance(choice.usual, int):
            return draw(st.integers(0, 512))
        return draw(st.sampled_from(choice.values or (choice.usual, "none")))

    return recipe_of({name: value(name) for name in CHOICES})


@pytest.mark.parametrize("engine", [False, True])
@given(recipe=recipes())
def test_a_command_line_asks_for_any_recipe(engine, recipe):
    names, words = flags(engine=engine), []
    for name in names:
        value = recipe.value(name)
        if not isinstance(value, bool):
            words += [flag(name), value]
        elif value != CHOICES[name].usual:
            words.append(flag(name))
    assert asked(*words, engine=engine) == USUAL.by(**{name: recipe.value(name) for name in names})


@given(recipe=recipes())
def test_a_timeline_carries_any_recipe(recipe, timeline, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "recipe.npz"
    about = replace(timeline.about, recipe=recipe)
    steps = [replace(b, program=recipe.program(b.program.layers, b.program.microbatches)) for b in timeline.blocks]
    shape = [(len(b.program.steps), *b.asked.shape[1:]) for b in steps]
    blocks = [replace(b, asked=np.zeros(s), had=np.zeros(s)) for b, s in zip(steps, shape, strict=True)]
    timelines.write(replace(timeline, about=about, blocks=tuple(blocks)), path)
    assert timelines.read(path).about == about


def test_a_file_chooses_all_that_flags_do(file):
    ours, engines = (asked("--recipe", file, engine=engine) for engine in (False, True))
    assert engines == asked(*WORDS)
    assert (engines.kernels.stack, engines.dtype, ours.dtype) == ("compiled", "bfloat16", USUAL.dtype)
    assert ours.inputs() == engines.inputs()
    assert set(recipe_file.KEYS) == {*flags(), *flags(engine=True), "selective", "compile"}


def test_flags_win_wherever_they_stand(file):
    words = ["--lora", "0", "--stack", "plain", "--recompute", "none"]
    for found in (asked(*words, "--recipe", file), asked("--recipe", file, *words)):
        assert (found.lora, found.kernels.stack, found.recompute) == (0, "plain", "none")
        assert (found.kernels.attention, found.sync) == ("fa3", "collective")
    assert asked("--recipe", file, "--no-recompute").recompute == "none"
    assert asked("--sync", USUAL.sync) == USUAL
    file.write_text("lora = 'x'")
    for words in ([], ["--recipe", file]):
        with pytest.raises(SystemExit):
            asked(*words)


WRONG = (
    {"sync": "on-demnd"}, {"sharding": "hybird"}, {"accumulate": "lock"}, {"recompute": "no"}, {"dtype": None},
    {"lora": -1}, {"attention": "fa4"},
)  # fmt: skip


def test_what_cannot_be_chosen_is_refused(setting):
    calls = [call for words in WRONG for call in (partial(recipe_of, words), partial(ask, *ASKED, gpu="a100", **words))]
    for call in (*calls, partial(fields_of, {"selective": "some"}), partial(setting.cost.by, recompute="none")):
        with pytest.raises(InputError):
            call()
    with pytest.raises(TypeError):
        ask(*ASKED, gpu="a100", recomptue=False)


def test_a_simulation_is_by_the_costs_recipe_where_nothing_else_is_asked(setting):
    cost = setting.cost.by(sync="deferred", prefetch="none")
    assert Simulation(cost).recipe == cost.recipe
    assert Simulation(cost, "collective").recipe == replace(cost.recipe, sync="collective")
    assert Simulation(cost, prefetch="2").recipe == replace(cost.recipe, prefetch="2")
    assert replace(Simulation(cost), executor="analytic").sync == "deferred"
    hybrid = setting.cost.by(sharding="hybrid")  # on one node it runs as full, and is asked for as hybrid
    assert (hybrid.ran.sharding, hybrid.recipe.sharding) == ("full", "hybrid")
    without = Recipe(recompute="none")
    ran = Cost(MODEL, estimate(MODEL, A100, 8, without), cluster_of(A100, 8), without).ran
    assert ran == replace(without, sharding="full")


SAID = {  # by flags, those of before among them; as words of files and of Python; and as files always had it
    "full": (["--recompute", "full"], ["--selective", "no"], {"recompute": True}, {"selective": "no"}, (True, "no")),
    "operators": (["--recompute", "selective"], ["--selective", "operators"], {"selective": "operators"},
                  (True, "operators")),
    "layers": (["--selective", "layers"], {"recompute": True, "selective": "layers"}, (True, "layers")),
    "none": (["--no-recompute"], {"recompute": False}, {"recompute": False, "selective": "layers"}, (False, "no")),
}  # fmt: skip


@pytest.mark.parametrize("choice", RECOMPUTE)
def test_recompute_is_one_choice_however_it_is_said(choice):
    *ways, kept = SAID[choice]
    for said in (*ways, ["--recompute", choice], {"recompute": choice}):
        if isinstance(said, list):
            assert asked("--sync", "on-demand", *said) == Recipe(recompute=choice)
        else:
            assert recipe_of(fields_of(said)) == Recipe(recompute=choice)
    written = Recipe(recompute=choice).inputs()
    assert (written["recompute"], written["selective"]) == kept
    assert recipe_of(written) == recipe_of(Recipe(recompute=choice).header()) == Recipe(recompute=choice)


@pytest.mark.parametrize("name", [name for name, choice in CHOICES.items() if not choice.engine and choice.values])
def test_a_prediction_by_another_choice_is_told_by_its_name(name):
    """That of a kernel, too, which a recipe holds inside."""
    other = next(value for value in CHOICES[name].values if value != CHOICES[name].usual)
    assert USUAL.by(**{name: other}).differs(USUAL) == [name]
    assert USUAL.differs(USUAL) == []
    assert Recipe(lora=16, sync="collective").estimated == ["lora"]


def test_a_new_field_is_asked_for_carried_and_written_without_another_edit(tmp_path):
    question = "longalign --model r1-distill-qwen-1.5b --gpu a100 --devices 2 --minibatch 2 --minibatches 2 --toy fancy"
    out = toys.run(
        f"""
from odcsim import Simulation, ask, simulate, plan, timeline
from odcsim.cli import main
main(["balance", *"{question} --balancer lb-mini -o s.jsonl".split()])
main("simulate s.jsonl --sync collective --gpu a100 --toy fancy -o t.npz".split())
print(timeline.read("t.npz").about.header()["toy"], timeline.read("t.npz").about.recipe.toy)
setting = ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=2, minibatch=2, minibatches=2, toy="fancy")
print(Simulation(setting.cost, "collective").recipe.toy, Simulation(setting.cost, toy="plain").recipe.toy)
main(["compare", *"{question}".split()])
main(["compare", *"{question} --json".split()])
""",
        tmp_path,
    )
    lines = out.splitlines()
    assert {"fancy fancy", "fancy plain"} < set(lines)
    assert any(" in fancy dress on " in line for line in lines)
    assert json.loads("\n".join(lines[lines.index("{") :]))["inputs"]["toy"] == "fancy"
