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
# # Which balancer, and how many tokens in a microbatch?
#
# Two things can be changed before any code is: who gets which sample, and how full a microbatch may be. Both move the
# answer more than one would think, and the second costs memory.

# %%
import odcsim
from odcsim import catalog, plots

plots.notebook()
question = odcsim.ask(
    "longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=8, minibatch=4, max_tokens=65536, minibatches=60
)
room = catalog.gpu("a100").memory_bytes
comparison = odcsim.compare(question, memory_limit=room)

# %% [markdown]
# ## Every balancer under every sync
#
# The dots compare with `collective + lb-micro`, the rival of the paper; the diamonds with the best row that needs no
# other sync, which is the more honest one.

# %%
plots.speedups(comparison.rows)

# %%
plots.idle(comparison.rows)

# %% [markdown]
# ## The token limit
#
# Fuller microbatches mean fewer meetings and more room to balance. An answer that changes much from one limit to the
# next should be used with care.

# %%
limits = (65536, 72000, 82000, 98304, 131072, 196608)
swept = odcsim.sweep_max_tokens(question, limits, memory_limit=room)
plots.sweep([(limit, at.rows) for limit, at in swept])

# %% [markdown]
# With the limit in hand, look at where time goes. The slider is the limit of a microbatch.

# %%
rows = {limit: at.rows for limit, at in swept}
plots.slide(lambda max_tokens: plots.idle(rows[max_tokens]), max_tokens=limits)

# %% [markdown]
# ## The answer
#
# Of all rows and limits that fit in the memory of one GPU, the fastest; and the fastest that leaves the sync as it
# is.

# %%
every = [(limit, row) for limit, at in swept for row in at.rows if row.memory_fits]


def fastest(rows):
    limit, row = min(rows, key=lambda pair: pair[1].makespan_seconds)
    words = f"{row.sync} + {row.balancer} with --max-tokens {limit}: {row.gpu_hours:.3g} GPU-hours, idle {row.idle:.0%}"
    return row, f"{words}, {row.memory_bytes / 1e9:.0f} of {room / 1e9:.0f} GB"


best, words = fastest(every)
kept, others = fastest([pair for pair in every if pair[1].sync == "collective"])
print(f"{words}.\nWithout another sync: {others}; {kept.makespan_seconds / best.makespan_seconds:.2f} times as long.")
