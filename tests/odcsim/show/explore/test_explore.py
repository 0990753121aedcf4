"""The page says what the command says: by its link, in its command, in its figures."""

import json
import shlex
import subprocess
import sys
from dataclasses import replace

import plotly.graph_objects as go
import pytest

import odcsim
from odcsim import profile as profiles
from odcsim.cli import main
from odcsim.decide.break_even import draw, lead, network
from odcsim.decide.calibrate import Simulated, by_rate
from odcsim.decide.comparison import inputs
from odcsim.errors import InputError
from odcsim.recipe import recipe_of
from odcsim.say.break_even_words import sentence
from odcsim.show.explore.controls import LISTS, STOPS, TEXTS, PageQuestion, read_controls, read_link
from odcsim.show.explore.reply import break_even, chart, reply, report
from odcsim.support.numbers import dollars, hours

SOME = PageQuestion(devices=4, minibatch=2, room=1.25, price=3.5, minibatches=4)
HELD = recipe_of({"recompute": "none", "sharding": "hybrid"})
NODES = PageQuestion(
    trace="lmsys-chat", model="qwen3-8b", gpu="h100", devices=16, network=100, minibatches=4, epochs=3.0, recipe=HELD
)

READ = PageQuestion(trace="b.jsonl", column="n", truncate=900, skip_bad=True, devices=4, minibatches=4)
OTHERS = [replace(READ, trainer="accelerate"), replace(PageQuestion(), profile="p.json")]


@pytest.mark.parametrize("asked", [SOME, NODES, PageQuestion(), READ, *OTHERS])
def test_a_link_carries_all_that_is_set(asked):
    """But for what is as usual, beside the sharding; links of before hybrid was usual say what they said."""
    assert read_link(asked.search) == asked
    assert asked.search.count("=") < 12
    assert ("sharding=" in asked.search) == (asked != PageQuestion())
    bare = asked.search.partition("&sharding=")[0]
    assert read_link(bare).recipe.sharding == ("full" if bare else PageQuestion().recipe.sharding)


def test_hours_and_dollars_are_of_as_many_epochs_as_the_command_says(capsys):
    """Which change no row."""
    rows = []
    for asked in (SOME, replace(SOME, epochs=10.0)):
        assert main(shlex.split(asked.command)[1:]) == 0
        [run] = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{asked.epochs:g} epoch")]
        found = reply(asked)
        assert any(words.endswith(run) for words in found.advice)
        rows.append([r.makespan_seconds for r in found.comparison.rows])
    assert rows[0] == rows[1]


REFUSED = "devices=8&rooms=2 room=nan price=-1 epochs=4 recompute=some sharding=True skip_bad=yes truncate=few column="


def test_a_link_that_says_something_else_is_refused():
    for search in REFUSED.split():
        with pytest.raises(InputError):
            read_link(f"?{search}")


@pytest.mark.parametrize("asked", [SOME, NODES])
def test_the_command_has_the_numbers_of_the_page(asked):
    """In a shell, since a network of one's own is a file that the shell makes up."""
    command = asked.command.replace("odcsim", f"{sys.executable} -m odcsim", 1)
    done = subprocess.run(["bash", "-c", f"{command} --json"], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said["inputs"] == inputs(asked.setting)
    run = {r["row"]: r for r in said["run"]["rows"]}
    rows = {name: r | run[name] for r in said["rows"] if (name := f"{r['sync']} + {r['balancer']}")}
    head, shown = reply(asked).table
    assert head[1:] == ["idle", "GPU-hours", "dollars", "speedup", "over best collective", "memory"]
    assert len(shown) > 10
    for name, *cells, memory in shown:
        row = rows[name]
        times = [f"{row[key]:.2f}" for key in ("speedup", "speedup_best_collective")]
        assert cells == [f"{100 * row['idle']:.1f} %", hours(row["gpu_hours"]), dollars(row["dollars"]), *times]
        assert memory.startswith(f"{row['memory_bytes'] / 1e9:.0f} GB")
    anew = draw(network(asked.setting), lambda cost: lead(replace(asked.setting, cost=cost)))
    # Plans that are made once give what plans made anew for each network do.
    assert break_even(asked).endswith(f": {sentence(anew)}")
    assert break_even(asked).startswith("Links in a node, 19 to 1200 GB/s: " if asked.devices == 4 else "Network, ")


@pytest.mark.parametrize("asked", [PageQuestion(), PageQuestion(gpu="h100", devices=16, minibatch=2)])
def test_it_starts_at_the_limit_that_compare_chooses(asked, capsys):
    """However many minibatches either of them draws; for the usual question that is not the longest sample."""
    words = ["--gpu", asked.gpu, "--devices", f"{asked.devices}", "--minibatch", f"{asked.minibatch}"]
    assert main(["compare", asked.trace, "--model", asked.model, *words, "--minibatches", "12", "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)["inputs"]["max_tokens"]
    assert asked.setting.limit == chosen
    assert PageQuestion().setting.limit > PageQuestion().lengths.longest
    assert "--max-tokens" not in asked.command


def test_the_chart_holds_todays_row_against_the_chosen_one():
    """Plotly knows all that it says; it is not asked while somebody drags: that takes longer than what is drawn."""
    found, drawn = reply(SOME), chart(SOME)
    assert drawn["layout"]["title"]["text"].startswith(found.chosen)
    assert "collective + lb-micro" in drawn["layout"]["title"]["text"]
    assert len({y for bars in drawn["data"] for y in bars["y"]}) <= 16
    assert json.loads(go.Figure(drawn).to_json()) == drawn
    assert "pool" not in {name.partition(" + ")[2] for name, *_ in found.table[1]}
    assert "on-demand + pool" in report(SOME)  # which is saved


@pytest.mark.parametrize("words", [[], ["a.csv", "--column", "n"]])
def test_it_does_not_begin_with_what_it_cannot_use(words, tmp_path, monkeypatch, capsys):
    """Such as a wrong row, and without dash; what is left out is told before the page is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "werkzeug.serving", None)
    (tmp_path / "a.csv").write_text("n\n5\n0\n")
    for more, lines in ([], 1), (["--skip-bad"], 2 if words else 1):
        assert main(["explore", *words, *more, "--no-open"]) == 2
        assert capsys.readouterr().err.count("\n") == lines


def test_lengths_are_read_as_the_command_says_for_as_long_as_they_are_those(tmp_path, monkeypatch, capsys):
    """By a link as by the page, and by the command that it copies."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.jsonl").write_text('{"n": 500, "length": 7}\n{"n": null, "length": 7}\n' * 40 + '{"n": 5000}\n')
    assert (READ.lengths.size, READ.lengths.longest) == (41, 900)
    values = {name: getattr(READ, name) for name in (*TEXTS, "price")} | dict.fromkeys(STOPS, 0)
    values |= {name: among[0] for name, among in LISTS.items()}
    found, other = read_controls(values, READ), read_controls(values | {"trace": "longalign"}, READ)
    assert (found.column, found.truncate, found.skip_bad) == ("n", 900, True)
    assert (other.column, other.truncate, other.skip_bad) == (None, None, False)
    assert main([*READ.command.split()[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == inputs(READ.setting)


def test_a_page_that_is_opened_with_a_profile_has_its_seconds_and_its_recipe(tmp_path, monkeypatch):
    """In the command, and behind the controls, which have its model and GPU."""
    path = str(tmp_path / "p.json")
    run = odcsim.ask("longalign", "qwen3-0.6b", gpu="h100", devices=4, minibatch=2, minibatches=4, stack="plain")
    profiles.write(by_rate(Simulated(run, ("lb-micro", "collective")), 1000.0).profile(), path)
    found = PageQuestion(profile=path, model="qwen3-0.6b", gpu="h100", devices=4, minibatch=2, minibatches=4)
    assert replace(found.setting.cost.profile, origin="") == replace(profiles.read(path), origin="")
    assert found.setting.cost.recipe.kernels.stack == "plain"
    assert f"--profile {path}" in found.command
    with pytest.raises(InputError):
        _ = replace(found, gpu="a100").setting
    opened = []
    monkeypatch.setattr("odcsim.show.explore.serve.serve", lambda _, asked: opened.append(asked) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["explore", "--profile", path, "--no-open"])
    assert (opened[0].model, opened[0].gpu, opened[0].profile) == ("qwen3-0.6b", "h100", path)


def test_a_trainer_is_asked_for_with_its_kernels_and_ranked_first():
    asked = read_link(
        "?trace=uniform%3Amin%3D2%2Cmax%3D900%2Csamples%3D300&model=qwen3-0.6b&gpu=h100&trainer=accelerate"
    )
    assert asked.trainer == "accelerate"
    assert asked.measured.kernels.stack == "plain"
    assert "--trainer accelerate" in asked.command
    found = reply(asked)
    assert found.table[1][0][0] == found.chosen
    assert read_link("?trainer=none&sharding=usual") == PageQuestion()
