"""How a launch is chosen, and what is told of it. The rates need a GPU; here they are made up, and the calls that would
be timed are interpreted."""

import json

import pytest
import shards
import torch
from hypothesis import given
from hypothesis import strategies as st

from odc_engine.cli import main
from odc_engine.doctor.probes.base import Absent
from odc_engine.doctor.probes.driver import Gpu
from odc_engine.measuring import tuning
from odc_engine.measuring.tuning import MB, Tried, Tuned
from odc_engine.memory.arena import UnitShape

needs_triton = pytest.mark.skipif(
    not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt"
)
USUAL, SMALL, LARGE = Tried(16, 8, 4096), Tried(8, 8, 4096), Tried(66, 8, 8192)
WAYS = [way for way in (*tuning.PASSES, *tuning.BESIDE.values()) if way not in ("copy", *tuning.SUMS)]


def made_up(shares, ways=WAYS):
    """Every kernel of a launch at one share of the copy."""
    return {
        launch: {size: {"copy": 4e12, **dict.fromkeys(ways, 4e12 * part)} for size in tuning.SIZES}
        for launch, part in shares.items()
    }


def tuned(shares, usual=USUAL):
    return Tuned(usual, made_up(shares), tuple(tuning.BESIDE.values()))


def test_the_usual_launch_stays_where_none_is_clearly_faster():
    assert tuned({USUAL: 0.90, SMALL: 0.91, LARGE: 0.90}).chosen == USUAL


def test_of_launches_that_are_alike_the_smallest_is_chosen():
    assert tuned({USUAL: 0.80, SMALL: 0.93, LARGE: 0.94}).chosen == SMALL
    assert tuned({USUAL: 0.80, SMALL: 0.90, LARGE: 0.94}).chosen == LARGE


def test_what_pushes_cost_compute_decides_and_nothing_else():
    """A large launch is faster alone, and takes the SMs."""
    found = made_up({USUAL: 0.5, SMALL: 0.4, LARGE: 0.9})
    for launch, part in ((USUAL, 3.0), (SMALL, 2.0), (LARGE, 0.5)):
        for rates in found[launch].values():
            rates |= dict.fromkeys(tuning.BESIDE.values(), 4e12 * part)
    assert Tuned(LARGE, found, tuple(tuning.BESIDE.values())).chosen == USUAL


def test_what_is_hidden_costs_no_less_than_can_be_measured():
    assert tuning.per_second_lost(6.0, 10.0, 12.0) == 3.0
    assert tuning.per_second_lost(6.0, 10.0, 9.9) == tuning.per_second_lost(6.0, 10.0, 10.0) == 60.0


@given(st.lists(st.floats(0.05, 1.1), min_size=3, max_size=3))
def test_what_is_chosen_is_about_as_fast_as_the_fastest(shares):
    found = tuned(dict(zip((USUAL, SMALL, LARGE), shares, strict=True)))
    best = max(map(found.score, found.found))
    assert found.score(found.chosen) >= (1 - tuning.ALIKE) * best


def test_bounds_hold_from_a_size_on():
    slow = made_up({USUAL: 0.5})[USUAL]
    assert len(tuning.short(slow)) == len(tuning.BOUNDED) * sum(size >= tuning.FROM for size in tuning.SIZES)
    assert "gather of 16 MB: 50% of the copy" in tuning.short(slow)
    assert not tuning.short({MB: slow[MB]})


ALONE, QUICK = Tried(528, 8, 4096), Tried(264, 8, 4096)


@pytest.fixture
def gpu(monkeypatch):
    """One whose kernels reach what these say."""
    pushes, sums = made_up({USUAL: 0.80, SMALL: 0.93, LARGE: 0.94}), made_up({ALONE: 0.7, QUICK: 0.8}, tuning.SUMS)
    monkeypatch.setattr(tuning, "need_torch", lambda: Gpu("a GPU", 132, (9, 0), (13, 0), 1))
    monkeypatch.setattr(tuning, "need", lambda *_: None)
    monkeypatch.setattr(tuning, "grid", lambda sms: [SMALL, LARGE] if sms == 132 else [])
    monkeypatch.setattr(tuning, "grid_alone", lambda sms: [QUICK] if sms == 132 else [])
    monkeypatch.setattr(tuning, "rates", lambda size, launch: pushes[launch][size])
    monkeypatch.setattr(tuning, "rates_alone", lambda size, launch: sums[launch][size])


@needs_triton
@pytest.mark.usefixtures("gpu")
def test_the_command_prints_shares_and_writes_a_recommendation(tmp_path, capsys):
    path = tmp_path / "launch.json"
    assert main(["tune", "-o", str(path)]) == 0
    told = json.loads(path.read_text())
    assert (told["hardware"], told["chosen"]) == ("a GPU", {"programs": 8, "warps": 8, "block": 4096})
    assert told["usual"] == {"programs": 16, "warps": 8, "block": 4096}
    assert len(told["rates"]) == 3 * len(tuning.SIZES)
    assert told["alone"]["chosen"] == {"programs": 264, "warps": 8, "block": 4096}
    assert told["alone"]["usual"] == {"programs": 528, "warps": 8, "block": 4096}
    assert len(told["alone"]["rates"]) == 2 * len(tuning.SIZES)
    assert tuning.reached(path)
    lines = capsys.readouterr().out.splitlines()
    assert "usual 4096 x 16 x 8  chosen 4096 x 8 x 8" in lines[1]
    assert lines[2].split() == ["gather", "1", "MB", "4000", "80%", "93%", "94%", "8192", "x", "66", "x", "8"]
    between = lines.index("alone:")
    assert between == 3 + len(WAYS) * len(tuning.SIZES)
    assert "usual 4096 x 528 x 8  chosen 4096 x 264 x 8" in lines[between + 1]
    path.write_text(json.dumps({**told, "chosen": told["usual"]}))
    assert not tuning.reached(path)


def test_without_a_gpu_it_says_so_in_a_line_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    def nothing():
        raise Absent("no GPU: the driver sees none")

    monkeypatch.setattr(tuning, "need_torch", nothing)
    assert main(["tune", "-o", str(tmp_path / "launch.json")]) == 3
    assert capsys.readouterr().err == "odc_engine tune: no GPU: the driver sees none\n"
    assert not list(tmp_path.iterdir())
    assert main(["tune", "-o", str(tmp_path / "nowhere" / "launch.json")]) == 2


def interpreted(_rank, size):
    shards.interpreted()
    launch = Tried(3, 4, 64)
    tuning.interpreted(size, launch)
    return sorted({*tuning.pushing(size, launch, "cpu"), *tuning.summing(size, launch, "cpu")})


@needs_triton
def test_every_way_can_be_called(pools):
    assert pools(1).run(interpreted, 1 << 12) == [sorted(tuning.PASSES)]


@needs_triton
def test_what_is_scored_is_what_runs_launch_and_under_the_launch_that_it_would_set(tmp_path, monkeypatch):
    """Beside compute: sums by atomics, and pushes on top. Alone: what adds up slots, near and of other nodes."""
    from fake_gpu import fake_gpu
    from meta_arena import kernels, minibatch

    from odc_engine.kernels.transfers import ALONE, USUAL

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    units = [UnitShape("unit", 1 << 20, 1 << 20, torch.bfloat16)]
    with fake_gpu(*kernels()) as gpu:
        for accumulate, per_node in (("locked", None), ("slots", None), ("slots", 2)):
            minibatch(units, 1, 4, accumulate, monkeypatch, per_node)
        launched = {(each.name, each.warps, each.arguments["block"]) for each in gpu.launches if each.programs > 1}
        gpu.launches.clear()
        for had, moves in ((USUAL, tuning.pushing), (ALONE, tuning.summing)):
            for move in moves(16 * MB, Tried(had.programs, had.warps, had.block), "cpu").values():
                move()
        scored = {(each.name, each.warps, each.arguments["block"]): each for each in gpu.launches}
    # What converts on its way is no gather of a run: those have the dtype that is computed in.
    assert set(scored) == {each for each in launched if each[0] != "gather"}
    assert {name: launch.programs for (name, *_), launch in scored.items()} == {
        "write": USUAL.programs,
        "add": USUAL.programs,
        "total": 256,
        "merge": 256,
    }


def test_the_grids_are_small_and_have_more_than_the_usual():
    found, alone = tuning.grid(132), tuning.grid_alone(132)
    assert len(set(found)) == len(found) <= 20
    assert {launch.programs for launch in found} == {8, 16, 33, 66, 132}
    assert len(set(alone)) == len(alone) <= 12
    assert {launch.programs for launch in alone} == {132, 264, 528}
