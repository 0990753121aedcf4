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
# # What should you rent, for how long, and what will it cost?
#
# From a dataset, a model and a batch size to one sentence that somebody can buy by. Every way to run that fits memory
# is tried: sync and balancer, token limit, sharding, recompute. It takes seconds, and needs neither GPU nor account.

# %%
import plotly.graph_objects as go

import odcsim
from odcsim import plots

plots.notebook()
LENGTHS, MODEL, BATCH = "longalign", "qwen2.5-7b", 64
PRICES = {"h100": 2.5, "a100": 1.3}  # dollars of a GPU-hour: put what you are offered


def advised(prices=PRICES, **more):
    """What `odcsim advise` says."""
    asked = {"gpus": list(prices), "devices": [8, 16], "global_batch": BATCH, "minibatches": 24}
    return odcsim.advise(LENGTHS, MODEL, **asked, price=prices, **more)


# %% [markdown]
# ## Hours against dollars
#
# One dot for each kind and number of GPUs, run in the best way that was found for it; lines span what is true nine
# times in ten. To the left is sooner, below is cheaper.


# %%
def drawn(a100_price):
    rows = advised(PRICES | {"a100": a100_price}).records()
    hours, dollars = ([row[key] for row in rows] for key in ("seconds", "dollars"))
    figure = go.Figure()
    figure.add_scatter(
        x=[seconds / 3600 for seconds in hours],
        y=dollars,
        text=[f"{row['devices']} x {row['gpu']}" for row in rows],
        error_x={"array": [(row["seconds_high"] - row["seconds"]) / 3600 for row in rows], "thickness": 1},
        error_y={"array": [row["dollars_high"] - row["dollars"] for row in rows], "thickness": 1},
        mode="markers+text",
        textposition="bottom left",
        marker={"size": 11, "color": "#0072B2"},
    )
    best = min(rows, key=lambda row: row["dollars"])
    cheapest = f"{best['devices']} x {best['gpu']} is cheapest: ${best['dollars']:.0f}"
    title = f"At ${a100_price:.2f} an hour for an a100, {cheapest}"
    figure.update_layout(title={"text": title, "x": 0}, height=400, template="none")
    figure.update_xaxes(title="hours", rangemode="tozero")
    return figure.update_yaxes(title="dollars", rangemode="tozero")


plots.slide(drawn, a100_price=(1.3, 0.9, 1.1, 1.6, 2.0))

# %% [markdown]
# ## How to run each of them

# %%
advised()

# %% [markdown]
# ## The answer
#
# With a deadline and a budget, as you would be asked for them.

# %%
print(*advised(deadline="12h", budget=200).sentences()[:2], sep="\n")
