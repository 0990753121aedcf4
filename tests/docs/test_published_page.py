"""docs/published.md and its appendix have every published run, keep to what was aimed at, and say what the study
computes."""

import re
from dataclasses import replace

import numpy as np
import pytest
import scripts

from odcsim.catalog.estimates.rates import FAMILY, INTERVAL, Spread, spreads, together
from odcsim.decide.calibrate import REPEAT

PAGE = (scripts.ROOT / "docs/published.md").read_text(encoding="utf-8")
RUNS = (scripts.ROOT / "docs/published-runs.md").read_text(encoding="utf-8")
STATISTICS = (scripts.ROOT / "docs/model/statistics.md").read_text(encoding="utf-8")
study, scaling = (scripts.load(f"docs/studies/{name}.py") for name in ("published", "scaling"))
NAMES = ("cells", "coefficients", "fit", "nested", "tables", "widths")
cells, coefficients, fitting, nested, tables, widths = (
    scripts.load(f"docs/studies/published_{name}.py") for name in NAMES
)
CELLS = cells.read()
STATED = [cell for cell in CELLS if cell.stated]
FEW = [cell for cell in STATED if cell.publisher in ("YaFSDP", "ATorch", "KempnerForge", "torchao")][::2]


def shown(start: str) -> list[str]:
    """The cells of the row that begins so."""
    line = next(line for line in (PAGE + RUNS).splitlines() if line.startswith(f"| {start} | "))
    return [cell.strip() for cell in line.strip("| ").split("|")]


def test_runs_left_out_are_as_near_as_they_were():
    """Averaged over sources, so that none stands for all. The aim is 8 % and 18 %, and is missed."""
    *_, median, p90, _, inside, _ = shown("its publisher left out | sources")
    assert float(median.rstrip("%")) <= 11.5
    assert float(p90.rstrip("%")) <= 20
    assert 85 <= float(inside.rstrip("%")) <= 95


def test_what_the_page_says_first_is_in_its_tables():
    said = " ".join(PAGE.partition("\n- **Step times**")[2].partition("- **The aim**")[0].split())
    *_, median, p90, _, inside, width = shown("its publisher left out | sources")
    assert f"{median} off at the median, {p90} at the 90th percentile. {inside} of the published times" in said
    assert f"a factor of {width} apart." in said
    *_, median, p90, _, inside, width = shown("its publisher left out | runs")
    assert f"{median}, {p90}, {inside} and {width}." in said
    assert f"{shown('**all runs**')[3]} off at the median over {shown('**all runs**')[1]} runs, " in PAGE
    assert f" runs, {shown('**averaged over sources**')[3]} averaged over sources;" in PAGE


def test_every_run_and_source_is_in_the_appendix_and_the_worst_is_first():
    parts = RUNS.split("## Every run")[1].split("## Every peak")[0].split("## Runs of which")
    stated, guessed = ([line for line in part.splitlines() if line.count("|") == 10][2:] for part in parts)
    assert len(stated) == len(STATED) == sum(int(shown(name)[1]) for name in cells.sources(STATED))
    assert len(guessed) == len(CELLS) - len(STATED) > 0
    for rows in (stated, guessed):
        errors = [abs(float(row.split("|")[-2].strip().rstrip("%"))) for row in rows]
        assert errors == sorted(errors, reverse=True)
    assert set(cells.SOURCES) == set(cells.sources(CELLS))
    assert [name for name, link in cells.SOURCES.items() if f"- {name}: <{link}>" not in RUNS] == []


def test_peaks_of_memory_are_as_near_as_was_aimed_at():
    found = study.published_page.peaks(CELLS)
    errors = np.array([p.error for p in found])
    assert len(errors) > 100
    assert np.median(np.abs(errors)) <= 0.10
    assert np.mean(errors < -0.10) <= 0.10
    assert [peak for peak in found if f"| {peak.estimated / 1e9:.1f} GB |" not in RUNS] == []


def test_the_closed_form_that_is_fitted_is_what_the_simulator_says():
    known = nested.Learnt(coefficients.shipped(), {})
    for cell in CELLS[::7]:
        simulated = study.predicted(cell, known).seconds
        assert known.fitted.seconds(cell) == pytest.approx(simulated, rel=0.03), cell.model.name


def test_a_row_is_what_the_study_computes():
    (cell,) = [c for c in CELLS if c.source == "YaFSDP" and c.cluster.gpus == 64 and c.sequence == 8192]
    (found,) = study.judge([cell], {"YaFSDP": study.PRIORS})
    assert found.low < found.seconds < found.high
    row = tables.runs([found]).splitlines()[-1]
    assert re.search(r"\| llama2-7b \| 64 a100 \| 1 x 1 x 8,192 \| no recompute \| 2\.29 s \|", row)


def test_a_publisher_left_out_has_no_part_in_its_own_prediction():
    """Neither in coefficients nor in widths, were its runs thrice as long."""
    times = [3 if cell.publisher == "ATorch" else 1 for cell in FEW]
    slowed = [replace(c, tokens_per_second=c.tokens_per_second / n) for c, n in zip(FEW, times, strict=True)]
    usual, other = nested.Nested(FEW), nested.Nested(slowed)
    assert usual.without("ATorch") == other.without("ATorch")
    both = usual.without(), other.without()
    assert both[0].fitted != both[1].fitted
    assert both[0].spreads != both[1].spreads


def test_nothing_is_learnt_from_what_is_in_part_a_guess_and_without_any_run_a_fit_stays_where_it_starts():
    guessed = [cell for cell in CELLS if not cell.stated]
    assert {"XTuner", "Megatron-FSDP", "torchao"} == {cell.publisher for cell in guessed}
    assert nested.Nested([*FEW, *guessed]).without() == nested.Nested(FEW).without()
    none = nested.Nested([]).without()
    assert none.fitted.values == pytest.approx(coefficients.priors().values, rel=0.04)  # rounded
    assert none.spreads == study.PRIORS.spreads == {}


@pytest.mark.parametrize("one", coefficients.COEFFICIENTS, ids=lambda one: one.name)
def test_a_coefficient_changes_no_run_that_it_is_said_not_to_touch_and_some_that_it_is(one):
    usual = coefficients.shipped()
    moved = usual.but(one.name, 1.3 * usual.values[one.name])
    changed = [cell for cell in STATED if usual.seconds(cell) != moved.seconds(cell)]
    assert changed
    assert all(map(one.touches, changed))


def test_a_fit_finds_the_coefficients_that_runs_were_made_with():
    """Of runs that differ in what the coefficient is about, with a noise of 2 %."""
    known = coefficients.shipped()
    truth = coefficients.Fitted({**known.values, "ampere matmul": 0.8, "hopper matmul": 0.9})
    rng = np.random.default_rng(0)
    some = [c for c in CELLS if c.source == "llm-foundry"][::3]
    made = [replace(c, tokens_per_second=c.tokens * c.microbatches / truth.seconds(c)) for c in some]
    times = rng.lognormal(0, 0.02, len(made))
    made = [replace(c, tokens_per_second=c.tokens_per_second * t) for c, t in zip(made, times, strict=True)]
    noisy = [replace(c, source=f"s{i % 9}") for i, c in enumerate(made)]
    found = fitting.fit(noisy)
    assert found.values["ampere matmul"] == pytest.approx(0.8, rel=0.04)
    assert found.values["hopper matmul"] == pytest.approx(0.9, rel=0.04)


@pytest.mark.slow
def test_the_catalogue_holds_what_all_publishers_decide():
    found, known = nested.Nested(CELLS).without(), coefficients.shipped().values
    assert found.fitted.values == pytest.approx(known, rel=0.03)
    assert found.spreads == spreads()


@pytest.mark.drawn(0)
@pytest.mark.slow
def test_the_page_says_what_the_study_computes():
    found = study.study(CELLS)
    stated = tables.stated(found.blind)
    for part in (tables.totals(found), tables.kinds(stated), tables.rarest(stated), tables.runs(stated)):
        assert part in PAGE + RUNS


# Widths: what made errors were drawn with is found, and a publisher's runs count as one.

(DENSE, *_) = (c for c in CELLS if widths.kinds_of(c) == ["ampere"])
ADAPTERS = replace(DENSE, recipe=DENSE.recipe.by(lora=8))


def by(publishers: int, cell):
    """One run of each of so many."""
    return [replace(cell, source=f"p{number}") for number in range(publishers)]


@pytest.mark.slow
def test_what_errors_were_drawn_with_is_found():
    rng = np.random.default_rng(1)
    runs = [*by(3000, DENSE), *by(3000, ADAPTERS)]
    errors = np.concatenate([rng.normal(0, 0.1, 3000), rng.normal(0, np.hypot(0.1, 0.2), 3000)])
    found = widths.learnt(runs, errors)
    assert found["ampere"].deviation == pytest.approx(0.1, rel=0.1)
    assert found["adapters"].deviation == pytest.approx(0.2, rel=0.1)
    assert found["ampere"].publishers == found["adapters"].publishers == 3000


def test_a_publisher_with_many_runs_counts_as_one():
    few = widths.learnt(by(2, DENSE), np.array([0.3, 0.05]))
    many = widths.learnt([run for run in by(2, DENSE) for _ in range(50)], np.repeat([0.3, 0.05], 50))
    assert few == many
    assert few["ampere"].publishers == 2
    spreads = {"ampere": Spread(0.1, 5), "adapters": Spread(0.2, 1)}  # a run is as uncertain as its kinds together
    assert widths.spread(spreads, ADAPTERS) == together(spreads, ["ampere", "adapters"]) > widths.spread(spreads, DENSE)


@pytest.mark.parametrize("off", [0.01, 0.5])
def test_the_fewer_publishers_the_nearer_to_the_start(off):
    rng = np.random.default_rng(2)
    draws = {count: rng.normal(0, off, (60, count)) for count in (1, 4, 16)}
    found = [np.mean([widths.learnt(by(count, DENSE), e)["ampere"].deviation for e in draws[count]]) for count in draws]
    away = np.abs(np.array(found) - FAMILY)
    assert (np.diff(away) > 0).all()


@pytest.mark.parametrize("tails", [3, 30])
def test_90_percent_of_runs_are_inside_whatever_the_tails(tails):
    rng = np.random.default_rng(3)
    runs, errors = by(2000, DENSE), 0.1 * rng.standard_t(tails, 2000)
    reach = INTERVAL * widths.spread(widths.learnt(runs, errors), DENSE)
    assert np.mean(np.abs(errors) < reach) == pytest.approx(0.9, abs=0.02)


# A fit to one published run holds the others of its series as often as docs/model/statistics.md says.


@pytest.mark.parametrize("source", ["ATorch 7B A100", "MaxText 70B (JAX)", "fms-acceleration foak LoRA"])
def test_runs_on_other_gpus_are_held_by_a_fit_to_one(source):
    """8 to 64 GPUs, 64 to 512 and 2 to 4: held nine times of ten, by what an estimate's interval is at most."""
    pairs = scaling.pairs([cell for cell in CELLS if cell.source == source])
    found = [one for one in pairs if {"devices"} <= set(one.differs) <= {"devices", "nodes"}]
    assert len(found) >= 20
    assert np.mean([abs(one.error) <= one.reach for one in found]) >= 0.9
    assert np.mean([one.reach for one in found]) < 1.645 * 1.1 * found[0].spread


def test_the_page_says_how_often_they_are_held():
    """Averaged over sources. The fit's own interval alone holds hardly more than half of them."""
    line = next(line for line in STATISTICS.splitlines() if line.startswith("| **all** | "))
    *_, alone, _, held, _ = (cell.strip() for cell in line.strip("| ").split("|"))
    assert 88 <= float(held.rstrip("%")) <= 98
    assert float(alone.rstrip("%")) < 60


@pytest.mark.slow
def test_the_page_on_fits_says_what_the_study_computes():
    found = scaling.pairs(CELLS)
    assert scaling.told(found) in STATISTICS
    assert scaling.repeated(found) == pytest.approx(REPEAT, rel=0.25)
