"""lb-robust: loads that stay even when the cost model is wrong. On-demand sync alone can run it."""

from odcsim.balance.search.fewest import pack_all
from odcsim.balance.search.longest_first import longest_first
from odcsim.balance.search.packing import Microbatch
from odcsim.balance.search.scenarios import in_bounds
from odcsim.balance.search.trades import Floats, Held, hold, relieve


def lb_robust(
    weights: Floats, tokens: Held, scenarios: Floats, devices: int, max_tokens: int
) -> list[list[Microbatch]]:
    """The right one under on-demand unless you measured your costs: nobody's fit of the quadratic part is exact.

    LPT, then trades that lower the worst load over all scenarios. It gives up some tenths of a percent where the model
    is right, to lose no more where it is wrong by a fifth; plans that fit tightly by the model lose several percent.
    """
    found = relieve(hold(longest_first(weights, devices), devices), in_bounds(scenarios, devices))
    return pack_all(found.held, weights, tokens, max_tokens)
