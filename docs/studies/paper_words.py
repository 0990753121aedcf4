"""The words around the tables of docs/paper.md and docs/paper-cells.md, with places for figures that are computed."""

INTRO = """# Published figures beside ours

Does odcsim predict the speedups that others measured with on-demand communication? Every published figure that we
know, from the ODC paper ([arXiv 2601.19362](https://arxiv.org/abs/2601.19362)) and from AMD's port of it, stands here
or in the [appendix](paper-cells.md), beside what odcsim predicts for the same setting. The page is for whoever wants
to know where the predictions fail. Everything under "ours" is simulated; no run is ours.

- **All figures**: {within5} of {count} are within 5 %, {within10} within 10 %.
- **The golden setting** (the paper's parametric study: 1.5B on 8 A100, LongAlign, 4 samples per GPU and step):
  on-demand + `lb-mini` runs {published_mini:.2f} times as fast as collective + `lb-micro` as published and {mini:.2f}
  times as predicted; on-demand + `lb-micro` {published_micro:.2f} and {micro:.2f} times.
- **Several nodes**: {right} of {nodes} speedups go the right way and {wrong} the wrong way. They are {plain:.1f}
  hundredths off in the median.
- **The worst**: {worst}.

[The settings one by one](paper-cells.md), with the sources, hybrid sharding and what a fixed cost of an engine would
explain, are a page of their own.

## How many are met
"""
SOURCES = """The paper's own tables were not at hand: what stands here as published is its text and what others quote
of its tables. Every other cell of those tables is unknown to us. Whoever has the paper can add cells to
[paper.toml](paper.toml), and this page says how far off they are.
"""
POINTS = """## One figure at a time
"""
NOTES = """- `off` is ours over published, minus one, also for idle.
- `points` is ours minus published in hundredths.
- `sign` says whether ours is faster where the published one is, and slower where it is slower.
- `(ours: ...)` is our balancer that does what theirs of that name did.
- "Largest of" is an "up to" in the text, compared with the largest of our settings of that group.
- Speedups are over collective + `lb-micro`, of the training step alone. `source` is a name in the list of
  [sources](paper-cells.md#sources).
"""
MEASURED = """## How it was computed

`make reproduce-paper` (`python docs/studies/reproduce_paper.py`) wrote this page on {day}, in two minutes on
two cores without a GPU; its figures are the same on any machine. Each setting is {draws} simulated minibatches, seed 0.

- The settings are those of ODC: 1.5B and 7B on 8 A100, 14B on 16, 32B on 32, in nodes of 8 with 800 Gb/s each.
  Settings, published figures and their sources stand in [paper.toml](paper.toml).
- Sequence lengths are the [shapes](model/statistics.md#named-shapes) of the three datasets, not their data.
- 1.5B and 7B take the seconds of the published A100 fit, which includes the transfers inside a node. 14B, 32B and
  every MI300X take the catalog's.
- Inside a node, one-sided transfers take as long as collectives. Between nodes they take as long as a card's line rate
  does, 4.4 times a collective's; in the backward pass pushes share links with gathers.
- Two things were fitted to published figures: the seconds of [one
  section](paper-cells.md#what-an-engines-own-seconds-would-explain), which are judged on settings left out, and what
  an MI300X reaches, which was chosen by hand to meet the port's figures.
"""
NODES = """On several nodes {count} speedups are {plain:.1f} points off in the median, {largest:.1f} at most; {right}
go the right way and {wrong} the wrong way. With seconds of an engine's own, each judged by those of its other
settings, the median is {judged:.1f}."""
WHY = """## Why figures are missed

As far as there is evidence. None of it was put into the numbers above.

- **Golden setting.** [One input at a time](paper-cells.md#what-one-input-changes), lengths, token limit and seconds do
  not bring `lb-mini` to 1.34. The setting is very sensitive to the limit: one that is a tenth higher costs as much as
  the whole miss ([the log](log.md#the-setting-of-the-paper-sits-on-a-cliff)). How full the real lengths make a
  microbatch is not published.
- **Idle at minibatch 1.** The paper's figure is its packer's estimate, by costs without a constant per microbatch.
  With such costs ours has the idle of the row "without its constant". Ours counts the constant as compute, and GPUs
  that wait have it as well, so idle is lower.
- **The port where it lost.** In our seconds on-demand has next to no fixed cost: the milliseconds that this project's
  engine takes on the host. The port has [seconds of its
  own](paper-cells.md#what-an-engines-own-seconds-would-explain).
- **The port's seconds.** What an MI300X reaches was chosen by hand in the catalog so that these seconds, and the
  speedups beside them, come out: they are no test of it. On two nodes on-demand still took {longer:.2f} times as long
  as here, collectives {other:.2f} times. So something in the port's transfers between nodes is missing in ours. The
  port's baseline differs, too: it runs the samples of `lb-mini`, with equal numbers of microbatches.
- **RL.** The paper trained in a loop that gives every GPU equally many samples, as `lb-micro` does, and with that ours
  is {equal:.2f} at most. Our lengths do not hold siblings of one prompt, which are alike; and the paper's RL ends at
  14B.
- **Idle of collectives on LongAlign.** The paper's packer estimates more than ours has, at 14B much more. With its
  idle and no transfers on-demand would gain more than the paper measured.
"""
CELLS = """# Published figures, setting by setting

The appendix of [published figures beside ours](paper.md): what was stated for all settings, what an engine's fixed
cost would explain, hybrid sharding, what one input changes, and every setting of the paper as we predict it. Written
by `make reproduce-paper` on {day}.

## Stated for all settings at once
"""
STATED = """The paper says of its evaluation as a whole that on-demand gains nothing at one sample per GPU. Inside a
node this is no test of the model, since nothing can be gained there; between nodes slower transfers could lose
something.
"""
COSTS = """This project's engine takes milliseconds per minibatch besides bytes
([measured](engine/measured.md#what-on-demand-costs-beside-bytes)). Others may take more. `would need` is how many
seconds per minibatch, on-demand's alone, would give the published speedup. `the others need` is their median over the
engine's other settings, or nothing where it is below zero. `ours with that` is what `compare --on-demand-cost` makes
of it. These are fits to published figures and not predictions: nobody has measured such a cost.

- **ODC** ([source](https://github.com/sail-sg/odc)): every push waits until a process beside the owner, which looks
  for requests every 0.1 ms, has added it, in pieces; a minibatch ends with a gathering of counts and a wait for that
  process. On several nodes its cells need {odc:+.2f} s in the median: no fixed cost explains them.
- **AMD's port** (its source: `push` [below](#sources)): gradients of all microbatches are summed on the GPU and
  reduced once per minibatch, unit by unit between barriers, without overlap (`blog` tells of 5 % overlap). All
  gradients at once take {moved_one:.2f} s on one node and {moved_two:.2f} s on two, at the rates of the links. Its
  cells need {one:.2f} s and {several:.2f} s in the median. So transfers without overlap explain a part. The rest is
  not known: it may be reads between nodes far below a card's rate, or the work around them. The signs that are wrong
  without it are all the port's on two nodes, where small minibatches have to bear it.
"""
HYBRID = """How many times as fast on-demand is with hybrid sharding (`--sharding hybrid`, as HSDP) as with full
sharding (FSDP, ZeRO-3). The paper's appendix E has 1.28 at most, as reviews quote it; in the settings that it ran ours
has {most:.2f} at most. Its lengths there are not known to us. Shorter samples are below, too: LongAlign's shape with
all lengths shrunk alike. Under full sharding a GPU pulls and pushes at least the bytes that other nodes hold, through
its own card. Where microbatches are so small that this is most of a step, hybrid's speedup is the ratio of the bytes,
and no overlap or order changes that.
"""
VARIANTS = """The figures of the paper's own A100 settings again, each time with one input exchanged for another that
could be defended as well. None was chosen by its result.
"""
LINES = """## All settings, ours

Where the other tables have no published figure for a setting, none is known to us. Speedups are over collective +
`lb-micro`. Ranges in brackets are for one-sided transfers between nodes that take 3 and 4 times as long as a
collective's, the ends of what the paper reports. Each GPU has an eighth of its node's network to itself: no link is
shared, so the analytic executor gives what `des` gives, and `des` was needed for none of them. `transfers exposed` is
the share of GPU time that waits for bytes, under collective + `lb-micro` and under on-demand + `lb-mini`. It matters
most in RL on several nodes, where samples are short and compute hides less.
"""
