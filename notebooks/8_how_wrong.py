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
# # How wrong are the predictions?
#
# Three kinds of evidence, from the most to the least like what you will do: runs that others measured and published,
# whose lengths are all alike; what the paper and a port of it published of uneven lengths; and runs of this project
# on two cores.

# %%
import csv
import json
import tempfile
import tomllib
from pathlib import Path

import odcsim
from odcsim import plots

plots.notebook()
docs = Path("../docs")

# %% [markdown]
# ## Seconds: runs that others published
#
# Each row of `docs/studies/published.csv` is a run with its tokens per second and GPU. Here are those of Llama-like
# models, on GPUs that nobody had limited, each predicted from a `config.json` of its sizes. The catalogue's
# coefficients are fitted to these runs among others, so this is how well they are described; [the page on published
# runs](../docs/published.md) leaves each source out of the fit that predicts it.

# %%
RECOMPUTE = {"none": "none", "full": "full", "selective-op": "operators", "selective-layer": "layers"}


def config(run):
    """The model's sizes as a Hugging Face configuration."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    sizes = [int(run[key]) for key in ("hidden", "layers", "heads", "kv_heads", "ffn")]
    rest = {"model_type": "llama", "vocab_size": int(run["vocab"]), "tie_word_embeddings": run["tied"] == "1"}
    path = Path(tempfile.mkdtemp()) / "config.json"
    path.write_text(json.dumps(dict(zip(names, sizes, strict=True)) | rest))
    return str(path)


def network(run):
    """What the source says of its network, as a cluster's TOML; None where it says nothing."""
    if not run["nic_gbit_s"]:
        return None
    path = Path(tempfile.mkdtemp()) / "cluster.toml"
    path.write_text(f"nics_per_node = {run['devices_per_node']}\nnic_gbit_s = {run['nic_gbit_s']}\n")
    return str(path)


def predicted(run):
    """Tokens per second and GPU."""
    numbers = ("devices", "devices_per_node", "sequence", "sequences_per_microbatch", "microbatches")
    devices, node, length, batch, microbatches = (int(run[key]) for key in numbers)
    question = odcsim.ask(
        f"fixed:length={length},samples={devices * batch * microbatches}",
        config(run),
        gpu=run["gpu"],
        devices=devices,
        devices_per_node=min(node, devices),
        cluster=network(run),
        minibatch=batch * microbatches,
        max_tokens=batch * length,
        minibatches=1,
        stack="compiled" if run["compile"] == "1" else "tuned",
        attention=run["attention"],
        precision=run["precision"],
        optimizer=run["optimizer"],
        reduce=run["reduce"],
        loss="whole",
        sharding=run["sharding"],
        recompute=RECOMPUTE[run["recompute"]],
    )
    return odcsim.compare(question).row("lb-micro", run["sync"]).tokens_per_second / devices


with (docs / "studies/published.csv").open(encoding="utf-8") as file:
    runs = [run for run in csv.DictReader(file) if run["gated"] == "1" and not run["watts"] and int(run["devices"]) > 1]
rates = [(predicted(run), float(run["tokens_per_second_per_gpu"])) for run in runs]

# %%
drawn = plots.agreement(*zip(*rates, strict=True))
drawn.update_layout(title={"text": "Predicted against published tokens per second and GPU", "subtitle": {"text": ""}})
drawn.update_xaxes(title="published", type="log")
drawn.update_yaxes(title="predicted", type="log")
names = [f"{run['source']}: {run['model']}, {run['devices']} x {run['gpu']}" for run in runs]
drawn.update_traces(text=names, hovertemplate="%{text}<br>published %{x:,.0f}, predicted %{y:,.0f}<extra></extra>")

# %%
off = sorted(abs(one / other - 1) for one, other in rates)
worst = max(zip(rates, names, strict=True), key=lambda pair: abs(pair[0][0] / pair[0][1] - 1))[1]
seconds = f"{off[len(off) // 2]:.0%} off in the median and {off[-1]:.0%} at worst over {len(off)} published runs"
print(f"{seconds}; the worst is {worst}")

# %% [markdown]
# ## Speedups: what the paper and a port of it published
#
# What matters for a decision is a ratio of two runs, in which a factor that all times are off by cancels.

# %%
cells = tomllib.loads((docs / "paper.toml").read_text(encoding="utf-8"))["cells"]
cells = [c for c in cells if c["kind"] == "speedup" and c.get("devices") == 8 and "balancer" in c and "trace" in c]


def speedup(cell):
    limit = cell.get("max_tokens", 65536)
    trace = odcsim.load(cell["trace"], truncate=limit)
    gpu, minibatch = cell.get("gpu", "a100"), cell["minibatch"]
    asked = {"gpu": gpu, "devices": 8, "minibatch": minibatch, "max_tokens": limit, "minibatches": 40}
    return odcsim.compare(odcsim.ask(trace, cell["model"], **asked)).row(cell["balancer"], cell["sync"]).speedup


ratios = [(speedup(cell), cell["published"]) for cell in cells]
for cell, (ours, published) in zip(cells, ratios, strict=True):
    row = f"{cell['sync']} + {cell['balancer']}"
    print(f"{cell['name']:<20} minibatch {cell['minibatch']:>2}  {row:<21} published {published:.2f}  here {ours:.2f}")

# %%
drawn = plots.agreement(*zip(*ratios, strict=True))
drawn.update_layout(title={"text": "Predicted against published speedups", "subtitle": {"text": ""}})
drawn.update_traces(hovertemplate="published %{x:.2f}, predicted %{y:.2f}<extra></extra>")
drawn.update_xaxes(title="published speedup over collective + lb-micro")
drawn.update_yaxes(title="predicted speedup")

# %% [markdown]
# ## Uneven lengths, run for real
#
# The rows of [the page on validation](../docs/validation.md): schedules that no profile had seen, run on two cores,
# and held against what was predicted. `noise` is how far two runs of the same schedule are apart: no prediction can
# be better.

# %%
page = (docs / "validation.md").read_text(encoding="utf-8")
table = page.partition("### All schedules")[2].partition("\n\n")[2].partition("\n\n")[0]
rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
head, stages = rows[0], {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]}
for name, stage in stages.items():
    figures = ", ".join(f"{key} {stage[key]}" for key in ("median", "p90", "worst", "noise median"))
    print(f"{name:<26} {stage['schedules']:>3} schedules: {figures}")

# %% [markdown]
# ## The answer

# %%
apart = sorted(abs(one / other - 1) for one, other in ratios)
real = stages["real"]
print(
    f"Seconds: {seconds}.\nSpeedups: {apart[len(apart) // 2]:.0%} off in the median and {apart[-1]:.0%} at worst "
    f"over {len(apart)} published cells.\nUneven schedules on two cores: {real['median']} in the median, {real['p90']} "
    f"at the 90th percentile, where two runs of one schedule differ by {real['noise median']}."
)
