"""The whole loop without devices: measure, fit, predict, compare, and fail loudly where the profile is wrong.

The measured runs are stand-ins: the discrete-event executor under a profile that the fit never saw, with jitter. They
show that the loop finds errors, not how large errors are on real devices.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from odcsim import catalog, measurements, profile, schedule, timeline
from odcsim.cli import main
from odcsim.decide.setting import Setting, cost_of, plan
from odcsim.executors.simulation import simulate
from odcsim.measurements import Compute, Constant, Measurements, Transfer
from odcsim.profile import Polynomial, Profile, Timing
from odcsim.trace import Trace

MODEL = "r1-distill-qwen-1.5b"
DEVICES, PASSES = 4, ("forward", "backward")
LAYER = 2 * catalog.model(MODEL).layer_parameters
# A machine on which attention and transfers both matter: layers of 46 M parameters move in 10 ms.
MACHINE = Profile(
    *(MODEL, "some machine", "calibrated", "stand-in"),
    forward=Polynomial(1e-3, 6e-7, 4e-11),
    backward=Polynomial(2e-3, 1.8e-6, 1.4e-10),
    head=Polynomial(1e-3, 2e-6),
    dtype="bfloat16",
    timings=(
        *(Timing(kind, DEVICES, 1e-4, 1e-2 / LAYER) for kind in ("gather", "push", "all-gather", "reduce-scatter")),
        *(Timing(kind, DEVICES, s) for kind, s in (("meeting", 1e-4), ("optimizer", 0.02), ("publish", 0.01))),
    ),
)


def timed(machine: Profile, noise: float = 0.01) -> Measurements:
    """What somebody would measure on the machine."""
    rng = np.random.default_rng(7)
    spread = iter(np.exp(noise * rng.standard_normal(2000)).tolist())
    compute = [
        Compute(kind, t, t * t / n, next(spread) * (p.constant + p.linear * t + p.quadratic * t * t / n), t // n)
        for kind, p in (("forward", machine.forward), ("backward", machine.backward), ("head", machine.head))
        for t in (1024, 4096, 16384, 65536)
        for n in (1, 4, 16)
        for _ in range(3)
    ]
    transfers = [
        Transfer(t.kind, t.devices, size, next(spread) * (t.constant + t.per_byte * size))
        for t in machine.timings
        if t.per_byte
        for size in (1 << 20, 1 << 25, 1 << 28)
        for _ in range(3)
    ]
    constants = [Constant(t.kind, t.devices, next(spread) * t.constant) for t in machine.timings if not t.per_byte]
    return Measurements(MODEL, "some machine", tuple(compute), tuple(transfers), tuple(constants), dtype="bfloat16")


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    """A folder with the fitted profile, schedules, and two runs of each on the machine."""
    folder = tmp_path_factory.mktemp("loop")
    profile.write(MACHINE, folder / "machine.json")
    measurements.write(timed(MACHINE), folder / "m.json")
    assert main(["fit", str(folder / "m.json"), "-o", str(folder / "fitted.json")]) == 0
    cost = cost_of(MODEL, None, str(folder / "machine.json"), DEVICES)
    jittery = replace(cost, cluster=replace(cost.cluster, jitter=0.02))
    lengths = {"long": (20000, 65000), "short": (100, 3000)}
    for name, (low, high) in lengths.items():
        trace = Trace(name, np.random.default_rng(3).integers(low, high, 400))
        file = schedule.write(plan(Setting(trace, cost, 2, minibatches=8), "lb-micro"), folder / f"{name}.jsonl")
        for sync in ("collective", "on-demand"):
            for run in (1, 2):
                real = simulate(file, jittery.by(sync=sync), seed=run)
                timeline.write(real, folder / f"{name}-{sync}-{run}.npz")
    return folder


def judged(folder, capsys, name: str, sync: str, used: Profile) -> tuple[int, dict, str]:
    profile.write(used, folder / "used.json")
    predicted, runs = folder / "p.npz", [str(folder / f"{name}-{sync}-{run}.npz") for run in (1, 2)]
    sources = ["--profile", str(folder / "used.json"), "--sync", sync, "-o", str(predicted)]
    assert main(["simulate", str(folder / f"{name}.jsonl"), *sources]) == 0
    capsys.readouterr()
    code = main(["validate", str(predicted), *runs, "--tolerance", "0.03", "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out), printed.err


@pytest.mark.parametrize("sync", ["collective", "on-demand"])
@pytest.mark.parametrize("name", ["long", "short"])
def test_a_fitted_profile_predicts_what_it_never_saw_and_a_broken_one_fails_loudly(loop, capsys, name, sync):
    """Long samples show the quadratic term of attention, which is halved; short ones the transfers, which nothing is
    left to hide, and which are twice as fast."""
    fitted = profile.read(loop / "fitted.json")
    code, found, err = judged(loop, capsys, name, sync, fitted)
    assert (code, err) == (0, "")
    assert found["makespan_error_worst"] < 0.03
    assert found["idle_error_points"] < 2
    assert found["predicted"]["fidelity"] == "calibrated"
    assert found["noise_worst"] > 0
    passes = {n: replace(getattr(fitted, n), quadratic=getattr(fitted, n).quadratic / 2) for n in PASSES}
    timings = tuple(replace(t, per_byte=t.per_byte / 2) for t in fitted.timings)
    broken = replace(fitted, **passes) if name == "long" else replace(fitted, timings=timings)
    blamed = {*PASSES} if name == "long" else {"gather", "push"}
    code, found, err = judged(loop, capsys, name, sync, broken)
    assert (code, err == "") == (1, False)
    assert found["makespan_error_median"] > 0.1
    assert found["makespan_error_mean"] < -0.1
    errors = {kind["kind"]: kind["error"] for kind in found["kinds"]}
    wrong = {kind for kind, error in errors.items() if error is not None and abs(error) > 0.05}
    assert wrong & {*PASSES, "gather", "push"} == blamed
    assert max((kind for kind in errors if errors[kind] is not None), key=lambda kind: abs(errors[kind])) in blamed
