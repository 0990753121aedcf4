"""Runs whose causes are known: the cause is named with its size, and no other one is.

What a cause cost is what running again without it says.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import watches
from hypothesis import given, settings
from hypothesis import strategies as st
from seen_runs import OWN, Known, drawn, run_of_known

from odcsim import catalog, simulate
from odcsim.balance import balance
from odcsim.cluster import Cluster, cluster_of, read_cluster
from odcsim.cost import Cost
from odcsim.decide.diagnosis.breakdown import break_down
from odcsim.decide.diagnosis.outcome import PARTS
from odcsim.observed.run_files import read
from odcsim.observed.timelines import run_of
from odcsim.profile import Polynomial, Profile
from odcsim.results.metrics import usage
from odcsim.schedule import Header, Schedule, ScheduleFile

CAUSES = tuple(OWN)
TOLD = ("lengths", "kernels", "nothing")
WAITING = ("lengths", "device", "loader", "collector", "launch", "stages", "bubble", "untold")
POINTS = 0.02
HELD = st.lists(st.integers(100, 4000), min_size=2, max_size=2)
LENGTHS = st.lists(st.lists(HELD, min_size=3, max_size=3), min_size=6, max_size=6)
MODEL = catalog.model("qwen2.5-0.5b")
PROFILE = Profile(
    model=MODEL.name, gpu="a100", fidelity="calibrated", origin="a test",
    forward=Polynomial(1e-5, 1e-7, 2e-12), backward=Polynomial(2e-5, 2e-7, 4e-12), head=Polynomial(0.0, 4e-7),
    embed=Polynomial(0.0, 5e-8), overhead=1e-4, optimizer=2e-3, publish=1e-4,
)  # fmt: skip
PLAIN = cluster_of(catalog.gpu("a100"), 4)
SYNCS = ("collective", "deferred", "on-demand")
SLOW, LINKS, JITTER = "[slow]\n2 = 1.25\n", "link_share = 0.1\n", "jitter = 0.05\n"
CLUSTERS = {"lengths": "", "device": SLOW, "transfer": LINKS, "untold": JITTER, "": ""}


def seconds(known: Known) -> float:
    """Of all steps together."""
    steps = run_of_known(known).steps
    return float(max(t.edges[-1] for t in steps[-1].tracks) - min(t.edges[0] for t in steps[0].tracks))


def lost(known: Known, cause: str) -> float:
    """What a run without the cause saves. Of a slow device others lose what it takes longer; it computes."""
    ranks = len(known.pace)
    share = (ranks - 1) / ranks if cause == "device" else 1.0
    return share * (seconds(known) - seconds(known.without(cause)))


@pytest.mark.parametrize("told", TOLD)
def test_of_runs_with_one_cause_none_is_taken_for_another(told):
    """The table of wrong causes: 42 runs for each of what may be known, seven kinds, none among them."""
    named: Counter[tuple[str, str]] = Counter()
    for number in range(42):
        cause = [*CAUSES, ""][number % 7]
        rng = np.random.default_rng(number)
        known = drawn(rng, {cause} - {""}, ranks=int(rng.integers(2, 9)))
        found = break_down(run_of_known(known, told=told))
        largest = max(PARTS, key=lambda name: found.share(name) * (name not in ("compute", "padding")))
        named[cause, largest if found.share(largest) >= 0.01 else ""] += 1
        others = {name: found.share(name) for name in WAITING if name != cause}
        assert all(share < 0.01 for share in others.values()), (number, cause, others)
        if cause:
            before = 0.0 if cause != "transfer" else found.share("transfer") - lost(known, cause) / seconds(known)
            assert found.share(cause) - before == pytest.approx(lost(known, cause) / seconds(known), abs=POINTS)
    assert {pair: count for pair, count in named.items() if pair[0] != pair[1]} == {}
    assert sum(named.values()) == 42


@pytest.mark.drawn(6)
@pytest.mark.parametrize("seed", range(12))
def test_of_several_causes_each_has_between_what_it_adds_to_none_and_what_it_adds_to_all_others(seed):
    """Who waits for two at once waits for the longer one, so what a cause costs hangs on which others there are."""
    rng = np.random.default_rng(seed)
    causes = CAUSES if seed % 2 else rng.choice(CAUSES, size=rng.integers(2, 5), replace=False).tolist()
    known = replace(drawn(rng, set(causes), ranks=int(rng.integers(2, 9))), jitter=1.0)
    none = known
    for cause in causes:
        none = none.without(cause)
    for told in ("lengths", "kernels"):
        found = break_down(run_of_known(known, told=told))
        for cause in causes:
            alone = replace(none, **{OWN[cause]: getattr(known, OWN[cause])})
            low, high = sorted((lost(alone, cause), lost(known, cause)))
            assert low / seconds(known) - POINTS <= found.share(cause) <= high / seconds(known) + POINTS
        assert sum(found.share(name) for name in WAITING if name not in causes) < 0.01


@pytest.mark.parametrize("seed", range(4))
def test_one_rank_that_has_all_causes_is_named_for_each(seed):
    """Then they add up, so that leaving one out says exactly what it cost."""
    rng = np.random.default_rng(seed)
    steps, ranks, worst = 12, 4, int(rng.integers(4))
    lengths = rng.integers(4000, 6000, (steps, ranks, 3))
    lengths[:, worst] = rng.integers(4000, 14000, (steps, 3))
    only = np.zeros((steps, ranks))
    only[:, worst] = 1.0
    pace = np.ones(ranks)
    pace[worst] = 1.3
    known = Known(lengths, pace, 0.05 * only, 0.03 * only, 0.003 * only)
    found = break_down(run_of_known(known))
    [rank] = [rank for rank in found.ranks if rank.pace > 1]
    assert rank.rank == worst
    assert rank.pace == pytest.approx(1.3, abs=0.01)
    for cause in ("loader", "collector"):
        assert found.share(cause) == pytest.approx(lost(known, cause) / seconds(known), abs=1e-3)
    alike = known.without("device")
    expected = lost(known, "device") + seconds(alike) - seconds(alike.without("lengths"))
    both = found.share("lengths") + found.share("device")
    assert both == pytest.approx(expected / seconds(known), abs=POINTS)
    waited = {r.rank: r.caused for r in found.ranks}
    assert sum(of for r, of in waited.items() if r != worst) < 0.01 * waited[worst]
    assert all(late.rank == worst for late in found.late)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("seen", [(1,), (0, 3), (0, 1, 2, 4)])
def test_of_some_ranks_what_they_waited_for_others_is_untold_and_the_rest_as_before(seed, seen):
    rng = np.random.default_rng(seed)
    known = drawn(rng, {"lengths", "loader", "transfer"} if seed % 2 else {"lengths", "device"}, ranks=5)
    every, some = break_down(run_of_known(known)), break_down(run_of_known(known, seen=seen))
    before = {rank.rank: rank for rank in every.ranks}
    assert [rank.rank for rank in some.ranks] == [*seen]
    for rank in some.ranks:
        assert rank.waiting == pytest.approx(before[rank.rank].waiting, abs=0.01)
        assert rank.compute == pytest.approx(before[rank.rank].compute, abs=0.01)
    assert some.share("transfer") == pytest.approx(every.share("transfer"), abs=0.01)
    assert some.share("untold") > every.share("untold")
    missing = ", ".join(str(rank) for rank in range(5) if rank not in seen)
    assert any(missing in line for line in some.cannot)
    if len(seen) == 1:
        assert some.share("lengths") == some.share("device") == 0.0


def test_the_interval_over_steps_holds_the_share_of_a_longer_run():
    """Of 90 % intervals from 10 steps each, about nine in ten hold what 400 steps come to."""
    run = run_of_known(drawn(np.random.default_rng(5), {"lengths"}, ranks=4, steps=400))
    truth, inside = break_down(run).share("lengths"), 0
    for first in range(0, 400, 10):
        parts = break_down(replace(run, steps=run.steps[first : first + 10])).parts
        [part] = [part for part in parts if part.name == "lengths"]
        assert part.low < part.share < part.high
        inside += part.low <= truth <= part.high
    assert 0.8 * 40 <= inside <= 40
    one = break_down(replace(run, steps=run.steps[:1]))
    assert all(part.low == part.share == part.high for part in one.parts)
    assert one.cannot


def test_where_nothing_is_lost_all_is_compute():
    known = Known(np.full((8, 4, 3), 6000), np.ones(4), *(np.zeros((8, 4)) for _ in range(3)), bytes=0.0)
    found = break_down(run_of_known(known))
    assert (found.share("compute"), found.cannot) == (pytest.approx(1.0), ())


@settings(max_examples=40)
@given(st.integers(2, 5), st.integers(0, 2**16), st.sampled_from([0.0, 0.05, 0.5]), st.booleans())
def test_lengths_are_no_cause_where_all_ranks_hold_the_same(ranks, seed, noise, deferred):
    """Whatever else keeps them waiting, and however long equal work takes: known by lengths, by law."""
    rng = np.random.default_rng(seed)
    known = drawn(rng, set(rng.permutation(CAUSES)[:3].tolist()), ranks, steps=5, count=3)
    lengths = np.repeat(rng.integers(500, 9000, (5, 1, 3)), ranks, axis=1)
    known = replace(known, lengths=lengths, jitter=np.exp(rng.normal(0, noise, lengths.shape)))
    run = replace(run_of_known(known), sync="deferred" if deferred else "collective")
    assert break_down(run).share("lengths") == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_lengths_of_another_run_are_doubted_and_its_own_are_not(seed):
    rng = np.random.default_rng(seed)
    run = run_of_known(drawn(rng, {"lengths", "device"}, ranks=4))
    own = set(break_down(run).cannot)
    for least in (8999, 500):
        steps = []
        for step in run.steps:
            others = rng.integers(least, 9000, len(step.microbatches)).tolist()
            ran = zip(step.microbatches, others, strict=True)
            steps.append(replace(step, microbatches=tuple(replace(m, lengths=(other,)) for m, other in ran)))
        assert set(break_down(replace(run, steps=tuple(steps))).cannot) - own


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")

    def diagnosed(lengths, **injected):
        run = read([str(path) for path in watches.wrote(folder, watches.met(lengths, **injected))])
        return {part.name: part for part in break_down(run).parts}

    return diagnosed


def waited(lengths):
    """Seconds that ranks wait for the longest, on average over ranks and steps."""
    held = np.array(lengths) / 1000
    return float((held.max(axis=1, keepdims=True) - held).mean(axis=(0, 1)).sum())


@settings(max_examples=20)
@given(lengths=LENGTHS, loader=st.floats(0.01, 2), collector=st.floats(0.01, 2), told=st.booleans())
def test_uneven_lengths_loader_and_collector_have_their_seconds(watched, lengths, loader, collector, told):
    found = watched(lengths, loader=loader, collector=collector, told=told)
    assert found["loader"].seconds == pytest.approx(loader, abs=1e-4)
    assert found["collector"].seconds == pytest.approx(collector, abs=1e-4)
    if told:
        waits = found["lengths"].seconds + found["device"].seconds + found["untold"].seconds
        assert waits == pytest.approx(waited(lengths), abs=1e-3)


def test_lengths_are_named_whether_waiting_is_told_or_not_and_a_slow_rank_where_it_is(watched):
    lengths = np.random.default_rng(0).integers(200, 4000, (12, 4, 3)).tolist()
    for told in (True, False):
        assert watched(lengths, told=told)["lengths"].seconds == pytest.approx(waited(lengths), rel=0.02)
    found = watched(np.full((8, 4, 2), 2000).tolist(), slow=[(2, 1.5)])
    assert found["device"].seconds == pytest.approx(2 * 1.0 * 3 / 4, rel=0.05)
    assert found["lengths"].seconds < 0.01


@pytest.mark.parametrize(("ranks", "transfer"), [(1, 0.0), (2, 1.0)])
def test_of_one_rank_of_several_transfers_are_the_least_that_it_was_blocked(tmp_path, ranks, transfer):
    ran = [watches.ran(0, 4.0, [500], 3.0), watches.ran(4.0, 2.0, [500], 0.5)]
    rows = [[watches.step(n, ran, seconds=6.0) for n in range(6)]] * ranks
    found = break_down(read([str(watches.wrote(tmp_path, rows)[0])]))
    assert found.share("transfer") == pytest.approx(transfer / 6)
    assert found.share("untold") == pytest.approx((3.5 - transfer) / 6)
    assert found.share("compute") == pytest.approx(2.5 / 6)
    assert found.cannot


def samples(kind: str, seed: int = 0) -> ScheduleFile:
    """Twelve minibatches of four devices and three samples each: alike, or not."""
    rng, schedules = np.random.default_rng(seed), []
    for _ in range(12):
        drawn = np.clip(rng.lognormal(9.6, 0.8, 12), 1000, 60000).astype(int)
        lengths = np.full(12, 24000) if kind == "even" else drawn
        devices = balance("native", lengths, lengths.astype(float), 4, 60000)
        schedules.append(Schedule.of(tuple(lengths.tolist()), devices))
    return ScheduleFile(Header("native", MODEL.name, "a test", 60000, 4), tuple(schedules)).sealed()


def simulated(sync: str, file: ScheduleFile, cluster: Cluster):
    """What usage says of it, and what is found."""
    line = simulate(file, Cost(MODEL, PROFILE, cluster).by(sync=sync))
    return usage(line), break_down(run_of(line, file))


@pytest.fixture
def clusters(tmp_path):
    def read(*causes: str) -> Cluster:
        keys = sorted((CLUSTERS[cause] for cause in causes), key=lambda text: text.startswith("["))
        path = tmp_path / "cluster.toml"
        path.write_text("".join(keys), encoding="utf-8")
        return read_cluster(path, PLAIN)

    return read


@pytest.mark.parametrize("sync", SYNCS)
def test_parts_are_what_usage_says_of_the_timeline(sync, clusters):
    """But for bytes that move while nobody but the last to come is at work: usage calls them a gather or a push, and
    they wait for who came last."""
    used, told = simulated(sync, samples("uneven"), clusters("device", "untold"))
    parts = used.idle_parts()
    assert told.seconds == pytest.approx(used.makespan.mean())
    waited = sum(told.share(name) for name in ("lengths", "device", "untold"))
    assert waited == pytest.approx(parts["wait_inside"] + parts["wait_end"], abs=POINTS)
    assert told.share("transfer") == pytest.approx(parts["gather"] + parts["push"], abs=POINTS)
    assert told.share("compute") == pytest.approx(1 - used.idle(), abs=0.005)


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("cause", CLUSTERS)
def test_one_cause_is_named_and_no_other(sync, cause, clusters):
    used, told = simulated(sync, samples("uneven" if cause == "lengths" else "even"), clusters(cause))
    parts = used.idle_parts()
    if cause == "transfer":
        assert told.share("transfer") == pytest.approx(parts["gather"] + parts["push"], abs=POINTS)
        assert told.share("transfer") > 0.02
    elif cause:
        assert told.share(cause) == pytest.approx(parts["wait_inside"] + parts["wait_end"], abs=POINTS)
        assert told.share(cause) > 0.003
    assert all(told.share(name) < 0.01 for name in (*WAITING, "edges") if name != cause)
    assert [rank.rank for rank in told.ranks if rank.pace != 1.0] == ([2] if cause == "device" else [])
