"""The words around the tables of docs/published.md and docs/published-runs.md, with places for computed figures."""

INTRO = """# The catalogue beside published runs

How far off is a step time that odcsim predicts from its catalogue, without any measurement of yours? This page is for
whoever decides by such a prediction, for example which GPUs to rent. {runs} FSDP runs that others measured and
published, from {sources} sources, are predicted and compared; none of them is an experiment of this project.

- **Step times**, with each publisher left out of the fit that predicts its runs, averaged over sources: {median} off
  at the median, {p90} at the 90th percentile. {inside} of the published times lie inside the predicted 90 % interval,
  whose ends are a factor of {width} apart. Averaged over runs: {runs_median}, {runs_p90}, {runs_inside} and
  {runs_width}.
- **The aim**, averaged over sources, is a median of 8 %, a 90th percentile of 18 % and 85 to 95 % inside the interval.
  The first two are missed: most of that is one publisher's RL trainers and mixtures of experts, and torchao's H100s.
- **Peak memory**: {peak_median} off at the median over {peak_runs} runs, {peak_sources} averaged over sources;
  {peak_small} of the estimates are over 10 % too small.

[Every run, the worst first](published-runs.md), with the fitted coefficients and the sources, is a page of its own.

## How far off
"""
JUDGED = """The error is predicted over published seconds, minus one. "Known without any run" uses no published run:
coefficients and widths are where the fit starts. "Its publisher in the fit" is what the catalogue ships. `bias` is the
signed median. `high / low` is the geometric mean of the intervals' widths, so that an interval that holds a run only
because it is wide shows there.
"""
KINDS = """By kind of run, its publisher left out, averaged over sources. A run counts in each of its kinds. `experts`
are mixtures of experts (MoE), `adapters` LoRA, `policy` an RL trainer's loss, `plain` a stack without fused kernels:
"""
MEASURED = """## How it was measured

`make published` (`python docs/studies/published.py`) wrote this page on {day}. It takes about three minutes and
needs no GPU. Every run has one sequence length. The runs' facts stand in [published.csv](studies/published.csv) and,
with the flags of `compare`, in [published_asked.csv](studies/published_asked.csv).

The simulator predicts each run with coefficients and interval widths that **its own publisher had no part in**:

- Coefficients are fitted to all other publishers' runs, starting from what is known without any step (datasheets,
  kernels timed alone).
- The width of an interval comes from the other publishers, too. Each of them is left out in turn once more, and the
  errors of its runs say how far runs of their kinds are off. `compare` prints this interval as `model_low` and
  `model_high`.
- What a training stack moves, launches and waits for (`odcsim/catalog/estimates/work.py`) is counted by operation or
  timed on a CPU, and fitted to no run. So are the bytes of the optimizer's states.

Leaving a publisher out does not undo one thing: whoever counted operations, and chose where fits and widths start, had
seen most of these runs. That is why the table also shows what is known without any run.
"""
FINDINGS = """## What it does not say, and known misses

- **No run here covers** AMD, Ascend, Ada, H20, or linear or sparse attention. What a CDNA3 reaches was chosen by hand
  to meet the figures of one port of ODC ([paper](paper.md)), and attention of an H20 to meet one benchmark; for the
  others, rates are ratios. Their intervals are wider for it.
- **Mixtures of experts, plain stacks, policy losses and B200 have one publisher each.** With it left out nothing is
  learnt of them, and their intervals are those of a kind that nobody published.
- **Short steps of prime-rl** take longer than all that is counted. Between runs that differ only in tokens, the
  missing time grows far slower than the tokens: from .2 s of a step of 0.6B to over 2 s of a 30B mixture of experts,
  and more with LoRA than without. Nothing is fitted to it, so these runs come out too fast, most of all on B200, where
  one of them takes 28 s for a quarter of the tokens that take 79 s.
- **H100s differ more by source than A100s do.** llm-foundry's of 2023 and torchao's are slower than MaxText's on what
  is called the same silicon. torchtitan's ran at 500 W: their memory is taken as stated, and matmuls are assumed to
  follow the cube root of the power. torchao's source does not state the power.
- **JAX and Transformer Engine** run 70B in fp8 faster on 64 GPUs than on 512, by a sixth; the prediction is the same
  for all of them.
- **Where memory was almost full**, runs were slower than they had to be: 30B with 8K sequences on 8 GPUs, 70B on 64
  A100 of 40 GB, and 8B at the limit of 80 GB (`ATLIMIT` in published_asked.csv) are among the worst. The time that
  allocators spend on returning memory and requesting it again is not modeled.
- **Very small models at short sequences** (760M at 512 and 1K tokens) have outliers in their source, in both
  directions.
"""
RUNS = """# Published runs, one by one

The appendix of [the catalogue beside published runs](published.md): every published FSDP run beside its prediction,
what is fitted, and the sources. It is for whoever checks a figure or looks for a run like their own. Written by
`make published` on {day}.

## What the runs differ in

By how many other publishers showed how far the rarest of a run's kinds is off, averaged over sources:
"""
BY_RUNS = """By source, GPU, model size, sequence length and GPU count, over runs:
"""
COEFFICIENTS = """## What is fitted

Shares and seconds, in the words of `odcsim/catalog/estimates/rates.py`:

- `matmul` is the share of the best measured matmul rate that large matmuls reach inside a step.
- A matmul as narrow as `narrow` takes twice as long as its FLOPs say.
- `moved` is the share of the memory's bandwidth that work reaches which only moves bytes.
- `copying` is the share of compute that a collective's kernels take while they run.
- `fp8` is how many times as fast large matmuls are in fp8, casts apart.

Between nodes collectives reach 55 % of the line's rate, and each GPU adds 2 microseconds to a ring. Attention takes
the rates of kernels timed alone (`odcsim/catalog/rates.toml`), except for the Triton kernel of 2023 that llm-foundry
ran, whose share is fitted: 38 % of an A100's peak forward, 20 % of an H100's.

A run that is far off counts less (as under Student's t), and so does one of a kind that is known to be uncertain.
"""
WIDTHS = """`deviation` is what a kind of run adds to the standard deviation of the logarithm of seconds. It is learnt
from the publishers who have the kind and from a start that weighs as much as two of them. The fewer they are, the
further it is `widened`, as Student's t is. Deviations are scaled so that 90 % of the runs that they are learnt from
are inside, averaged over sources. Kinds add by their squares. Nobody published a kind that is missing here; it keeps
its start.
"""
EVERY = """## Every run, worst first

`tokens` are microbatches x sequences x tokens of one sequence, of each GPU in one step. `published` and `predicted`
are seconds of that step. `interval` is the 90 % interval.
"""
UNSTATED = """## Runs of which something is a guess

Their sources do not say how much activation checkpointing they use, or that power was limited and not by how much.
Nothing is fitted to them, and no figure above counts them, except for the last row of the [first
table](published.md#how-far-off).
"""
PEAKS = """## Peaks of memory

{runs} of the runs report peak memory: what PyTorch had reserved, or what it had allocated. The table compares it with
the estimate that `compare` holds against the GPU's memory. Where an estimate is too small, a run that was said to fit
goes out of memory (OOM). The GPU's context is left out, which no allocator shows, and so is slack where the source
reports what was allocated.

The estimate counts bytes ([each term](model/memory.md)). Which copies a trainer holds on to was read in its source, and
looked for where peaks showed that some were missing. The only measured figure is slack, from fms-acceleration; none of
its peaks here went into it. *Blind* replaces it by what the other publishers' reserved peaks would choose,
{least:.2f} to {most:.2f} instead of {slack:.2f}.
"""
OFF_PEAKS = """- **ATorch's runs hold twice what is estimated**, 31.4 GB beside states on any number of GPUs, full or
  with adapters. Their recipe says bf16 by autocast, flash attention and activation checkpointing of every layer. This
  is not understood: hidden states in fp32 would explain 5 GB of 17.
- **Compiled runs of 2025 need less than is estimated**: torchtitan on H200 and torchao on B200 compiled the loss as
  well, which then holds six bytes of a logit or less. Runs of 2024 held 12, prime-rl's 16. No flag tells one from the
  other, and 14 are estimated.
- **A fused kernel for the loss holds 8 bytes of a logit** where 12 are estimated: fms-acceleration's fused runs with a
  whole loss are estimated up to a third too large.
- **A recipe has no choice of offloaded activations**: three of prime-rl's runs are estimated as if they stayed.
"""
EVERY_PEAK = """## Every peak of memory, worst first

`published` is what PyTorch had reserved or allocated at most ([which, by source](published.md#peaks-of-memory)).
`most of it` names the two largest terms of the estimate.
"""
