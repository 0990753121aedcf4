"""docs/uneven.md says what docs/studies/uneven.py computes, and its rules are those of the trainers."""

import re
from itertools import chain

import numpy as np
import pytest
import scripts
from hypothesis import given
from hypothesis import strategies as st

from odcsim.balance.arrival import batches
from odcsim.balance.balancer import Work

PAGE = (scripts.ROOT / "docs/uneven.md").read_text(encoding="utf-8")
study = scripts.load("docs/studies/uneven.py")
rules, written = study.rules, study.uneven_page
QUICK = "SkyRL"
LENGTHS = st.lists(st.integers(1, 1024), min_size=32, max_size=32).map(np.array)


def rows(step) -> list[int]:
    return sorted(chain.from_iterable(chain.from_iterable(step)))


@pytest.fixture(scope="module")
def quick():
    content = study.read()
    (run,) = (run for run in study.runs() if run.name == QUICK)
    (about,) = (of for of in content["runs"] if of["name"] == QUICK)
    found = study.figures(run, about["unit"], content["draws"])
    return [study._cell(entry, about, found) for entry in content["cells"] if entry["run"] == QUICK]


def test_the_page_shows_what_the_script_computes(quick):
    """Where this fails on purpose, run `make uneven` and read the difference."""
    assert quick
    for cell in quick:
        assert f"| {' | '.join(written.cell_row(cell))} |" in PAGE.splitlines()


def test_every_figure_of_the_runs_and_of_the_paper_is_on_the_page_with_its_source():
    content = study.read()
    for entry in content["cells"]:
        name = f"{entry['strategy']} (other)" if entry.get("other") else entry["strategy"]
        shown = [line for line in PAGE.splitlines() if line.startswith(f"| {entry['run']} | {name} | ")]
        assert any(f", {entry['figure']:,} " in line and line.endswith(f"| {entry['source']} |") for line in shown)
    assert all(source["url"] in PAGE for source in content["sources"].values())
    table = PAGE.split("## ODC and its port")[1]
    for entry in study.reproduce_paper.read()["cells"]:
        kind, number = entry["kind"], written.number(entry["published"], entry["kind"])
        pair = re.escape(f"| {entry['trace']} | {entry['minibatch']} | {entry['sync']} + {entry['balancer']}")
        assert re.search(rf"{pair}[^|]* \| {re.escape(f'{written.KINDS.get(kind, kind)} | {number}')} \| ", table)


def test_signs_and_points_are_of_gains_and_losses(quick):
    slow, fast = (study.Figures(100.0, figure, "tokens/s") for figure in (80.0, 150.0))
    wrong = study.Cell(quick[0].run, "", "", slow, fast, "", False)
    assert (wrong.points, wrong.sign) == (pytest.approx(70), False)
    assert study.Figures(10.0, 5.0, "s").ratio == 2
    assert [study.reproduce_paper.way(ratio) for ratio in (0.91, 0.998, 1.003, 1.01)] == [-1, 0, 0, 1]
    assert written._summed("both", [(70.0, False), (-2.0, True)]) == ("both", "2", "36", "+70", "1")


@given(LENGTHS)
def test_rules_train_on_every_sample_once(lengths):
    expected = sorted(lengths.tolist())
    assert rows(rules.in_turn(lengths, 2, 8, 2)[0]) == expected
    assert rows(rules.rebalanced(lengths, 2, 2)) == expected
    assert sorted(rules.grouped(lengths, 4).tolist()) == expected
    fitted = rules.first_fit(lengths, 2000)
    for made in (rules.within(lengths, 2000), fitted, rules.in_parts(lengths.tolist(), 5)):
        assert rows([made]) == expected
        assert all(made)
    assert all(sum(row) <= 2000 for row in fitted)
    places = rules.longest_first(lengths, 4)
    assert sorted(chain.from_iterable(places)) == list(range(32))
    assert {len(of) for of in places} == {8}
    slots = batches(Work(lengths, lengths.astype(float), 2, 10**6, each=8)).slots.nested()  # the rival's
    assert rules.in_turn(lengths, 2, 8, 2)[0] == [[[int(lengths[i]) for i in part] for part in of] for of in slots]


def test_padded_rows_are_as_long_as_their_microbatch():
    assert rules.padded([[[3, 5], [2]]]) == [[[5, 5], [2]]]
    assert rules.padded([[[3, 5], [2]]], 4) == [[[5, 5], [4]]]
    schedule = rules.schedule([[[5, 5], [2]], [[1], [7]]])
    assert schedule.lengths == (5, 5, 2, 1, 7)
    assert schedule.microbatches == (2, 2)


@pytest.mark.slow
def test_the_rules_of_transformers_are_its_own():
    torch, utils = pytest.importorskip("torch"), pytest.importorskip("transformers.trainer_pt_utils")
    for seed in range(20):
        lengths = np.clip(np.random.default_rng(seed).lognormal(5.0, 1.0, 1600), 16, 1024).astype(int)
        order = torch.randperm(1600, generator=torch.Generator().manual_seed(seed)).tolist()
        theirs = utils.get_length_grouped_indices(lengths.tolist(), 16, generator=torch.Generator().manual_seed(seed))
        assert rules.grouped(lengths[order], 16).tolist() == lengths[theirs].tolist()
        sampler = utils.BatchRebalanceSampler(lengths.tolist(), 32, 2, 2, shuffle=False)
        sums = np.zeros(2)
        for first in range(0, 1600, 32):
            part = lengths[first : first + 32]
            found = sampler._assign(list(range(32)), part.tolist())
            made = [[part[of].tolist() for of in device] for device in found], rules.rebalanced(part, 2, 2)
            sums += [sum(rows(rules.padded(step))) for step in made]
        assert sums[1] == pytest.approx(sums[0], rel=0.02)
