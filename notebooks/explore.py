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
# # What do uneven lengths cost you?
#
# In data-parallel training with FSDP all devices meet at every layer, so the device with the most work sets the pace
# of all of them. With on-demand communication they meet once per minibatch. This notebook predicts what that is worth
# for your lengths, before you rent anything. It needs no GPU and runs in seconds. It is the short way through; each
# of the [other notebooks](README.md) takes one question further.
#
# Nothing is installed yet? `pip install "odcsim[notebook]"`, or `make notebook` in a clone.

# %%
import odcsim
from odcsim import plots

plots.notebook()

# %% [markdown]
# ## Your lengths
#
# Put the path of your own file in place of `longalign`: CSV, JSONL, NPY or Parquet with a column of lengths in
# tokens, or a table of `length,count`. `longalign` is a shape, not data: it is made from published moments of
# LongAlign-10k.

# %%
trace = odcsim.load("longalign")
plots.lengths(trace)

# %% [markdown]
# ## Every balancer under every sync
#
# Eight A100s and four samples per device in each optimizer step. A microbatch holds at most 65,536 tokens.

# %%
setting = odcsim.ask(
    trace, "r1-distill-qwen-1.5b", gpu="a100", devices=8, minibatch=4, max_tokens=65536, minibatches=100
)
comparison = odcsim.compare(setting)
plots.speedups(comparison.rows)

# %% [markdown]
# The dots compare with `collective + lb-micro`, the paper's rival; the diamonds with the best collective row, which
# is the more honest one: before changing how devices talk, one can change who gets which sample.

# %%
for row in sorted(comparison.rows, key=lambda row: row.makespan_seconds):
    print(f"{row.sync:<11} {row.balancer:<13} {row.speedup:5.2f} x   idle {row.idle:4.0%}   {row.gpu_hours:.2f} GPU-h")
print(f"\nseconds: {comparison.fidelity}; {setting.cost.profile.origin}")

# %%
plots.idle(comparison.rows)

# %% [markdown]
# ## One minibatch, device by device
#
# The same 32 samples under both, in the minibatch where the difference shows best. A hatched bar is a device that
# waits for others.

# %%
today, proposed = ("lb-micro", "collective"), ("lb-robust", "on-demand")
minibatch = comparison.clearest(today, proposed)
before, after = (comparison.timeline(*row, minibatch) for row in (today, proposed))
plots.pair(before, after, number=minibatch)

# %% [markdown]
# ## Does the answer hang on the token limit?
#
# More tokens in a microbatch leave fewer meetings, and more room to balance; they cost memory. An answer that changes
# much from one limit to the next should be used with care.

# %%
swept = odcsim.sweep_max_tokens(setting, (65536, 72000, 82000, 98304, 131072))
plots.sweep([(limit, found.rows) for limit, found in swept])

# %% [markdown]
# ## Keep it
#
# `write_report` puts all of this into one HTML file that opens without network:
#
# ```python
# odcsim.write_report(comparison, "report.html", swept)
# ```
#
# Things to try next: another model (`odcsim catalog list` names them, or give the path of a `config.json`), other
# GPUs, `devices=16`, `minibatch=1` (where nothing helps, since there is nothing to balance), or your own rollouts
# with `in_order=True`.
