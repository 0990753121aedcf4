# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # How wrong is a prediction, on this machine, now?
#
# Nothing here is looked up: this machine is measured, a schedule that the measurements have not seen is predicted,
# then two processes of this machine train by it. It needs `odcsim[engine]` and no GPU, and takes a minute on a quiet
# laptop. On a machine that is busy with other things it takes longer, and the prediction is worse: it knows nothing
# of them.

# %%
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import odcsim
from odcsim import plots, timeline

plots.notebook()
folder = Path(tempfile.mkdtemp())


def run(command, *arguments):
    """A command of this environment, in a folder of its own."""
    program = Path(sys.executable).parent / command
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


# %% [markdown]
# ## Measure
#
# Compute, transfers and what lies between steps, of a small transformer on two processes that share memory.

# %%
profile = run(
    "odc_engine", "profile", "--model", "tiny", "--devices", "2", "--quick", "--max-tokens", "256", "-o", "me"
)
print(profile.splitlines()[-1])

# %% [markdown]
# ## Predict
#
# Lengths drawn from a lognormal distribution, five minibatches of eight samples, by the two balancers below.

# %%
question = odcsim.ask(
    "lognormal:median=60,sigma=0.8,max=256",
    "tiny",
    profile=str(folder / "me"),
    devices=2,
    minibatch=4,
    max_tokens=256,
    minibatches=5,
)
comparison = odcsim.compare(question)
today, other = ("lb-micro", "collective"), ("lb-mini", "on-demand")
print(f"predicted: {comparison.row(*other).speedup:.2f} times as fast under {other[1]} + {other[0]}")

# %% [markdown]
# ## Run it
#
# The same samples again, as schedule files that two processes perform: forward, backward and the optimizer's step,
# with weights and gradients moved through shared memory.


# %%
def performed(balancer, sync):
    asked = "--model tiny --devices 2 --minibatch 4 --max-tokens 256 --minibatches 5 --profile me"
    trace = question.trace.name
    run("odcsim", "balance", trace, *asked.split(), "--balancer", balancer, "-o", f"{balancer}.jsonl")
    run("odcsim", "simulate", f"{balancer}.jsonl", "--profile", "me", "--sync", sync, "-o", f"predicted-{sync}")
    run("odc_engine", "run", f"{balancer}.jsonl", "--sync", sync, "-o", f"measured-{sync}")
    errors = run("odcsim", "validate", f"predicted-{sync}", f"measured-{sync}", "--json")
    return [timeline.read(folder / f"{kind}-{sync}") for kind in ("predicted", "measured")], json.loads(errors)


runs = {sync: performed(balancer, sync) for balancer, sync in (today, other)}

# %%
minibatches = [m for _, errors in runs.values() for m in errors["minibatches"]]
plots.agreement([m["predicted_seconds"] for m in minibatches], [m["measured_seconds"] for m in minibatches])

# %% [markdown]
# ## One minibatch, predicted and measured
#
# Devices, microbatches and passes are where they were said to be; how long they are differs by what the machine was
# up to.

# %%
predicted, measured = runs["on-demand"][0]
plots.gantt(predicted, 4)

# %%
plots.gantt(measured, 4)

# %% [markdown]
# ## The answer

# %%
off = sorted(abs(m["predicted_seconds"] / m["measured_seconds"] - 1) for m in minibatches)
spent = {sync: sum(m["measured_seconds"] for m in errors["minibatches"]) for sync, (_, errors) in runs.items()}
print(
    f"A minibatch's predicted time was {off[len(off) // 2]:.0%} off in the median and {off[-1]:.0%} at worst, over "
    f"{len(off)} minibatches. Predicted speedup {comparison.row(*other).speedup:.2f}, measured "
    f"{spent['collective'] / spent['on-demand']:.2f}."
)
