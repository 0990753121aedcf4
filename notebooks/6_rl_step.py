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
# # What does uneven length cost a step of RL?
#
# A step generates rollouts in groups of a prompt, looks at them without a backward pass, and trains on them in
# several updates. Only the passes after generation hang on who gets which rollout. So first: how much of the step is
# that?

# %%
import plotly.graph_objects as go

import odcsim
from odcsim import plots

plots.notebook()
ROLLOUTS = (
    "dapo-rl"  # recorded: 4,608 rollouts in groups of 8. Yours: a file with a column of lengths, and one of groups
)
trace = odcsim.load(ROLLOUTS)

# %%
plots.lengths(trace)

# %% [markdown]
# ## The whole step, by batching rule
#
# The seconds of generation are yours to measure or to guess: balance does not touch them. The slider shows how the
# gain fades as generation takes more of the step.


# %%
def steps(generation_seconds):
    """What `odcsim rl` says."""
    size = {"prompts": 64, "rollouts": 8, "updates": 4, "steps": 10}
    where = {"gpu": "h100", "devices": 16, "max_tokens": 16384}
    return odcsim.rl(trace, "qwen3-8b", **where, **size, generation_seconds=generation_seconds).records()


def named(row):
    return f"{row['sync']} + {row['balancer']}"


def drawn(generation_seconds):
    rows = sorted(steps(generation_seconds), key=lambda row: -row["step_seconds"])
    figure = go.Figure()
    for part, colour in (("generation", "#9A9A9A"), ("forward", "#56B4E9"), ("training", "#0072B2")):
        seconds = [row[f"{part}_seconds"] for row in rows]
        figure.add_bar(y=[named(row) for row in rows], x=seconds, orientation="h", name=part, marker={"color": colour})
    best, worst = rows[-1], rows[0]
    gain = f"{worst['step_seconds'] / best['step_seconds']:.2f} times as long a step"
    title = f"{generation_seconds} s of generation: {named(worst)} takes {gain} as {named(best)}"
    figure.update_layout(
        title={"text": title, "x": 0, "font": {"size": 15}}, barmode="stack", height=420, template="none"
    )
    figure.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"})
    figure.update_yaxes(automargin=True)
    return figure.update_xaxes(title="seconds of a step")


plots.slide(drawn, generation_seconds=(20, 0, 5, 60, 200))

# %% [markdown]
# ## The answer

# %%
rows = {named(row): row for row in steps(20)}
best = min(rows, key=lambda name: rows[name]["step_seconds"])
without = min((name for name in rows if name.startswith("collective")), key=lambda name: rows[name]["step_seconds"])
usual = rows["collective + rollout"]  # a trainer that balances all samples of a step at once, by default
apart = rows[without]["training_seconds"] / rows[best]["training_seconds"]
share = 1 - rows[best]["generation_seconds"] / rows[best]["step_seconds"]
gain = usual["step_seconds"] / rows[best]["step_seconds"]
print(
    f"{best} is fastest: {gain:.2f} times as fast a step as the usual batching rule.\n"
    f"Its training pass is {apart:.2f} times as fast as the best one with collectives, {without}.\n"
    f"All but generation is {share:.0%} of the step: that is the most that balance can touch."
)
