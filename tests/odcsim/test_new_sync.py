"""A sync that is added as one row, one-sided and with pushes after the last microbatch alone, and a balancer that goes
with it: every door takes their rows for those of a side that does not meet, and none for a rival of that side.

They are added to a copy of the package, and asked for there; what is right is worked out here from the rows alone.
"""

import json

import pytest
from copied import House
from scripts import ROOT

HELPERS = str(ROOT / "tests" / "helpers")
SYNC = "late-push"
ROW = '    "on-demand": Sync(False, GATHER, PUSH, True, True),\n'
ADDED = f'{ROW}    "{SYNC}": Sync(False, GATHER, PUSH, False, True),\n'
BALANCER = "late-robust"
LAST = "             weighs_transfers=True, queue=True),\n)"
DEALS = f"""             weighs_transfers=True, queue=True),
    Balancer("{BALANCER}", lb_robust, "even totals, pushed at the end", free_counts=True,
             stands_for=lambda sync: not sync.meets and not sync.push_every_microbatch),
)"""
MEET, APART = {"collective", "deferred"}, {"on-demand", SYNC}
TRACE, MODEL = "lognormal:median=1000,sigma=1,max=8000", "qwen3-4b"
ASKED = {"gpu": "l40s", "devices": 8, "minibatch": 8, "minibatches": 4, "max_tokens": 8192}
START = f"""
import json, odcsim
trace, model, asked = {TRACE!r}, {MODEL!r}, {ASKED!r}
def said(**found):
    print(json.dumps(found))
"""


class Copy(House):
    def told(self, code):
        """What the code says, with the question in its names."""
        return json.loads(self.run("-c", START + code).splitlines()[-1])


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    found = Copy(tmp_path_factory.mktemp("house"))
    for name, before, after in (("program", ROW, ADDED), ("balance/rules", LAST, DEALS)):
        file = found.folder / f"odcsim/{name}.py"
        text = file.read_text(encoding="utf-8")
        assert text.count(before) == 1
        file.write_text(text.replace(before, after), encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def compared(house):
    """The rows of a comparison, and the answer."""
    return house.told("""
from odcsim.decide.decision import decide
from odcsim.plots import rows
found = odcsim.compare(odcsim.ask(trace, model, **asked))
decision = decide(found)
said(rows=found.as_json()["rows"], verdict=found.sentences()[0], glance=repr(found), lead=decision.over_rival,
     best=decision.best.pair, rival=decision.rival.pair, pays=decision.pays,
     title=rows.speedups(found.rows).layout.title.text,
     bold=[row.pair for row in found.rows if rows.label(row).startswith("<b>")])
""")


def seconds(rows):
    return {(row["balancer"], row["sync"]): row["makespan_seconds"] for row in rows}


def fastest(times, syncs):
    return min((pair for pair in times if pair[1] in syncs), key=times.__getitem__)


def test_its_rows_are_on_the_side_that_does_not_meet(compared):
    times = seconds(compared["rows"])
    assert fastest(times, APART)[1] == SYNC  # else nothing here would tell the sides apart
    assert {sync for _, sync in times} == MEET | APART
    assert [sync for balancer, sync in times if balancer == BALANCER] == ["on-demand", SYNC]
    assert ("pool", SYNC) not in times
    best, rival = tuple(compared["best"]), tuple(compared["rival"])
    assert best[1] in APART
    assert times[best] <= 1.01 * times[fastest(times, APART)]
    assert rival == fastest(times, MEET)
    assert compared["pays"]
    assert compared["lead"] == times[rival] / times[best] > 1.05
    assert f" {times[rival] / times[best]:.2f} times " in compared["verdict"]
    assert compared["verdict"].rstrip(".") in compared["glance"]
    assert [tuple(pair) for pair in compared["bold"]] == [pair for pair in times if pair[1] in APART]
    assert fastest(times, APART)[1] in compared["title"]


def test_a_command_and_its_page_say_the_same(house, compared):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in ASKED.items()]
    house.run("-m", "odcsim", "compare", TRACE, "--model", MODEL, *words, "--html", "r.html")
    page = (house.folder / "r.html").read_text(encoding="utf-8")
    assert compared["verdict"] in page
    assert f"b\\u003e{SYNC} + {BALANCER}" in page


def test_a_sweep_and_the_explorer_say_the_same(house, compared):
    found = house.told("""
from odcsim.show.explore.controls import page_question_of
from odcsim.show.explore.reply import reply
swept = odcsim.sweep({"trace": trace, "model": model, "sync": ["late-push", "deferred"]} | asked)
words = {name: value for name, value in asked.items() if name != "max_tokens"}
explored = reply(page_question_of({"trace": trace, "model": model, "room": asked["max_tokens"] / 8000} | words))
said(swept=list(swept), explored=explored.verdict, limit=explored.comparison.setting.limit)
""")
    assert found["limit"] == ASKED["max_tokens"]
    assert found["explored"] == compared["verdict"]
    times = seconds(compared["rows"])
    assert seconds(found["swept"]) == {pair: s for pair, s in times.items() if pair[1] in (SYNC, "deferred")}


def test_an_advice_has_its_ways_with_those_that_do_not_meet(house):
    (house.folder / "slow.toml").write_text("link_gb_s = 0.5")
    found = house.told("""
trace = "lognormal:median=12000,sigma=1,max=60000,samples=1000"
asked = {"devices": 8, "global_batch": 512, "minibatches": 2, "cluster": "slow.toml"}
[offer] = odcsim.advise(trace, "qwen3-1.7b", gpus="l40s", **asked).offers
sides = [[one.way.sync, one.row.makespan_seconds] for one in (offer.without, offer.with_it)]
said(gain=offer.gain, sides=sides)
     """)
    (met, without), (apart, with_it) = found["sides"]
    assert met in MEET
    assert apart == SYNC
    assert found["gain"] == without / with_it > 1


def test_a_lead_that_breaks_even_and_one_of_rollouts_are_over_those_who_meet(house, compared):
    found = house.told("""
from odcsim.decide.break_even import lead
broken = lead(odcsim.ask(trace, model, **asked))
learned = odcsim.rl(trace, model, gpu="l40s", devices=8, prompts=16, rollouts=4, steps=2, max_tokens=8192)
said(lead=broken, rows=learned.records(), words=" ".join(learned.sentences()))
""")
    times = seconds(compared["rows"])
    met = min(times[name, "collective"] for name in ("sorted-slice", "lb-micro"))
    apart = min(times[name, "on-demand"] for name in ("lb-mini", "lb-robust"))
    assert found["lead"] == pytest.approx(met / apart, rel=1e-12)
    steps = {(row["balancer"], row["sync"]): row["training_seconds"] for row in found["rows"]}
    best, rival = fastest(steps, APART), fastest(steps, MEET)
    assert f"{best[1]} + {best[0]} makes the training pass {steps[rival] / steps[best]:.2f} times " in found["words"]


def test_a_plan_for_it_is_simulated_and_checked_as_it_is_compared(house, compared):
    found = house.told(f"""
import sys; sys.path.append({HELPERS!r})
import executed
from odcsim.cost import Load
from odcsim.errors import InputError
from odcsim.executors.simulation import usage
setting = odcsim.ask(trace, model, **asked)
plan = odcsim.plan(setting, "late-robust")
late = setting.cost.by(sync="late-push")
scan = usage(plan.schedules, late).makespan.sum()
with executed.by("des"):
    events = usage(plan.schedules, late).makespan.sum()
queued = odcsim.plan(setting, "pool")
def refused(sync):
    try:
        return str(odcsim.simulate(queued, setting.cost.by(sync=sync)))[:0]
    except InputError as error:
        return error.problem
checks = {{str(sync): odcsim.check(plan, sync=sync) for sync in (None, "late-push", "collective")}}
shared = odcsim.check(queued, sync="late-push")
uneven = next(one for one in plan.schedules if one.uneven)
load, program = Load.of(late.model, [uneven]), late.program(max(uneven.microbatches))
rows = zip(program.durations, late.durations(program, load), strict=True)
said(spans=[scan, events], refused=[refused(sync) for sync in ("late-push", "on-demand")],
     checks={{name: [one.sync, one.ok, [f.kind for f in one.findings if f.severity == "error"]]
             for name, one in checks.items()}},
     shared=[f.kind for f in shared.findings if f.severity == "error"],
     pushed=[row[0].tolist() for (what, _), row in rows if what == "push layer"],
     push=late.transfers(True)["push layer"])
""")
    assert found["spans"] == [pytest.approx(seconds(compared["rows"])[BALANCER, SYNC], rel=1e-12)] * 2
    assert found["checks"]["None"] == ["on-demand", True, []]
    assert found["checks"][SYNC] == [SYNC, True, []]
    assert found["checks"]["collective"] == ["collective", False, ["counts"]]
    assert found["shared"] == ["queue"]
    assert [bool(problem) for problem in found["refused"]] == [True, False]
    assert found["pushed"] == [[found["push"]] * ASKED["devices"]]  # once by everybody, however few microbatches it has


def test_no_trainer_is_told_to_run_it_and_the_engine_refuses_it(house):
    found = house.told("""
from odcsim.errors import InputError
from odc_engine.job import check_job, job_of
setting = odcsim.ask(trace, model, trainer="trl", **asked)
compared = odcsim.compare(setting)
rows = compared.as_json()["rows"]
def told(take):
    try:
        return str(take())[:0]
    except InputError as error:
        return str(error)
numbers = {row["sync"]: number for number, row in enumerate(rows, 1) if row["balancer"] == "lb-mini"}
plan = odcsim.plan(setting, "late-robust").sealed()
said(flags={sync: told(lambda: odcsim.flags("trl", compared, row=number)) for sync, number in numbers.items()},
     engine={sync: told(lambda: check_job(plan, job_of(plan, sync=sync, backend=backend)))
             for sync in ("late-push", "on-demand") for backend in ("shm", "threads")})
""")
    assert [sync for sync, refused in found["flags"].items() if refused] == [SYNC]
    assert [sync for sync, refused in found["engine"].items() if refused] == [SYNC]
