"""Remember a model's parameters: load_state_dict(assign=True) replaces them."""

from collections.abc import Sequence

from torch import Tensor
from torch.optim.optimizer import Optimizer

from odc_engine.fsdp.units import Unit

_REPLACED = "odc_replaced"


class KnownParameters:
    """The parameters of all units at the time of construction."""

    def __init__(self, units: Sequence[Unit]) -> None:
        pieces = [piece for unit in units for piece in unit.pieces]
        self._sharded: dict[int, Tensor] = {id(piece.parameter): piece.parameter for piece in pieces}
        self._whole = {id(piece.managed.whole) for piece in pieces}

    def any_in(self, optimizer: Optimizer) -> bool:
        return any(id(each) in self._sharded for group in optimizer.param_groups for each in group["params"])

    def has_whole(self, parameter: Tensor) -> bool:
        """Whether FSDP2 shows this tensor while a unit is whole."""
        return id(parameter) in self._whole

    def mark_replaced(self, former: "KnownParameters") -> None:
        for number, parameter in former._sharded.items():
            if number not in self._sharded:
                setattr(parameter, _REPLACED, True)


def was_replaced(parameter: Tensor) -> bool:
    return hasattr(parameter, _REPLACED)
