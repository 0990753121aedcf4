"""The words around the tables of docs/paper.md, with places for figures that are computed."""

INTRO = """# Published figures beside ours

Written by `make reproduce-paper` (`python docs/studies/reproduce_paper.py`) on {day}, in two minutes on two
cores without a GPU; its figures are the same on any machine. Everything under "ours" is simulated: {draws} minibatches
of each setting, seed 0. Settings, published figures and their sources stand in [paper.toml](paper.toml). Nothing was
fitted to them but the seconds of [one section](#what-an-engines-own-seconds-would-explain), which are judged on
settings left out, and what an MI300X reaches, which was chosen by hand to meet the port's figures.

The settings are those of ODC ([arXiv 2601.19362](https://arxiv.org/abs/2601.19362)): 1.5B and 7B on 8 A100, 14B on 16,
32B on 32, in nodes of 8 with 800 Gb/s each. The paper's own tables were not at hand: what stands here as published is
its text and what others quote of its tables. Every other cell of those tables is unknown to us, and ours stands alone
in the last table. Whoever has the paper can add cells to paper.toml, and this page says how far off they are.

- Lengths are the [shapes](model/statistics.md#named-shapes) of the three datasets, not their data.
- 1.5B and 7B take the seconds of the published A100 fit, which holds the transfers inside a node; 14B, 32B and every
  MI300X take the catalog's.
- Inside a node one-sided transfers take as long as collectives, between nodes as long as a card's line rate does, 4.4
  times a collective's; in backward pushes share links with gathers. Ranges in brackets are 3 and 4 times, the ends of
  what the paper reports. Each device has an eighth of its node's network to itself: no link is shared, so the analytic
  executor gives what `des` gives, and `des` was needed for none of them.
- Speedups are over collective + `lb-micro`, of the training step alone.

## One figure at a time
"""
NOTES = """`off` is ours over published, minus one, also for idle; `points` is ours minus published in hundredths, and
`sign` whether ours is faster where the published is, and slower where it is. `(ours: ...)` is the balancer of ours that
does what theirs of that name did. "Largest of" is an "up to" of the text, held against the largest of our settings of
that group.
"""
NODES = """On several nodes {count} speedups are {plain:.1f} points off in the median, {largest:.1f} at most; {right} go
the right way and {wrong} the wrong way. With seconds of an engine's own, each judged by those of its other settings,
the median is {judged:.1f}."""
COSTS = """The engine of this project takes milliseconds per minibatch beside bytes
([measured](engine/measured.md#what-on-demand-costs-beside-bytes)). Others may take more. `would need` is how many
seconds per minibatch, on-demand's alone, give the published speedup; `the others need` is their median over the
engine's other settings, nothing where it is below zero, and `ours with that` what `compare --on-demand-cost` makes of
it. These are fits to published figures and not predictions: nobody has measured such a cost.

- **ODC** ([source](https://github.com/sail-sg/odc)): every push waits until a process beside the owner, which looks for
  requests every 0.1 ms, has added it, in pieces; a minibatch ends with a gathering of counts and a wait for that
  process. On several nodes its cells need {odc:+.2f} s in the median: no fixed cost explains them.
- **AMD's port** (its source: `push` [below](#sources)): gradients of all microbatches are summed on the device, and
  reduced once per minibatch, unit by unit between barriers, with nothing beside it (`blog` tells of 5 % overlap). All
  gradients at once take {moved_one:.2f} s on one node and {moved_two:.2f} s on two, at the rates of the links. Its
  cells need {one:.2f} s and {several:.2f} s in the median. So bytes in the open explain a part. What the rest is, reads
  between nodes far below a card's rate or the work around them, is not known. The signs that are wrong without it are
  all the port's on two nodes, where small minibatches have to bear it.
"""
HYBRID = """How many times as fast on-demand is with `--sharding hybrid`. The paper's appendix E has 1.28 at most, as
reviews quote it; in the settings that it ran ours has {most:.2f} at most. Its lengths there are not known to us. Below
are shorter samples, too: LongAlign's shape, all lengths shrunk alike. What a device of full sharding pulls and pushes
is no less than the bytes that other nodes have, through its own card: where microbatches are so small that this is most
of a step, hybrid gains as many times as there are bytes to save, and no overlap or order changes that.
"""
STATED = """That on-demand gains nothing at one sample per device is said of the evaluation as a whole. It is no test of
the model inside a node, where nothing can be gained; between nodes slower transfers could lose something.
"""
VARIANTS = """The figures of the paper's own A100 settings again, each time with one input exchanged for another that
could be defended as well. None was chosen by its result.
"""
WHY = """## Why figures are missed

As far as there is evidence. Nothing below was put into the numbers above.

- **Golden setting.** The table above shows what lengths, limit and seconds can do to it, one at a time. None reaches
  1.34 for `lb-mini`. The setting sits on a cliff: a limit a tenth higher costs as much as the whole miss ([the
  log](log.md#the-setting-of-the-paper-sits-on-a-cliff)), and how far the real lengths fill a microbatch is not
  published.
- **Idle at minibatch 1.** The paper's is its packer's estimate, by costs without a constant. Such costs give ours the
  idle of the row "without its constant". Ours counts the constant as compute. Devices that wait have one as well, so
  idle is lower.
- **The port where it lost.** In our seconds on-demand has next to no fixed cost: what the engine of this project takes
  on the host, milliseconds. The port has [seconds of its own](#what-an-engines-own-seconds-would-explain).
- **The port's seconds.** What an MI300X reaches is in the catalog as it was chosen by hand, so that these seconds and
  the speedups beside them come out: they are no test of it. On two nodes on-demand still took {longer:.2f} times as
  long as here, collectives {other:.2f} times. So something in the port's transfers between nodes is not in ours, and
  their rival also differs: it runs the samples of `lb-mini`, made equal in microbatches.
- **RL.** The paper trained in a loop that gives every device equally many samples, as `lb-micro` does, and with that
  ours is {equal:.2f} at most. Siblings of one prompt, which are alike, are not in our lengths; and the paper's RL ends
  at 14B.
- **Idle of collectives on LongAlign.** The paper's packer estimates more than ours has, at 14B much more. With its idle
  and no transfers on-demand would gain more than the paper measured.
"""
LINES = """## All settings, ours

Where the tables above have no published figure for a setting, none is known to us. Speedups over collective +
`lb-micro`; `transfers exposed` is the share of device time that waits for bytes, under collective + `lb-micro` and
under on-demand + `lb-mini`. RL on several nodes is where it matters most: samples are short, and compute hides less.
"""
