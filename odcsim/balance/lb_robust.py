"""lb-robust: loads that stay even when the cost model is wrong. On-demand sync alone can run it."""

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.balance.fewest import pack_all
from odcsim.balance.longest_first import longest_first
from odcsim.balance.scenarios import guessed, in_bounds
from odcsim.balance.trades import hold, relieve


def lb_robust(work: Work) -> Deal:
    """The right one under on-demand unless you measured your costs: nobody's fit of the quadratic part is exact.

    LPT, then trades that lower the worst load over all scenarios. It gives up some tenths of a percent where the model
    is right, to lose no more where it is wrong by a fifth; plans that fit tightly by the model lose several percent.
    """
    weights, devices = work.weights, work.devices
    unsure = guessed(weights, work.tokens) if work.scenarios is None else work.scenarios
    relieved = relieve(hold(longest_first(weights, devices), devices), in_bounds(unsure, devices))
    return Deal(pack_all(relieved.held, weights, work.tokens, work.max_tokens))


BALANCER = Balancer(
    "lb-robust",
    lb_robust,
    "even totals also where costs are off: unless they were measured",
    free_counts=True,
    scenarios=True,
    advised_for=lambda sync: sync.uneven,
)
