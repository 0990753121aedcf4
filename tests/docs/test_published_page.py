"""docs/published.md has every published run, keeps to what was aimed at, and says what the study computes."""

import re
from dataclasses import replace

import numpy as np
import pytest
import scripts

PAGE = (scripts.ROOT / "docs/published.md").read_text(encoding="utf-8")
study = scripts.load("docs/studies/published.py")
cells = scripts.load("docs/studies/published_cells.py")
steps = scripts.load("docs/studies/published_step.py")
fitting = scripts.load("docs/studies/published_fit.py")
CELLS = cells.read()


def shown(start: str) -> list[str]:
    """The cells of the page's row that begins so."""
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {start} | "))
    return [cell.strip() for cell in line.strip("| ").split("|")]


def test_runs_left_out_are_as_near_as_was_aimed_at():
    _, median, p90, _, _, inside = shown("source left out")
    assert float(median.rstrip("%")) <= 10
    assert float(p90.rstrip("%")) <= 25
    assert 85 <= float(inside.rstrip("%")) <= 95


def test_every_run_is_on_the_page_and_the_worst_is_first():
    rows = [line for line in PAGE.split("## Every run")[1].splitlines() if line.count("|") == 10][2:]
    assert len(rows) == len(CELLS) == sum(int(shown(name)[1]) for name in cells.sources(CELLS))
    errors = [abs(float(row.split("|")[-2].strip().rstrip("%"))) for row in rows]
    assert errors == sorted(errors, reverse=True)


def test_peaks_of_memory_are_as_near_as_was_aimed_at():
    found = study.published_page.peaks(CELLS)
    errors = np.array([p.error for p in found])
    assert len(errors) > 100
    assert np.median(np.abs(errors)) <= 0.10
    assert np.mean(errors < -0.10) <= 0.10
    for peak in found:
        assert f"| {peak.estimated / 1e9:.1f} GB |" in PAGE


def test_every_source_is_named_with_its_place():
    assert set(cells.SOURCES) == set(cells.sources(CELLS))
    for name, link in cells.SOURCES.items():
        assert f"- {name}: <{link}>" in PAGE


def test_the_closed_form_that_is_fitted_is_what_the_simulator_says():
    known = fitting.shipped()
    for cell in CELLS[::7]:
        simulated = study.predicted(cell, known)
        assert known.seconds(cell) == pytest.approx(simulated, rel=0.03), cell.model.name


def test_a_row_is_what_the_study_computes():
    (cell,) = [c for c in CELLS if c.source == "YaFSDP" and c.cluster.devices == 64 and c.sequence == 8192]
    (found,) = study.judge([cell], {"YaFSDP": fitting.shipped()}, fitting.shipped())
    assert found.low < found.seconds == found.shipped < found.high
    row = study.published_page.runs([found]).splitlines()[-1]
    assert re.search(r"\| llama2-7b \| 64 a100 \| 1 x 1 x 8,192 \| no recompute \| 2\.29 s \|", row)


def test_a_source_that_is_left_out_has_no_part_in_its_own_prediction():
    few = [replace(c, source=name) for name, c in zip("aabb", CELLS[:4], strict=True)]
    slow = [replace(c, tokens_per_second=c.tokens_per_second / 3) for c in few if c.source == "a"]
    usual, other = (fitting.left_out([*some, *few[2:]])["a"].values for some in (few[:2], slow))
    assert usual == other


def test_a_fit_finds_the_coefficients_that_runs_were_made_with():
    """Of runs that differ in what the coefficient is about, with a noise of 2 %."""
    known = fitting.shipped()
    truth = fitting.Fitted({**known.values, "ampere matmul": 0.8, "hopper matmul": 0.9})
    rng = np.random.default_rng(0)
    some = [c for c in CELLS if c.source == "llm-foundry"][::3]
    made = [replace(c, tokens_per_second=c.tokens * c.microbatches / truth.seconds(c)) for c in some]
    noisy = [
        replace(c, source=f"s{i % 9}", tokens_per_second=c.tokens_per_second * rng.lognormal(0, 0.02))
        for i, c in enumerate(made)
    ]
    found = fitting.fit(noisy)
    assert found.values["ampere matmul"] == pytest.approx(0.8, rel=0.04)
    assert found.values["hopper matmul"] == pytest.approx(0.9, rel=0.04)


@pytest.mark.slow
def test_the_catalogue_holds_what_all_sources_decide():
    found, known = fitting.fit(CELLS).values, fitting.shipped().values
    assert found == pytest.approx(known, rel=0.03)


@pytest.mark.slow
def test_the_page_says_what_the_study_computes():
    found = study.judge(CELLS, fitting.left_out(CELLS), fitting.shipped())
    assert study.published_page.summary(found) in PAGE
    assert study.published_page.runs(found) in PAGE
