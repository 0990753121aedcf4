"""What docs/studies/agreement.py makes of runs: errors, noise, and which alternative is the better."""

import json
from dataclasses import asdict

import pytest
from held_out import agreement, case


def test_errors_are_against_the_middle_run_and_noise_is_between_runs():
    """Of one run nobody knows the noise, and nothing is told apart."""
    one = case(1.1, (1.0, 0.9, 1.4))
    assert (one.error, one.noise) == pytest.approx((0.1, 0.4))
    assert agreement.errors([one, case(0.8, (1.0, 1.0, 1.0))])[:5] == ["2", "-5.0%", "15.0%", "19.0%", "20.0%"]
    one, other = case(1.1, (1.0,)), case(2.0, (2.0,), balancer="lb-micro")
    assert one.noise is None
    assert agreement.errors([one, other])[5:7] == ["not known", "not known"]
    assert agreement.errors([one, case(1.0, (1.0, 1.1))])[5:7] == ["9.5%", "9.5%"]
    assert agreement.row(one)[7] == "not known"
    assert agreement.ordered([one, other])[0] == 0
    assert "One run each: how much of the errors is noise is not known." in agreement.results([one])


def test_the_page_says_of_each_stage_where_and_how_often_it_ran():
    alike = [case(1.0, (1.0, 1.1, 1.2), stage=stage, machine="today, a machine") for stage in ("real", "other")]
    assert agreement.machines(alike) == ["today, a machine. The median of 3 runs counts as measured."]
    assert agreement.machines([*alike, case(1.0, (1.0,) * 5, stage="third", machine="long ago")]) == [
        "- real, other: today, a machine. The median of 3 runs counts as measured.",
        "- third: long ago. The median of 5 runs counts as measured.",
    ]


def test_the_order_counts_where_every_run_of_one_beats_every_run_of_the_other():
    cases = [
        case(1.0, (1.0, 1.1)),
        case(2.0, (2.0, 2.1), balancer="lb-micro"),  # told rightly
        case(0.9, (1.05, 1.2), balancer="sorted-slice"),  # no more than noise away from the first
        case(0.5, (3.0, 3.1), sync="on-demand"),  # told wrongly against three
    ]
    asked, right, wrong, off = agreement.ordered(cases)
    assert (asked, right, len(wrong)) == (5, 2, 3)
    assert all("on-demand + native" in line for line in wrong)
    assert off > 0.5
    one = [case(1.0, (1.0, 1.1)), case(1.0, (1.0, 1.1), draw=1)]
    other = [case(2.0, (2.0, 2.1), balancer="lb-micro"), case(2.0, (2.0, 2.1), draw=1, balancer="lb-micro")]
    assert agreement.ordered([*one, *other])[0] == 1
    unequally_often = [*one, other[0]]
    assert agreement.ordered(unequally_often)[0] == 0
    assert agreement.ordered([*unequally_often, case(2.0, (2.0,), draw=1, balancer="lb-micro")])[0] == 0


def test_the_appendix_holds_every_schedule_worst_first():
    cases = [case(1.0 + i / 100, (1.0,), draw=i) for i in range(30)]
    text = agreement.schedules(cases)
    worst = text.partition("### Worst first")[2].partition("###")[0]
    shown = [line.split("|")[7].strip() for line in worst.splitlines() if "swe" in line]
    assert shown[0] == "+29.0%"
    assert shown == sorted(shown, reverse=True)
    assert text.partition("### Every schedule")[2].count("| swe ") == 30
    assert agreement.results(cases).startswith("a test. ")


def test_cases_of_another_version_are_refused_in_a_line(tmp_path):
    path = tmp_path / "cases.json"
    assert agreement.kept(path) == []
    now = asdict(case(1.0, (1.0,)))
    path.write_text(json.dumps([now]))
    assert [found.stage for found in agreement.kept(path)] == ["real"]
    for text in (json.dumps([now | {"host": "x"}]), json.dumps([{"stage": "real"}]), "[{"):
        path.write_text(text)
        with pytest.raises(SystemExit, match=r"cases\.json"):
            agreement.kept(path)
