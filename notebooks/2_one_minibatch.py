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
# # What does on-demand communication change in one minibatch?
#
# In data-parallel training with FSDP devices meet at every layer of every microbatch, so whoever has the longest
# microbatch is waited for each time. On demand, a device takes weights from its peers when it needs them, and devices
# meet once, at the end. Here are the same samples under both, in the minibatch of 60 that shows it best.

# %%
import odcsim
from odcsim import plots

plots.notebook()
question = odcsim.ask(
    "longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=8, minibatch=4, max_tokens=65536, minibatches=60
)
comparison = odcsim.compare(question)

# %% [markdown]
# ## The sync alone
#
# The same plan twice: each device runs the same microbatches above and below. A hatched bar is a device that waits.

# %%
today, sync_alone, both = ("lb-micro", "collective"), ("lb-micro", "on-demand"), ("lb-robust", "on-demand")
number = comparison.clearest(today, both)
plots.pair(comparison.timeline(*today, number), comparison.timeline(*sync_alone, number), number=number)

# %% [markdown]
# Waiting inside the minibatch is gone, and what was lost in many places shows up at the end: now the device with the
# most work *in the whole minibatch* is waited for, not the one with the longest microbatch each time.
#
# ## With a plan that makes use of it
#
# Since devices no longer meet inside, they need not run the same number of microbatches. `lb-robust` hands out
# samples so that all of them are done at once.

# %%
plots.pair(comparison.timeline(*today, number), comparison.timeline(*both, number), number=number)

# %% [markdown]
# ## Other minibatches
#
# This one was chosen because it shows much. `typical` finds the one whose idle is nearest to that of all 60, and the
# slider goes through the others.


# %%
def one(minibatch):
    return plots.pair(*(comparison.timeline(*row, minibatch) for row in (today, both)), number=minibatch)


typical = comparison.typical(today, both)
plots.slide(one, minibatch=(typical, number, 0, 1, 2, 3, 4, 5))

# %% [markdown]
# ## The answer

# %%
seconds = [comparison.usage(*row).makespan for row in (today, sync_alone, both)]
ratio = seconds[0] / seconds[2]
print(
    f"In minibatch {number} the sync alone brings {seconds[0][number] / seconds[1][number]:.2f} x, with lb-robust "
    f"{ratio[number]:.2f} x.\nOver all {len(ratio)} it is {seconds[0].sum() / seconds[2].sum():.2f} x, "
    f"{ratio.min():.2f} x in the worst and {ratio[typical]:.2f} x in a typical one."
)
