"""The recipe: what cannot be chosen is refused, and a choice is asked for and written down without anybody's help."""

import argparse
import json
from dataclasses import replace

import numpy as np
import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from odcsim import catalog
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


def words_for(recipe: Recipe, names: tuple[str, ...]) -> list[str]:
    """A command line that asks for the recipe."""
    words = []
    for name in names:
        value = recipe.value(name)
        if not isinstance(value, bool):
            words += [flag(name), str(value)]
        elif value != CHOICES[name].usual:
            words.append(flag(name))
    return words


@pytest.mark.parametrize("engine", [False, True])
@given(recipe=recipes())
def test_a_command_line_asks_for_any_recipe(engine, recipe):
    names = flags(engine=engine)
    parser = Parser()
    add_recipe(parser, names)
    asked = recipe_of(chosen(parser.parse_args(words_for(recipe, names))))
    assert asked == USUAL.by(**{name: recipe.value(name) for name in names})


@given(recipe=recipes())
def test_a_timeline_carries_any_recipe(recipe, timeline, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "recipe.npz"
    about = replace(timeline.about, recipe=recipe)
    steps = [replace(b, program=recipe.program(b.program.layers, b.program.microbatches)) for b in timeline.blocks]
    shape = [(len(b.program.steps), *b.asked.shape[1:]) for b in steps]
    blocks = [replace(b, asked=np.zeros(s), had=np.zeros(s)) for b, s in zip(steps, shape, strict=True)]
    timelines.write(replace(timeline, about=about, blocks=tuple(blocks)), path)
    assert timelines.read(path).about == about


def test_keys_of_a_header_and_of_inputs_are_as_ever(timeline, setting):
    header = timeline.about.header()
    assert {"sync", "prefetch", "recompute", "sharding"} < set(header) & set(CHOICES)
    asked = setting.cost.recipe.inputs()
    assert list(asked)[:2] == ["recompute", "sharding"]
    assert (asked["recompute"], asked["sharding"]) == (True, "full")
    assert replace(timeline.about, recipe=Recipe(accumulate="slots")).header()["accumulate"] == "slots"


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        ({"sync": "on-demnd"}, "unknown sync 'on-demnd'; did you mean 'on-demand'"),
        ({"sharding": "hybird"}, "unknown sharding 'hybird'; did you mean 'hybrid'"),
        ({"accumulate": "lock"}, "unknown accumulate 'lock'; did you mean 'locked'"),
        ({"recompute": "no"}, "unknown recompute 'no'; did you mean 'none'"),
        ({"dtype": None}, "dtype is None; give a value such as 'float32'"),
        ({"lora": -1}, "lora is -1; give a value such as 0"),
        ({"attention": "fa4"}, "unknown attention 'fa4'; did you mean 'fa"),
    ],
)
def test_what_cannot_be_chosen_is_refused(choice, problem):
    with pytest.raises(InputError, match=problem):
        recipe_of(choice)
    with pytest.raises(InputError, match=problem):
        ask("longalign", MODEL.name, gpu="a100", **choice)


def test_what_is_no_choice_is_nobodys_argument():
    with pytest.raises(TypeError, match="recomptue"):
        ask("longalign", MODEL.name, gpu="a100", recomptue=False)


def test_seconds_and_recipe_agree_on_recompute(setting):
    with pytest.raises(InputError, match="seconds are with recompute, the recipe is without"):
        setting.cost.by(recompute="none")
    without = Recipe(recompute="none")
    ran = Cost(MODEL, estimate(MODEL, A100, 8, without), cluster_of(A100, 8), without).ran
    assert ran == replace(without, sharding="full")


def test_a_simulation_is_by_the_costs_recipe_where_nothing_else_is_asked(setting):
    cost = setting.cost.by(sync="deferred", prefetch="none")
    assert Simulation(cost).recipe == cost.recipe
    assert Simulation(cost, "collective").recipe == replace(cost.recipe, sync="collective")
    assert Simulation(cost, prefetch="2").recipe == replace(cost.recipe, prefetch="2")
    assert replace(Simulation(cost), executor="analytic").sync == "deferred"


def test_on_one_node_hybrid_runs_as_full_and_is_asked_for_as_hybrid(setting):
    hybrid = setting.cost.by(sharding="hybrid")
    assert (hybrid.ran.sharding, hybrid.recipe.sharding) == ("full", "hybrid")


def test_every_field_says_of_itself_what_the_command_line_needs():
    for choice in CHOICES.values():
        assert choice.flag or not choice.help
        assert not choice.values or choice.usual in choice.values
        assert not choice.compared or choice.values


SAID = {  # by flags, those of before among them, and as words of files and of Python
    "full": (["--recompute", "full"], ["--selective", "no"], {"recompute": True}, {"selective": "no"}),
    "operators": (["--recompute", "selective"], ["--selective", "operators"], {"selective": "operators"}),
    "layers": (["--selective", "layers"], {"recompute": True, "selective": "layers"}),
    "none": (["--no-recompute"], {"recompute": False}, {"recompute": False, "selective": "layers"}),
}


@pytest.mark.parametrize("choice", RECOMPUTE)
def test_recompute_is_one_choice_however_it_is_said(choice):
    parser = Parser()
    add_recipe(parser, flags())
    for said in (*SAID[choice], ["--recompute", choice], {"recompute": choice}):
        if isinstance(said, list):
            words = chosen(parser.parse_args(["--sync", "on-demand", *said]))
            assert words["recompute"] == choice
        else:
            words = fields_of(said)
        assert recipe_of(words) == Recipe(recompute=choice)


@pytest.mark.parametrize("choice", RECOMPUTE)
def test_files_have_recompute_as_they_always_had(choice):
    written = Recipe(recompute=choice).inputs()
    assert (written["recompute"], written["selective"]) == {
        "full": (True, "no"), "operators": (True, "operators"), "layers": (True, "layers"), "none": (False, "no"),
    }[choice]  # fmt: skip
    assert recipe_of(written) == Recipe(recompute=choice)
    assert recipe_of(Recipe(recompute=choice).header()) == Recipe(recompute=choice)


def test_a_part_that_nobody_knows_is_refused():
    with pytest.raises(InputError, match="unknown selective 'some'"):
        fields_of({"selective": "some"})


def test_compile_is_the_compiled_stack():
    parser = Parser()
    add_recipe(parser, flags())
    assert recipe_of(chosen(parser.parse_args(["--sync", "on-demand", "--compile"]))).kernels.stack == "compiled"


def test_full_recompute_is_told_although_it_is_usual():
    """`advise` may choose less: who compares has to see which of both a table is of."""
    assert Recipe().told == " with full recompute"
    assert Recipe(lora=16).told == " with full recompute with adapters of rank 16"
    assert Recipe(recompute="none").told == " without recompute"
    assert Recipe(recompute="layers").told == " with recompute of layers alone"


def test_what_is_not_as_usual_is_told_behind_the_models_name():
    assert USUAL.by(lora=16, attention="fa3").words == " with attention by fa3 with adapters of rank 16"
    assert Recipe(lora=16, sync="collective").estimated == ["lora"]


@pytest.mark.parametrize("name", [name for name, choice in CHOICES.items() if not choice.engine and choice.values])
def test_a_prediction_by_another_choice_is_told_by_its_name(name):
    """That of a kernel, too, which a recipe holds inside."""
    other = next(value for value in CHOICES[name].values if value != CHOICES[name].usual)
    assert USUAL.by(**{name: other}).differs(USUAL) == [name]
    assert USUAL.differs(USUAL) == []


def test_a_choice_of_yes_and_no_that_is_usually_no_is_asked_for_by_its_name():
    parser = argparse.ArgumentParser()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CHOICES, "new_one", replace(CHOICES["recompute"], values=(), usual=False))
        patch.setitem(CHOICES, "number", replace(CHOICES["recompute"], values=(), usual=4))
        add_recipe(parser, ("new_one", "number"))
        assert chosen(parser.parse_args([])) == {}
        assert chosen(parser.parse_args(["--new-one", "--number", "8"])) == {"new_one": True, "number": 8}


def test_a_new_field_is_asked_for_carried_and_written_without_another_edit(tmp_path):
    asked = "longalign --model r1-distill-qwen-1.5b --gpu a100 --devices 2 --minibatch 2 --minibatches 2 --toy fancy"
    out = toys.run(
        f"""
from odcsim import Simulation, ask, simulate, plan, timeline
from odcsim.cli import main
main(["balance", *"{asked} --balancer lb-mini -o s.jsonl".split()])
main("simulate s.jsonl --sync collective --gpu a100 --toy fancy -o t.npz".split())
print(timeline.read("t.npz").about.header()["toy"], timeline.read("t.npz").about.recipe.toy)
setting = ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=2, minibatch=2, minibatches=2, toy="fancy")
print(Simulation(setting.cost, "collective").recipe.toy, Simulation(setting.cost, toy="plain").recipe.toy)
main(["compare", *"{asked}".split()])
main(["compare", *"{asked} --json".split()])
""",
        tmp_path,
    )
    lines = out.splitlines()
    assert "fancy fancy" in lines
    assert "fancy plain" in lines
    assert any(line.startswith("r1-distill-qwen-1.5b with full recompute in fancy dress on 2 x a100") for line in lines)
    assert json.loads("\n".join(lines[lines.index("{") :]))["inputs"]["toy"] == "fancy"
