"""Trainers that others wrote, a file for each: settings, syncs, the rule by which samples are dealt.

Rules are after what each says that it does, on tokens alone, and every one held to the limit and to equal counts, which
not all keep to by themselves. Costs are theirs, not this model's.
"""

from odcsim import balance
from odcsim.balance.balancer import Balancer
from odcsim.neighbours import accelerate, axolotl, llama_factory, nemo_rl, prime_rl, slime, torchtitan, trl, verl

# In the order in which they are offered.
TRAINERS = {
    trainer.name: trainer
    for trainer in (
        verl.VERL, slime.SLIME, trl.TRL, nemo_rl.NEMO_RL, torchtitan.TORCHTITAN, axolotl.AXOLOTL,
        llama_factory.LLAMA_FACTORY, prime_rl.PRIME_RL,
        accelerate.ACCELERATE,
    )
}  # fmt: skip
# Their rules as balancers, to compare with: whoever asks which one to take finds his own in the table.
FIELD = tuple(balancer for trainer in TRAINERS.values() for balancer in trainer.balancers)
_RULES = {balancer.name: balancer for balancer in FIELD}


def named(name: str) -> Balancer:
    """The balancer of that name, of ours and of other trainers' rules."""
    return _RULES[name] if name in _RULES else balance.named(name)


def own(trainer: str | None) -> tuple[str, ...]:
    """The balancers that a trainer has by itself."""
    known = None if trainer is None else TRAINERS.get(trainer)
    return () if known is None else tuple(rule.balancer for rule in known.rules)
