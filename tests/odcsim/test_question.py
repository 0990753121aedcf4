"""A question's fields are declared once: whatever asks for them, carries, refuses or writes them follows."""

import json
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

import odcsim
from odcsim import catalog, profile
from odcsim import timeline as timelines
from odcsim.catalog.fits import estimate
from odcsim.cluster import cluster_of
from odcsim.cost import Cost
from odcsim.decide.asking import ask, read, setting_of
from odcsim.decide.setting import Setting
from odcsim.errors import InputError, in_python
from odcsim.option import Option
from odcsim.question import FIELDS, TERMS, Question, question_of
from odcsim.recipe import CHOICES, KEYS, RECOMPUTE, USUAL, Recipe, add_recipe, fields_of, flags, recipe_of, recipe_words
from odcsim.support.command import Parser
from odcsim.support.values import Given
from odcsim.trace import Trace

MODEL = "r1-distill-qwen-1.5b"
SMALL = {"trace": "uniform:min=20,max=900,samples=64", "model": "tiny", "gpu": "a100", "devices": 2, "minibatch": 2}
NAMES = st.text("abcdefgh", min_size=1, max_size=8)
NUMBERS = [about for about in FIELDS.values() if about.type in (int, float)]


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
    found = odcsim.compare(setting)
    assert found.row("lb-mini", "on-demand") in found.rows
    others = (("lb-mini", "on-demnd"), ("lb-mni", "on-demand"), ("lb-mini", "collective"), (None, 3))
    for wrong in (
        *(partial(found.row, *pair) for pair in others), partial(odcsim.compare, "longalign"),
        partial(odcsim.plan, "x", "lb-mini"), partial(odcsim.sweep_max_tokens, 3, [4096]),
        partial(odcsim.simulate, "x", None), partial(odcsim.simulate, odcsim.plan(setting, "native"), "collective"),
        partial(odcsim.sweep, None), partial(odcsim.sweep, [1, 2]), partial(odcsim.write_report, "x", "y.html"),
        partial(asked, gpu=None, profile=odcsim.Fitted(setting.cost.profile, ())),
    ):  # fmt: skip
        with pytest.raises(InputError):
            wrong()


@given(names=st.lists(NAMES, min_size=1, max_size=3), number=st.integers(0, 10**9))
def test_a_flag_is_an_argument_in_python(names, number):
    flag, name = "-".join(names), "_".join(names)
    assert in_python(f"--{flag} {number:,} is much; see --{flag}") == f"{name}={number} is much; see {name}"
    for quoted in ("see 'odcsim fit --help' for more", "'--odd' is no trace", "a-b--c", "lengths -- all of them", ""):
        assert in_python(quoted) == quoted


def test_every_file_may_be_a_path(tmp_path):
    (tmp_path / "c.toml").write_text("devices_per_node = 2\n")
    profile.write(asked().cost.profile, tmp_path / "p.json")
    found = asked(gpu=None, devices=4, profile=tmp_path / "p.json", cluster=tmp_path / "c.toml")
    assert (found.cost.profile, found.cost.cluster.nodes) == (asked().cost.profile, 2)


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


@given(number=st.integers(0, 10**13), kind=st.sampled_from(NUMBERS))
def test_a_command_line_a_file_and_python_hold_the_same_numbers(number: int, kind: Option):
    """Whatever one of the three takes the others take, and to the same value."""
    holds = kind.holds(number)
    for read_one in (lambda: kind.from_text(f"{number}"), lambda: kind.from_file(Given("it", number))):
        try:
            found = read_one()
        except Exception:
            assert not holds or number > 10**12 - 1
        else:
            assert (holds, found) == (True, number)


# The recipe

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


def by_flags(*words: object, engine: bool = True) -> Recipe:
    """What a command line asks for."""
    parser = Parser(prog="odcsim toy")
    add_recipe(parser, flags(engine=engine))
    return recipe_of(recipe_words(parser.parse_args([f"{word}" for word in words])))


@st.composite
def recipes(draw):
    by_type = {bool: st.booleans(), int: st.integers(0, 512)}
    texts = {name: st.sampled_from(choice.values or (choice.usual, "none")) for name, choice in CHOICES.items()}
    by_name = {"context": st.integers(1, 512)}  # of which there is no fewer than one
    every = {n: by_name.get(n, by_type.get(type(CHOICES[n].usual), values)) for n, values in texts.items()}
    return recipe_of({name: draw(values) for name, values in every.items()})


@pytest.mark.parametrize("engine", [False, True])
@given(recipe=recipes())
def test_a_command_line_asks_for_any_recipe(engine, recipe):
    names, words = flags(engine=engine), []
    for name in names:
        value = recipe.value(name)
        if not isinstance(value, bool):
            words += [CHOICES[name].flag, value]
        elif value != CHOICES[name].usual:
            words.append(CHOICES[name].flag)
    assert by_flags(*words, engine=engine) == USUAL.by(**{name: recipe.value(name) for name in names})


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
    ours, engines = (by_flags("--recipe", file, engine=engine) for engine in (False, True))
    assert engines == by_flags(*WORDS)
    assert (engines.kernels.stack, engines.dtype, ours.dtype) == ("compiled", "bfloat16", USUAL.dtype)
    assert ours.inputs() == engines.inputs()
    assert set(KEYS) == {*flags(), *flags(engine=True), "selective", "compile"}


def test_flags_win_wherever_they_stand(file):
    words = ["--lora", "0", "--stack", "plain", "--recompute", "none"]
    for found in (by_flags(*words, "--recipe", file), by_flags("--recipe", file, *words)):
        assert (found.lora, found.kernels.stack, found.recompute) == (0, "plain", "none")
        assert (found.kernels.attention, found.sync) == ("fa3", "collective")
    assert by_flags("--recipe", file, "--no-recompute").recompute == "none"
    assert by_flags("--sync", USUAL.sync) == USUAL
    file.write_text("lora = 'x'")
    for words in ([], ["--recipe", file]):
        with pytest.raises(SystemExit):
            by_flags(*words)


WRONG = (
    {"sync": "on-demnd"}, {"sharding": "hybird"}, {"accumulate": "lock"}, {"recompute": "no"}, {"dtype": None},
    {"lora": -1}, {"attention": "fa4"},
)  # fmt: skip


def test_what_cannot_be_chosen_is_refused(setting):
    calls = [call for words in WRONG for call in (partial(recipe_of, words), partial(asked, **words))]
    for call in (*calls, partial(fields_of, {"selective": "some"}), partial(setting.cost.by, recompute="none")):
        with pytest.raises(InputError):
            call()
    with pytest.raises(TypeError):
        asked(recomptue=False)


def test_a_cost_is_by_its_recipe_where_nothing_else_is_asked(setting):
    cost = setting.cost.by(sync="deferred", prefetch="none")
    assert cost.by(sync="collective").recipe == replace(cost.recipe, sync="collective")
    assert cost.by(prefetch="2").recipe == replace(cost.recipe, prefetch="2")
    hybrid = setting.cost.by(sharding="hybrid")  # on one node it runs as full, and is asked for as hybrid
    assert (hybrid.ran.sharding, hybrid.recipe.sharding) == ("full", "hybrid")
    model, gpu, without = catalog.model(MODEL), catalog.gpu("a100"), Recipe(recompute="none")
    ran = Cost(model, estimate(model, gpu, 8, without), cluster_of(gpu, 8), without).ran
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
            assert by_flags("--sync", "on-demand", *said) == Recipe(recompute=choice)
        else:
            assert recipe_of(fields_of(said)) == Recipe(recompute=choice)
    written = Recipe(recompute=choice).inputs()
    assert (written["recompute"], written["selective"]) == kept
    assert recipe_of(written) == recipe_of(Recipe(recompute=choice).header()) == Recipe(recompute=choice)


def test_a_prediction_by_another_choice_is_told_by_its_name():
    """That of a kernel, too, which a recipe holds inside."""
    for name, choice in CHOICES.items():
        for other in {*choice.values} - {choice.usual} if not choice.engine else ():
            assert USUAL.by(**{name: other}).differs(USUAL) == [name]
    assert (USUAL.differs(USUAL), Recipe(lora=16, sync="collective").estimated) == ([], ["lora"])


def test_a_new_choice_is_asked_for_carried_and_written_without_another_edit(tmp_path):
    question = "longalign --model r1-distill-qwen-1.5b --gpu a100 --devices 2 --minibatch 2 --minibatches 2 --toy fancy"
    out = toys.run(
        f"""
from odcsim import ask, simulate, plan, timeline
from odcsim.cli import main
main(["balance", *"{question} --balancer lb-mini -o s.jsonl".split()])
main("simulate s.jsonl --sync collective --gpu a100 --toy fancy -o t.npz".split())
print(timeline.read("t.npz").about.header()["toy"], timeline.read("t.npz").about.recipe.toy)
setting = ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=2, minibatch=2, minibatches=2, toy="fancy")
print(setting.cost.by(sync="collective").recipe.toy, setting.cost.by(toy="plain").recipe.toy)
main(["compare", *"{question}".split()])
main(["compare", *"{question} --json".split()])
""",
        tmp_path,
    )
    lines = out.splitlines()
    assert {"fancy fancy", "fancy plain"} < set(lines)
    assert any(" in fancy dress on " in line for line in lines)
    assert json.loads("\n".join(lines[lines.index("{") :]))["inputs"]["toy"] == "fancy"


@pytest.mark.parametrize("two", [2, np.int64(2), np.array(2)])
def test_whole_numbers_of_numpy_are_plain_ones_in_an_answer(two):
    """Whose JSON says them, and which an advice compares its ways by."""
    lengths = [100, 200, 3000, 500] * 20
    how = {"minibatches": two, "seed": two, "epochs": two}
    asked = ask(lengths, "tiny", gpu="a100", devices=two, minibatch=two, max_tokens=4096, price=two, **how)
    assert json.loads(json.dumps(odcsim.compare(asked).as_json()))["inputs"]["devices"] == 2
    advice = odcsim.advise(lengths, "tiny", gpus="a100", devices=2, global_batch=two, price=two, **how)
    assert json.loads(json.dumps(advice.as_json()))["inputs"]["global_batch"] == 2


@pytest.mark.parametrize("name", ["devices", "minibatch", "max_tokens", "price", "epochs", "truncate", "seed"])
def test_several_numbers_of_numpy_are_no_number(name):
    with pytest.raises(InputError, match=f"{name.replace('_', '-')} is array"):
        question_of({"trace": "longalign", name: np.array([2])})
