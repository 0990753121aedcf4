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
# # What does on-demand communication take in a training loop of your own?
#
# Four lines, in a loop that wraps its model by FSDP2's `fully_shard`. This notebook writes such a loop, runs it on
# two processes with stock FSDP2 and with the engine, and compares losses and seconds. It needs `odcsim[engine]` and
# no GPU.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

from odcsim import plots

plots.notebook()
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The loop
#
# `on_demand` switches between the two. Samples are as uneven as text is: one device gets three short ones, the other
# a long one. Stock FSDP2 meets in every pass of every microbatch, so both have to run equally many: the second device
# adds empty ones.

# %%
LOOP = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from odc_engine import OnDemand, token_mean

on_demand = sys.argv[1] == "on-demand"
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
width = 256
model = nn.Sequential(nn.Embedding(256, width), *(nn.Linear(width, width) for _ in range(6)), nn.Linear(width, 256))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

text = b"uneven lengths make devices wait for each other "
samples = [torch.tensor(list(text * n)) for n in (4, 10, 15, 45)]
mine = [[0, 1, 2], [3]][dist.get_rank()]           # three microbatches here, one there
if not on_demand:
    mine = mine + [None] * (3 - len(mine))         # stock FSDP2: the same number everywhere
weights = token_mean([len(s) - 1 for s in samples])  # of a token of each sample, over the whole minibatch

odc = OnDemand(model, average=False) if on_demand else None  # gradients are sums          # 1
if odc:
    odc.attach(optimizer)  # its steps settle before and publish after                     # 2
start = time.perf_counter()
for step in range(10):
    total = torch.zeros(())
    for i in mine:
        sample = samples[i] if i is not None else samples[0][:2]
        losses = F.cross_entropy(model(sample[:-1]), sample[1:], reduction="none")
        loss = (losses * (weights[i] if i is not None else 0.0)).sum()                     # 3
        (loss if on_demand else loss * dist.get_world_size()).backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"LOSS {float(total):.6f}", flush=True)
if dist.get_rank() == 0:
    print(f"SECONDS {time.perf_counter() - start:.3f}", flush=True)
if odc:
    odc.close()                                                                            # 4
dist.barrier()  # a thread of gloo's lets go of what was reduced before Python ends
dist.destroy_process_group()
"""
(folder / "train.py").write_text(LOOP)

# %% [markdown]
# ## Run it both ways


# %%
def trained(how):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py", how]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    said = [line.split() for line in done.stdout.splitlines()]
    return [float(w[1]) for w in said if w[0] == "LOSS"], next(float(w[1]) for w in said if w[0] == "SECONDS")


losses, seconds = {}, {}
for how in ("collective", "on-demand"):
    losses[how], seconds[how] = trained(how)

# %% [markdown]
# ## Does it learn the same?
#
# Gradients are the same sums, added in another order: losses agree to rounding.

# %%
plots.convergence({"collective": losses["collective"], "on-demand + lb-mini": losses["on-demand"]})

# %% [markdown]
# ## The answer

# %%
apart = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
print(
    f"Four lines. After 10 steps losses are {apart:.1e} apart at most, and went from {losses['on-demand'][0]:.2f} to "
    f"{losses['on-demand'][-1]:.2f}. The loop took {seconds['on-demand']:.2f} s on demand and "
    f"{seconds['collective']:.2f} s with collectives. On two cores and a model this small that says little: what your "
    f"lengths and GPUs gain is what `odcsim compare` answers."
)
