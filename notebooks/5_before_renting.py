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
import json
import subprocess
import sys
from pathlib import Path

import plotly.graph_objects as go

from odcsim import plots

plots.notebook()
LENGTHS, MODEL, BATCH = "longalign", "qwen2.5-7b", 64
PRICES = {"h100": 2.5, "a100": 1.3}  # dollars of a GPU-hour: put what you are offered


def advised(*more, prices=PRICES):
    """What `odcsim advise` prints."""
    command = [
        Path(sys.executable).parent / "odcsim",
        "advise",
        LENGTHS,
        "--model",
        MODEL,
        "--global-batch",
        str(BATCH),
    ]
    command += ["--gpus", ",".join(prices), "--devices", "8,16", "--minibatches", "24"]
    command += ["--price", ",".join(f"{gpu}={price}" for gpu, price in prices.items()), *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


# %% [markdown]
# ## Hours against dollars
#
# One dot for each kind and number of GPUs, run in the best way that was found for it; lines span what is true nine
# times in ten. To the left is sooner, below is cheaper.


# %%
def offers(prices):
    rows = json.loads(advised("--json", prices=prices))["rows"]
    return [row for row in rows if row["dollars"] is not None]


def drawn(a100_price):
    rows = offers(PRICES | {"a100": a100_price})
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
for row in offers(PRICES):
    recompute = "recompute" if row["recompute"] else "no recompute"
    way = f"{row['sync']} + {row['balancer']}, {row['max_tokens']:,} tokens, {row['sharding']} sharding, {recompute}"
    gain = f"{row['over_without']:.2f} x the best without on-demand"
    print(
        f"{row['devices']:>2} x {row['gpu']:<5} {row['seconds'] / 3600:5.2f} h  ${row['dollars']:6.2f}  {way}; {gain}"
    )

# %% [markdown]
# ## The answer
#
# With a deadline and a budget, as you would be asked for them.

# %%
lines = advised("--deadline", "12h", "--budget", "200").splitlines()
print(*[line for line in lines if line[:4] in ("Rent", "Run ")], sep="\n")
