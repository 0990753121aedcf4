"""How a launch is chosen, and what is told of it. The rates need a GPU; here they are made up, and the calls that would
be timed are interpreted."""

import json

import pytest
import shards
from hypothesis import given
from hypothesis import strategies as st

from odc_engine.cli import main
from odc_engine.doctor.probes.base import Absent
from odc_engine.doctor.probes.driver import Gpu
from odc_engine.measuring import tuning
from odc_engine.measuring.tuning import MB, Tried

needs_triton = pytest.mark.skipif(
    not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt"
)
USUAL, SMALL, LARGE = Tried(16, 8, 4096), Tried(8, 8, 4096), Tried(66, 8, 8192)
WAYS = [way for way in tuning.PASSES if way != "copy"]


def made_up(shares):
    """Every kernel of a launch at one share of the copy."""
    return {
        launch: {size: {"copy": 4e12, **dict.fromkeys(WAYS, 4e12 * part)} for size in tuning.SIZES}
        for launch, part in shares.items()
    }


def test_the_usual_launch_stays_where_none_is_clearly_faster():
    assert tuning.chosen(USUAL, made_up({USUAL: 0.90, SMALL: 0.91, LARGE: 0.90})) == USUAL


def test_of_launches_that_are_alike_the_smallest_is_chosen():
    assert tuning.chosen(USUAL, made_up({USUAL: 0.80, SMALL: 0.93, LARGE: 0.94})) == SMALL
    assert tuning.chosen(USUAL, made_up({USUAL: 0.80, SMALL: 0.90, LARGE: 0.94})) == LARGE


def test_what_a_transfer_costs_compute_decides_where_it_is_known():
    """A large launch is faster alone, and takes the SMs."""
    found = made_up({USUAL: 0.5, SMALL: 0.4, LARGE: 0.9})
    for launch, part in ((USUAL, 3.0), (SMALL, 2.0), (LARGE, 0.5)):
        for rates in found[launch].values():
            rates[tuning.BESIDE] = 4e12 * part
    assert tuning.chosen(LARGE, found) == USUAL


def test_what_is_hidden_costs_no_less_than_can_be_measured():
    assert tuning.per_second_lost(6.0, 10.0, 12.0) == 3.0
    assert tuning.per_second_lost(6.0, 10.0, 9.9) == tuning.per_second_lost(6.0, 10.0, 10.0) == 60.0


@given(st.lists(st.floats(0.05, 1.1), min_size=3, max_size=3))
def test_what_is_chosen_is_about_as_fast_as_the_fastest(shares):
    found = made_up(dict(zip((USUAL, SMALL, LARGE), shares, strict=True)))
    best = max(map(tuning.score, found.values()))
    assert tuning.score(found[tuning.chosen(USUAL, found)]) >= (1 - tuning.ALIKE) * best


def test_bounds_hold_from_a_size_on():
    slow = made_up({USUAL: 0.5})[USUAL]
    assert len(tuning.short(slow)) == len(tuning.BOUNDED) * sum(size >= tuning.FROM for size in tuning.SIZES)
    assert "gather of 16 MB: 50% of the copy" in tuning.short(slow)
    assert not tuning.short({MB: slow[MB]})


@pytest.fixture
def gpu(monkeypatch):
    """One whose kernels reach what these say."""
    found = made_up({USUAL: 0.80, SMALL: 0.93, LARGE: 0.94})
    monkeypatch.setattr(tuning, "need_torch", lambda: Gpu("a GPU", 132, (9, 0), (13, 0), 1))
    monkeypatch.setattr(tuning, "need", lambda *_: None)
    monkeypatch.setattr(tuning, "grid", lambda sms: [SMALL, LARGE] if sms == 132 else [])
    monkeypatch.setattr(tuning, "rates", lambda size, launch: found[launch][size])


@needs_triton
@pytest.mark.usefixtures("gpu")
def test_the_command_prints_shares_and_writes_a_recommendation(tmp_path, capsys):
    path = tmp_path / "launch.json"
    assert main(["tune", "-o", str(path)]) == 0
    told = json.loads(path.read_text())
    assert (told["hardware"], told["chosen"]) == ("a GPU", {"programs": 8, "warps": 8, "block": 4096})
    assert told["usual"] == {"programs": 16, "warps": 8, "block": 4096}
    assert len(told["rates"]) == 3 * len(tuning.SIZES)
    assert tuning.reached(path)
    head, *rows = capsys.readouterr().out.splitlines()
    assert "usual 4096 x 16 x 8  chosen 4096 x 8 x 8" in head
    assert len(rows) == len(WAYS) * len(tuning.SIZES) + 2
    assert rows[0].split() == ["gather", "1", "MB", "4000", "80%", "93%", "94%", "8192", "x", "66", "x", "8"]
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
    found = {}
    for name, move in tuning.moves(size, Tried(3, 4, 64), "cpu").items():
        move()
        found[name] = True
    return found


@needs_triton
def test_every_way_can_be_called(pools):
    assert pools(1).run(interpreted, 1 << 12) == [dict.fromkeys(tuning.PASSES, True)]


def test_the_grid_is_small_and_has_more_than_the_usual():
    found = tuning.grid(132)
    assert len(set(found)) == len(found) <= 20
    assert {launch.programs for launch in found} == {8, 16, 33, 66, 132}
