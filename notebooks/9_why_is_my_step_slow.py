# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Why is my step slow?
#
# A run wrote down what it did: traces of torch.profiler, or the files of `odc_engine.watch`, or a log. `slow-step` is
# one that ships, of 4 ranks. Put the folder of yours in its place.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import odcsim
from odcsim import plots

plots.notebook()
SOURCE = "slow-step"
told = odcsim.diagnose(SOURCE, price=2.5)
print(told.sentences()[0])

# %% [markdown]
# ## Where does a step go?
#
# Hatched is waiting for others. The parts sum to the step.

# %%
plots.parts(told.found)

# %% [markdown]
# ## Who waits for whom?
#
# The step of which most was waiting, and all steps together.

# %%
plots.worst_step(told.run, told.found)

# %%
plots.ranks(told.found)

# %%
for late in told.found.late[:5]:
    what = f"step {late.step}, rank {late.rank}, microbatch {late.microbatch}: {late.tokens:,} tokens"
    print(f"{what}, for which the others waited {late.seconds:.2f} s together")

# %% [markdown]
# ## What would change it?
#
# The samples that ran, at the seconds that were measured, dealt otherwise.

# %%
if told.changes.ways:
    plots.gains(told.changes).show()

# %%
for sentence in told.sentences()[2:]:
    print(sentence)

# %% [markdown]
# ## Is that so?
#
# A schedule that is simulated is a run, too, of which nothing is unknown. What is promised of it can be run: here the
# best way, on the same samples.

# %%
folder = tempfile.mkdtemp()
asked = "--model r1-distill-qwen-1.5b --gpu a100 --devices 8 --minibatch 4 --max-tokens 65536 --minibatches 12"


def run(command, *arguments):
    """A command of this environment, in a folder of its own."""
    program = Path(sys.executable).parent / command
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


def ran(balancer, sync):
    """What is said of a run of the same samples."""
    run("odcsim", "balance", "longalign", *asked.split(), "--balancer", balancer, "-o", f"{balancer}.jsonl")
    run("odcsim", "simulate", f"{balancer}.jsonl", "--gpu", "a100", "--sync", sync, "-o", f"{balancer}.npz")
    return odcsim.diagnose([f"{folder}/{balancer}.jsonl", f"{folder}/{balancer}.npz"])


before = ran("lb-micro", "collective")
best = before.best
after = ran(best.balancer, best.sync)

# %%
plots.worst_step(before.run, before.found)

# %% [markdown]
# ## The answer

# %%
print(told.sentences()[0])
seconds = before.found.seconds, after.found.seconds
print(
    f"Of the simulated run {best.gain:.2f} times as fast was promised ({best.way}), and it came to "
    f"{seconds[0] / seconds[1]:.2f}: a step took {seconds[0]:.1f} s, and takes {seconds[1]:.1f} s."
)
