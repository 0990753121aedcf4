"""A grid says what is asked by the words of the command line, and every mistake in it is one line."""

import json

import pytest

from odcsim.cli import build_parser
from odcsim.decide.sweeps import keys
from odcsim.decide.sweeps.grid import grid_of
from odcsim.decide.sweeps.keys import ALL, CASE, RECIPE, ROWS
from odcsim.decide.sweeps.point import trace
from odcsim.errors import InputError
from odcsim.question import FIELDS
from odcsim.recipe import recipe_of
from odcsim.recipe_flags import chosen

SMALL = {"trace": "uniform:min=20,max=900,samples=64", "model": "tiny", "gpu": "a100", "devices": 2, "minibatch": 2}


def asked(grid) -> list[dict]:
    return [dict(point.asked) for point in grid_of(grid).points]


def test_lists_are_combined_the_first_key_slowest():
    both = asked(SMALL | {"devices": [2, 4], "minibatch": (1, 3)})
    assert [(one["devices"], one["minibatch"]) for one in both] == [(2, 1), (2, 3), (4, 1), (4, 3)]


def test_cases_are_sweeps_of_their_own_with_what_all_share():
    cases = [{"gpu": "h100", "price": "$2.5"}, {"gpu": "a100", "devices": [2, 4]}]
    several = asked({**{k: v for k, v in SMALL.items() if k != "gpu"}, "case": cases})
    assert [(o["gpu"], o["devices"], o["price"]) for o in several] == [
        ("h100", 2, 2.5),
        ("a100", 2, None),
        ("a100", 4, None),
    ]


def test_a_point_that_is_said_twice_is_one():
    assert len(asked(SMALL | {"devices": [2, 4, 2]})) == 2


def test_numbers_are_read_as_people_write_them():
    [one] = asked(SMALL | {"max_tokens": "16Ki", "price": "$1.3"})
    assert (one["max_tokens"], one["price"]) == (16384, 1.3)


def test_words_of_a_recipe_are_those_of_its_file(tmp_path):
    (tmp_path / "lean.toml").write_text('recompute = "none"\noptimizer = "8bit"\n')
    (tmp_path / "grid.toml").write_text(
        "\n".join(f"{key} = {json.dumps(value)}" for key, value in SMALL.items())
        + '\nrecipe = "lean.toml"\nrecompute = ["full", "none"]\ncompile = [true, false]\n'
    )
    several = asked(tmp_path / "grid.toml")
    assert [(o["recompute"], o["stack"], o["optimizer"]) for o in several] == [
        (recompute, stack, "8bit") for recompute in (True, False) for stack in ("compiled", "tuned")
    ]


NO_FLAGS = {
    "output", "html", "json", "csv", "wide", "memory", "force", "help", "help_all", "cutoff", "sweep_max_tokens",
    "measured_tokens_per_second",  # of one run, and not of every point: 'odcsim fit' makes a profile of it
}  # fmt: skip


def test_a_grid_knows_what_compare_asks():
    """All but what is about printing."""
    [commands] = [action.choices for action in build_parser()._actions if hasattr(action, "_choices_actions")]
    flags = {action.dest for action in commands["compare"]._actions} - NO_FLAGS
    assert flags <= set(ALL)
    assert set(FIELDS) - flags == set()
    assert {CASE, RECIPE, *ROWS} <= set(ALL)


def test_what_is_not_said_is_what_compare_takes():
    words = [SMALL["trace"], *"--model tiny --gpu a100 --devices 2 --minibatch 2".split()]
    args = build_parser().parse_args(["compare", *words])
    [one] = asked(SMALL)
    assert {name: one[name] for name in keys.USUAL} == {name: getattr(args, name) for name in keys.USUAL}
    assert {name: one[name] for name in one if name not in keys.USUAL} == recipe_of(chosen(args)).inputs()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"devises": 2}, "grid: unknown key 'devises'; did you mean 'devices'?"),
        ({"devices": 0}, "grid: devices is 0; expected a whole number from 1 to 999999999999"),
        ({"devices": [2, "many"]}, "grid: devices[1]: 'many' is not a whole number from 1, such as 4096 or 16k"),
        ({"devices": []}, "grid: devices has no value; give one, or leave it out"),
        ({"model": "qwen3-9b"}, "grid: model: unknown model 'qwen3-9b'"),
        ({"gpu": ["a100", "h1000"]}, "grid: gpu[1]: unknown GPU 'h1000'"),
        ({"trace": "longaling"}, "grid: trace: no trace is called 'longaling'; did you mean 'longalign'"),
        ({"cluster": "no.toml"}, "grid: cluster: no.toml: no such file"),
        ({"whole": "yes"}, "grid: whole is 'yes'; expected true or false"),
        ({"price": -1}, "grid: price is -1; expected a number from 0"),
        ({"epochs": 0}, "grid: epochs is 0; expected a number above 0"),
        ({"recompute": "some"}, "grid: recompute is 'some'; one of full, operators, layers, none"),
        ({"balancer": "best"}, "grid: balancer is 'best'; one of native, "),
        ({"global_batch": 8}, "grid: both minibatch and global_batch; one says the other: leave one out"),
        ({"case": [{"sync": "collective"}]}, "grid: a case has sync; say it once, above all cases"),
        ({"case": {"gpu": "h100"}}, "grid: case is {'gpu': 'h100'}; expected a list"),
        ({"devices": list(range(1, 1002)), "seed": list(range(1000))}, "grid: has more than 1,000,000 points"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_key(change, told):
    with pytest.raises(InputError) as error:
        grid_of(SMALL | change)
    assert str(error.value).startswith(told)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", ["trace", "model", "gpu", "devices", "minibatch"])
def test_what_a_grid_must_say_is_asked_for(missing):
    with pytest.raises(InputError, match=rf"^grid: no {missing}.*; add it, as in: {missing} = "):
        grid_of({key: value for key, value in SMALL.items() if key != missing})


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("length\n" + "\n".join(str(20 + 7 * i) for i in range(64)) + "\n")
    return path


def key_of(grid) -> str:
    [point] = grid_of(grid).points
    return point.key


def test_a_point_is_known_by_its_content(lengths):
    before = key_of(SMALL | {"trace": str(lengths)})
    assert key_of(SMALL | {"trace": str(lengths)}) == before
    assert key_of(SMALL | {"trace": str(lengths), "price": 2}) != before
    assert key_of(SMALL | {"trace": str(lengths), "sync": "collective"}) != before
    lengths.write_text(lengths.read_text().replace("20\n", "21\n"))
    assert key_of(SMALL | {"trace": str(lengths)}) != before


def test_a_point_knows_the_figures_behind_its_names(tmp_path):
    (tmp_path / "ours.toml").write_text('like = "h100"\nmemory_gb = 96\n')
    grid = SMALL | {"gpu": str(tmp_path / "ours.toml")}
    before = key_of(grid)
    (tmp_path / "ours.toml").write_text('like = "h100"\nmemory_gb = 96\nmatmul_tflops = 500\n')
    assert key_of(grid) != before


def test_files_are_looked_for_beside_the_grid(lengths, tmp_path, monkeypatch):
    where = tmp_path / "elsewhere"
    where.mkdir()
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in (SMALL | {"trace": "mine.csv"}).items())
    (tmp_path / "grid.toml").write_text(text)
    monkeypatch.chdir(where)
    grid = grid_of(tmp_path / "grid.toml")
    assert grid.files == [str(lengths), "a100", "tiny"]
    assert grid.points[0].setting().trace.size == 64


def test_who_sees_another_odcsim_is_refused(monkeypatch):
    [point] = grid_of(SMALL).points
    point.check()
    monkeypatch.setattr("odcsim.decide.sweeps.point.__version__", "another")
    with pytest.raises(InputError, match="has other content on the worker; workers need the same odcsim"):
        point.check()


def test_who_sees_other_lengths_is_refused(lengths):
    [point] = grid_of(SMALL | {"trace": str(lengths)}).points
    lengths.write_text("length\n5\n6\n7\n8\n")
    trace.cache_clear()  # as in a worker that has not read it yet
    with pytest.raises(InputError, match="has other content on the worker"):
        point.check()
