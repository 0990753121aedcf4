"""Save what forward and backward change besides gradients: random number generators and buffers."""

import torch
from torch import Tensor, nn


class State:
    """State to restore after a pass that failed."""

    def __init__(self, model: nn.Module) -> None:
        self._random = random_states()
        self._versions = {name: (id(buffer), buffer._version) for name, buffer in model.named_buffers()}

    def drew(self) -> bool:
        return not all(map(torch.equal, self._random, random_states()))

    def changed_buffer(self, model: nn.Module) -> str | None:
        now = {name: (id(buffer), buffer._version) for name, buffer in model.named_buffers()}
        return next((name for name in now if now[name] != self._versions.get(name)), None)


def random_states() -> list[Tensor]:
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])
