"""What a comparison comes to, of rows with drawn seconds and bytes, against what the words of an answer promise."""

import re
from dataclasses import replace

import numpy as np
import pytest

from odcsim import compare
from odcsim.balance import advised, named
from odcsim.decide.decision import decide
from odcsim.results import summary
from odcsim.results.intervals import apart
from odcsim.say.comparison_words import headline

GPU = 100.0  # bytes
FITS, TIGHT, OVER = range(3)


@pytest.fixture(scope="module")
def real(setting):
    """Rows to draw figures for. The seconds of its cost come with an interval."""
    return compare(replace(setting, minibatches=2))


def drawn(real, seed):
    """Seconds near each other, of which many are a little over or under what decides."""
    rng = np.random.default_rng(seed)
    steps = [0.5, 0.99, 0.995, 1.0, 1.00002, 1.005, 1.015, 1.03, 1.5]
    chances = [0.02, *[0.98 / (len(steps) - 1)] * (len(steps) - 1)]
    bytes_of = [[50.0], [50.0, 95.0], [95.0, 120.0], [50.0, 95.0, 120.0], [110.0, 120.0], [91.9, 92.1]][seed % 6]
    rows = []
    for row in real.rows:
        used = float(rng.choice(bytes_of))
        low, high = sorted(rng.choice([0.9, 0.999, 1.001, 1.1], 2).tolist())
        figures = {"makespan_seconds": float(rng.choice(steps, p=chances)), "memory_bytes": used, "memory_limit": GPU}
        rows.append(replace(row, **figures, memory_fits=used <= GPU, speedup_low=low, speedup_high=high))
    return replace(real, rows=tuple(rows), ends=ends(rng, rows))


def ends(rng, rows):
    """The same rows at both ends of the interval, or none of those without even counts."""
    middle = {row.pair: row.makespan_seconds for row in rows if named(row.balancer).even}
    low, high = ({pair: s * float(rng.choice([1, 0.98, 1.02])) for pair, s in middle.items()} for _ in range(2))
    return {pair: (low[pair], middle[pair], high[pair]) for pair in middle}


def odd(balancer):
    return getattr(balancer, "gangs", False) or getattr(balancer, "tight", False)


@pytest.fixture(scope="module", params=range(100))
def told(real, request):
    """Drawn rows, what is said of them, and all that may be chosen, with on-demand and without: what nothing runs, or
    only measured costs bear, is not."""
    found = drawn(real, request.param)
    with_it = [row for row in found.rows if row.sync == "on-demand" and not odd(named(row.balancer))]
    return found, decide(found), with_it, [row for row in found.rows if row.sync != "on-demand"]


def level(row):
    return FITS if row.memory_bytes <= 0.92 * GPU else TIGHT if row.memory_bytes <= GPU else OVER


def alike(reply):
    """Memory does not tell between them."""
    return level(reply.best) == level(reply.rival) != OVER


def roomiest(rows):
    """Those that fit, else those that are tight, else the one that needs least."""
    best = min(map(level, rows))
    if best == OVER:
        return [min(rows, key=lambda row: row.memory_bytes)]
    return [row for row in rows if level(row) == best]


def fastest(rows, reference):
    """To a ten-thousandth of the reference: of those the first that was published."""
    time = {row.pair: round(row.makespan_seconds / reference, 4) for row in rows}
    first = [row for row in rows if time[row.pair] == min(time.values())]
    return next((row for row in first if named(row.balancer).published), first[0])


def test_each_side_is_told_by_its_fastest_row_that_fits(told):
    _, reply, with_it, without = told
    assert reply.rival == fastest(roomiest(without), reply.reference.makespan_seconds)
    first = fastest(roomiest(with_it), reply.reference.makespan_seconds)
    usual = [r for r in roomiest(with_it) if r.balancer == advised("on-demand")]
    near = [r for r in usual if r.makespan_seconds <= 1.01 * first.makespan_seconds]
    assert reply.best == (near or [first])[0]


def test_on_demand_pays_where_it_leads_by_more_than_chance_or_alone_has_room(told):
    reply = told[1]
    best, rival = reply.best, reply.rival
    leads = rival.makespan_seconds / best.makespan_seconds >= 1.02 and best.speedup_low > 1
    assert reply.pays == (leads if alike(reply) else level(best) < level(rival))
    assert reply.chosen is (best if reply.pays else rival)
    assert reply.nothing_fits == (level(best) == level(rival) == OVER)


def test_the_first_words_are_whether_and_what_to_run(told):
    """Kept is the reference alone, by whom nothing that is said to be faster is: and never for what has more room."""
    reply = told[1]
    words = headline(reply)
    if reply.nothing_fits:
        assert words.startswith("Out of memory")
        return
    pays, verb, name = re.match(r"(Yes|No): (run|keep) ([^,;]+)", words).groups()
    assert (pays == "Yes") == reply.pays
    if verb == "run":
        assert name == reply.chosen.name
        return
    assert name == reply.reference.name
    assert reply.chosen is reply.reference or (round(reply.chosen.speedup, 2) == 1 and not reply.pays)
    assert level(reply.chosen) == level(reply.reference)


def test_a_flip_is_where_an_end_of_the_interval_says_otherwise(told):
    found, reply, with_it, without = told
    at = []
    for seconds in ({pair: of[end] for pair, of in found.ends.items()} for end in range(3)):
        sides = (roomiest(without), roomiest(with_it))
        times = [[seconds[row.pair] for row in rows if row.pair in seconds] for rows in sides]
        at.append(min(times[0]) / min(times[1]) if all(times) else None)
    if not alike(reply) or at[1] is None or (at[1] >= 1.02) != reply.pays:
        assert reply.flips is None
        return
    profile = found.setting.cost.profile
    other = [(f, lead) for f, lead in ((profile.low, at[0]), (profile.high, at[2])) if (lead >= 1.02) != reply.pays]
    assert (reply.flips and (reply.flips.factor, reply.flips.lead)) == (other[0] if other else None)


def test_what_memory_keeps_out_is_the_fastest_that_would_be_notably_faster(told):
    _, reply, *sides = told
    out = []
    for chosen, rows in zip((reply.best, reply.rival), sides, strict=True):
        fuller = [row for row in rows if level(row) > level(chosen)]
        first = min(fuller, key=lambda row: row.makespan_seconds, default=None)
        if first is None or first.makespan_seconds * 1.02 > chosen.makespan_seconds:
            continue
        if chosen is reply.best or not reply.pays or first.makespan_seconds < 1.02 * reply.best.makespan_seconds:
            out.append((chosen, first))
    assert list(reply.kept_out) == out


@pytest.mark.parametrize("seed", range(20))
def test_the_best_collective_is_the_fastest_of_those_with_most_room(real, seed):
    found, rng = drawn(real, seed), np.random.default_rng(seed)
    total = {row.pair: rng.uniform(1, 2) for row in found.rows}
    collective = [row for row in found.rows if row.sync == "collective"]
    best = min(total[row.pair] for row in collective if level(row) == min(map(level, collective)))
    for row in summary.compared(found.rows, [np.array([seconds]) for seconds in total.values()], apart(1)):
        assert row.speedup_best_collective == pytest.approx(best / total[row.pair])
