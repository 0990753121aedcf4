"""Trainers that others wrote, a file for each: settings, syncs, the rule by which samples are dealt, what it logs.

Rules are after what each says that it does, on tokens alone, and every one held to the limit and to equal counts, which
not all keep to by themselves. Costs are theirs, not this model's.
"""

from odcsim.neighbours import accelerate, axolotl, llama_factory, nemo_rl, slime, torchtitan, trl, verl

# In the order in which they are offered.
TRAINERS = {
    trainer.name: trainer
    for trainer in (
        verl.VERL, slime.SLIME, trl.TRL, nemo_rl.NEMO_RL, torchtitan.TORCHTITAN, axolotl.AXOLOTL,
        llama_factory.LLAMA_FACTORY, accelerate.ACCELERATE,
    )
}  # fmt: skip
