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
# # How uneven are your lengths?
#
# Devices that train together wait for the one with the most work, so what matters is not how long samples are but how
# much the work of one device differs from that of the next. Put the path of your own file in place of `longalign`:
# CSV, JSONL, NPY or Parquet with a column of lengths in tokens, or a table of `length,count`.

# %%
import numpy as np
import plotly.graph_objects as go

import odcsim
from odcsim import plots

plots.notebook()
trace = odcsim.load("longalign")

# %% [markdown]
# `longalign` is a shape, not data: it is made from published moments of LongAlign-10k.

# %%
plots.lengths(trace)

# %% [markdown]
# ## Where the tokens are, and where the work is
#
# Matmuls cost as much as there are tokens, attention the square of a sample's length. So few long samples hold more
# of the work than of the tokens.

# %%
counts = np.ones(len(trace.lengths)) if trace.counts is None else trace.counts
order = np.argsort(trace.lengths)[::-1]
lengths, samples = trace.lengths[order].astype(float), counts[order]
tenth = np.cumsum(samples) <= 0.1 * samples.sum()
tokens, squares = (samples * lengths**power for power in (1, 2))
shares = [float(part[tenth].sum() / part.sum()) for part in (tokens, squares)]
print(f"The longest tenth of the samples holds {shares[0]:.0%} of the tokens and {shares[1]:.0%} of attention's work.")

# %% [markdown]
# ## How far apart devices end up
#
# Samples are dealt in turn, without looking. The slider is the number of samples per device and optimizer step: with
# few of them the longest one decides, with many they even out.


# %%
def dealt(samples_per_device, devices=8):
    """Each device's tokens over those of the fullest device, in 50 minibatches."""
    draws = trace.minibatches(samples_per_device * devices, 50)
    loads = np.array([trace.take(ids).reshape(devices, -1).sum(axis=1) for ids in draws])
    return loads / loads.max(axis=1, keepdims=True)


def spread(samples_per_device):
    share = dealt(samples_per_device)
    bars = go.Histogram(x=100 * share.ravel(), xbins={"start": 0, "end": 105, "size": 5}, marker={"color": "#0072B2"})
    title = f"{samples_per_device} per device, dealt in turn: devices would wait {1 - share.mean():.0%} of the time"
    drawn = go.Figure(bars).update_layout(title={"text": title, "x": 0}, height=340, template="none", bargap=0.05)
    clear = "rgba(0, 0, 0, 0)"  # the page's own ground, in the dark, too
    drawn.update_layout(paper_bgcolor=clear, plot_bgcolor=clear, font_color="#767676")
    drawn.update_xaxes(title="a device's tokens over those of the fullest device (%)", range=[-3, 106])
    return drawn.update_yaxes(title="devices, of 50 minibatches")


plots.slide(spread, samples_per_device=(4, 1, 2, 8, 16, 32))

# %% [markdown]
# ## The answer

# %%
waiting = {k: float(1 - dealt(k).mean()) for k in (1, 4, 16)}
listed = ", ".join(f"{share:.0%} of the time with {k} per device" for k, share in waiting.items())
verdict = "worth balancing" if waiting[4] > 0.1 else "even enough to leave as they are"
print(f"Dealt in turn, devices would wait {listed}.\nAt 4 per device these lengths are {verdict}.")
