"""A grid says what is asked by the words of the command line, and every mistake in it is one line."""

import json
import subprocess
import sys
from shutil import copytree, ignore_patterns, which

import pytest
from scripts import ROOT

import odcsim
from odcsim import InputError
from odcsim import profile as profiles
from odcsim.cli import build_parser
from odcsim.decide import calibrate
from odcsim.decide.grid import KEYS, read_grid, trace
from odcsim.decide.sweep import work
from odcsim.question import FIELDS
from odcsim.recipe import recipe_of, recipe_words

SMALL = {"trace": "uniform:min=20,max=900,samples=64", "model": "tiny", "gpu": "a100", "devices": 2, "minibatch": 2}
NO_FLAGS = {
    "output", "html", "json", "levers", "csv", "wide", "memory", "force", "help", "help_all", "cutoff",
    "sweep_max_tokens",
    "measured_tokens_per_second",  # of one run, and not of every point: 'odcsim fit' makes a profile of it
}  # fmt: skip
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip
WRONG = [SMALL | one for one in ({"cluster": "no.toml"}, {"epochs": 0}, {"balancer": "best"})]
MISSING = [{key: SMALL[key] for key in SMALL if key != missing} for missing in SMALL]


def asked(grid) -> list[dict]:
    return [dict(point.words) for point in read_grid(grid).points]


def written(path, grid, more=""):
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in grid.items()) + more)
    return path


def test_lists_are_combined_the_first_key_slowest_and_cases_are_sweeps_of_their_own_with_what_all_share():
    both = asked(SMALL | {"devices": [2, 4], "minibatch": (1, 3)})
    assert [(one["devices"], one["minibatch"]) for one in both] == [(2, 1), (2, 3), (4, 1), (4, 3)]
    cases = [{"gpu": "h100", "price": "$2.5"}, {"gpu": "a100", "devices": [2, 4]}]
    several = asked({**{k: v for k, v in SMALL.items() if k != "gpu"}, "case": cases})
    found = [(one["gpu"], one["devices"], one["price"]) for one in several]
    assert found == [("h100", 2, 2.5), ("a100", 2, None), ("a100", 4, None)]
    assert len(asked(SMALL | {"devices": [2, 4, 2]})) == 2  # a point that is said twice is one
    [one] = asked(SMALL | {"max_tokens": "16Ki", "price": "$1.3"})
    assert (one["max_tokens"], one["price"]) == (16384, 1.3)


def test_words_of_a_recipe_are_those_of_its_file(tmp_path):
    (tmp_path / "lean.toml").write_text('recompute = "none"\noptimizer = "8bit"\n')
    recipe = 'recipe = "lean.toml"\nrecompute = ["full", "none"]\ncompile = [true, false]\n'
    found = [(o["recompute"], o["stack"], o["optimizer"]) for o in asked(written(tmp_path / "a.toml", SMALL, recipe))]
    assert found == [(again, stack, "8bit") for again in (True, False) for stack in ("compiled", "tuned")]


def test_a_grid_knows_what_compare_asks_and_what_is_not_said_is_what_compare_takes():
    """All but what is about printing."""
    [commands] = [action.choices for action in build_parser()._actions if hasattr(action, "_choices_actions")]
    flags = {action.dest for action in commands["compare"]._actions} - NO_FLAGS
    assert flags <= set(KEYS)
    assert set(FIELDS) - flags == set()
    words = [SMALL["trace"], *"--model tiny --gpu a100 --devices 2 --minibatch 2".split()]
    args = build_parser().parse_args(["compare", *words])
    [one] = asked(SMALL)
    assert {name: one[name] for name in FIELDS} == {name: getattr(args, name) for name in FIELDS}
    assert {name: one[name] for name in one if name not in FIELDS} == recipe_of(recipe_words(args)).inputs()


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("length\n" + "\n".join(str(20 + 7 * i) for i in range(64)) + "\n")
    return path


def key_of(**change) -> str:
    [point] = read_grid(SMALL | change).points
    return point.key


def test_a_point_is_known_by_its_content(lengths, tmp_path):
    mine = {"trace": str(lengths)}
    before = key_of(**mine)
    assert key_of(**mine) == before
    assert before not in (key_of(**mine, price=2), key_of(**mine, sync="collective"))
    lengths.write_text(lengths.read_text().replace("20\n", "21\n"))
    assert key_of(**mine) != before
    gpu, ours = tmp_path / "ours.toml", set()
    for more in ("", "matmul_tflops = 500\n"):  # the figures behind its names
        gpu.write_text(f'like = "h100"\nmemory_gb = 96\n{more}')
        ours.add(key_of(gpu=str(gpu)))
    assert len(ours) == 2


def test_a_changed_file_makes_other_points_and_a_name_of_the_catalogue_has_no_file(tmp_path):
    """Whatever its figures come to."""
    config, cluster = tmp_path / "config.json", tmp_path / "cluster.toml"
    config.write_text(json.dumps({"model_type": "llama"} | TINY))
    cluster.write_text("devices_per_node = 2\n")
    grid = {"model": str(tmp_path), "cluster": str(cluster)}
    keys = {key_of(**grid)}
    for path in (config, cluster):
        path.write_text(f"{path.read_text()}\n")
        keys.add(key_of(**grid))
    assert len(keys) == 3


@pytest.mark.skipif(not which("git"), reason="needs git")
def test_in_a_checkout_points_are_of_a_commit_and_elsewhere_of_a_version(tmp_path):
    (tmp_path / "odcsim").symlink_to(ROOT / "odcsim")
    code = "from odcsim.decide.grid import release; print(release())"
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", "-C", str(tmp_path)]
    said = []
    for command in ("init", "commit", "commit"):
        said.append(subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True))
        more = ["--allow-empty", "-m", "a change"] if command == "commit" else []
        subprocess.run([*git, command, *more], check=True, capture_output=True)
    said.append(subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True))
    commits = subprocess.check_output([*git, "log", "--reverse", "--format=%H"], text=True).split()
    version = odcsim.__version__
    assert said == [f"{version}\n", f"{version}\n", *(f"{version} {commit}\n" for commit in commits)]


@pytest.mark.skipif(not which("git"), reason="needs git")
def test_what_a_checkout_has_changed_since_its_commit_is_another_odcsim(tmp_path):
    """Such as a rate of the catalogue, by which all figures are other ones."""
    copytree(ROOT / "odcsim", tmp_path / "odcsim", ignore=ignore_patterns("__pycache__"))
    code = "from odcsim.decide.grid import release; print(release())"
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", "-C", str(tmp_path)]
    for command in (["init"], ["add", "odcsim"], ["commit", "-m", "all"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    rates, said = tmp_path / "odcsim" / "catalog" / "gpus.toml", []
    text = rates.read_text()
    for content in (text, text.replace("[271,", "[135,"), text):
        rates.write_text(content)
        said.append(subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True))
    assert said[0] == said[2] != said[1]


def test_who_sees_another_odcsim_or_other_lengths_adds_no_row(lengths, monkeypatch):
    [point] = read_grid(SMALL | {"trace": str(lengths), "minibatches": 1, "sync": "collective"}).points
    assert work(point)
    with monkeypatch.context() as patch:
        patch.setattr("odcsim.decide.grid.release", lambda: "another")
        with pytest.raises(InputError):
            work(point)
    lengths.write_text("length\n5\n6\n7\n8\n")
    trace.cache_clear()  # as in a worker that has not read it yet
    with pytest.raises(InputError):
        work(point)


@pytest.mark.parametrize("grid", [*WRONG, *MISSING])
def test_a_mistake_is_told_in_one_line(grid):
    with pytest.raises(InputError) as error:
        read_grid(grid)
    assert "\n" not in str(error.value)


def test_a_profile_measured_by_a_trainer_holds_at_every_point(tmp_path, monkeypatch):
    """What nobody chose is as it was measured."""
    monkeypatch.chdir(tmp_path)
    run = SMALL | {"model": "qwen3-0.6b", "gpu": "h100", "minibatches": 4}
    measured = calibrate.Simulated(odcsim.ask(**run, trainer="trl"), ("native", "collective"))
    profiles.write(calibrate.by_rate(measured, 20_000.0).profile(), "mine.json")
    found = odcsim.sweep(run | {"profile": "mine.json", "balancer": "lb-mini", "sync": "on-demand"})[0]
    one = odcsim.ask(**run, profile="mine.json")
    assert found["stack"] == one.cost.recipe.kernels.stack == "plain"
    assert found["gpu_hours"] == odcsim.compare(one).row("lb-mini", "on-demand").gpu_hours


def test_files_are_looked_for_beside_the_grid(lengths, tmp_path, monkeypatch):
    where = tmp_path / "elsewhere"
    where.mkdir()
    monkeypatch.chdir(where)
    grid = read_grid(written(tmp_path / "grid.toml", SMALL | {"trace": "mine.csv"}))
    assert grid.points[0].files["trace"] == str(lengths)
    assert grid.points[0].setting().trace.size == 64
