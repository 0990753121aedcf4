"""Modules that somebody else might have written, and what devices feed them. Nothing here knows of the engine."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

WIDTH = 7  # no multiple of 2, 3 or 4: every shard is padded somewhere


class Block(nn.Module):
    """A residual layer. `recompute`: keep nothing inside, by either kind of checkpoint."""

    def __init__(self, width: int = WIDTH, recompute: str = "") -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute:
            return checkpoint(self._compute, x, use_reentrant=self.recompute == "reentrant")
        return self._compute(x)

    def _compute(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Embedding, layers and head. `around` recomputes whole layers, from outside."""

    def __init__(self, layers: int = 3, vocab: int = 11, tied: bool = False, around: str = "", **block) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, WIDTH)
        self.layers = nn.ModuleList(Block(**block) for _ in range(layers))
        self.head = nn.Linear(WIDTH, vocab, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.around = around

    def forward(self, tokens: Tensor, turn: int) -> Tensor:
        x = self.embedding(tokens)
        for layer in self._chosen(turn):
            x = checkpoint(layer, x, use_reentrant=self.around == "reentrant") if self.around else layer(x)
        return self.head(x)

    def _chosen(self, turn: int) -> list[nn.Module]:  # noqa: ARG002 - subclasses choose
        return list(self.layers)


class Dropping(Net):
    """Leaves out a layer, another one in each microbatch, so that whole units go unused."""

    def _chosen(self, turn: int) -> list[nn.Module]:
        return [layer for i, layer in enumerate(self.layers) if i != turn % len(self.layers)]


class OneTrained(Dropping):
    """The first layer alone is trained, as a vision tower may be: microbatches without it have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.layers[0].requires_grad_(True)


class Choosy(Net):
    """Parameters that some microbatches use and others do not: two of equal size, one of odd size, one used never."""

    def __init__(self) -> None:
        super().__init__(layers=1)
        self.layers = nn.ModuleList(ChoosyBlock() for _ in range(2))
        self.root_extra = nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, tokens: Tensor, turn: int) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, turn)
        if turn % 4 == 1:
            x = x + self.root_extra.sum(0)
        return self.head(x)


class ChoosyBlock(Block):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
        self.right = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
        self.sometimes = nn.Parameter(torch.randn(5, WIDTH))
        self.never = nn.Parameter(torch.ones(4, WIDTH))

    def forward(self, x: Tensor, turn: int) -> Tensor:
        x = x @ (self.left if turn % 2 else self.right)
        if turn % 3 == 2:
            x = x + self.sometimes.mean(0)
        return super().forward(x)


class Passing(Net):
    """On device 0 a layer hands on what it was given: a unit through which gradients pass, and of which no parameter
    gets one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PassingBlock() for _ in self.layers)

    def forward(self, tokens: Tensor, turn: int) -> Tensor:
        x = self.embedding(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x, idle=i == 1 and turn < 3)
        return self.head(x)


class PassingBlock(Block):
    def forward(self, x: Tensor, *, idle: bool) -> Tensor:
        return 1.0 * x if idle else super().forward(x)


class Half(Net):
    """Every second parameter of each layer, and the embedding, are frozen; so is one whole layer."""

    def __init__(self) -> None:
        super().__init__()
        frozen = [self.embedding, *(layer.up for layer in self.layers), self.layers[1]]
        for module in frozen:
            module.requires_grad_(False)


class Narrow(nn.Module):
    """Fewer rows than devices: some shards are empty."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, 1), nn.Linear(1, 2)])
        self.embedding = nn.Embedding(11, WIDTH)
        self.scale = nn.Parameter(torch.ones(1))
        self.nothing = nn.Parameter(torch.zeros(0, 3))  # which nobody uses

    def forward(self, tokens: Tensor, turn: int) -> Tensor:  # noqa: ARG002
        x = torch.tanh(self.layers[0](self.embedding(tokens)))
        x = self.layers[1](x) * self.scale
        return F.pad(x, (0, 9))


def tokens_of(device: int, microbatch: int, minibatch: int = 0) -> Tensor:
    """As many as they like: microbatches are of unequal lengths."""
    draw = torch.Generator().manual_seed(100_000 * minibatch + 100 * device + microbatch)
    return torch.randint(0, 11, (int(torch.randint(2, 9, (1,), generator=draw)),), generator=draw)


def loss(model: nn.Module, device: int, microbatch: int, minibatch: int = 0) -> Tensor:
    """Unlike in every microbatch, and normalised over none of them: sums are to be compared."""
    tokens = tokens_of(device, microbatch, minibatch)
    found = model(tokens[:-1], turn(device, microbatch))
    return F.cross_entropy(found.to(torch.promote_types(found.dtype, torch.float32)), tokens[1:]) / (1 + device)


def turn(device: int, microbatch: int) -> int:
    return 3 * device + microbatch


def nano() -> nn.Module:
    """The engine's own decoder, at its smallest."""
    from odc_engine.decoder.model import Decoder
    from odcsim import catalog

    return Decoder(catalog.model("nano"))
