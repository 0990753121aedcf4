"""Models that skip layers of text: dropped at random, left early, or experts that no token is sent to."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from paths.families import SEED, WORDS, Batch

WIDTH, LAYERS, EXPERTS = 16, 4, 8


def bart() -> nn.Module:
    """Half of its encoder's layers are dropped, each time others, by draws that ranks do not share."""
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = {"d_model": WIDTH, "vocab_size": WORDS, "max_position_embeddings": 64}
    encoder = {"encoder_layers": LAYERS, "encoder_attention_heads": 4, "encoder_ffn_dim": 24, "encoder_layerdrop": 0.5}
    decoder = {"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 20}
    return BartForConditionalGeneration(BartConfig(**sizes | encoder | decoder, dropout=0.0))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class _Text(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, input_ids: Tensor, turn: int) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(self.through(self.embedding(input_ids), turn)))


class Leaving(_Text):
    """A text leaves after so many layers."""

    def __init__(self) -> None:
        super().__init__(LAYERS)

    def through(self, x: Tensor, turn: int) -> Tensor:
        for block in self.blocks[:turn]:
            x = block(x)
        return x


class Routed(_Text):
    """Tokens go to two neighboring experts of eight, each a unit."""

    def __init__(self) -> None:
        super().__init__(EXPERTS)

    def through(self, x: Tensor, turn: int) -> Tensor:
        first, second = self.blocks[turn % EXPERTS], self.blocks[(turn + 1) % EXPERTS]
        half = x.shape[1] // 2
        return torch.cat([first(x[:, :half]), second(x[:, half:])], 1)


@dataclass(frozen=True)
class Skipping:
    """As a Family is, with a turn in place of a number of images: layers to go through, or the first expert."""

    make: Callable[[], nn.Module]
    units: tuple[str, ...] = ("Block",)
    tower: str = "blocks"
    tells: bool = True  # the model its turn

    def fresh(self) -> nn.Module:
        torch.manual_seed(SEED)
        return self.make().double().train()

    def batch(self, turn: int, draw: torch.Generator) -> Batch:
        ids = torch.randint(1, WORDS, (1, int(torch.randint(6, 14, (1,), generator=draw))), generator=draw)
        return {"input_ids": ids} | ({"turn": turn} if self.tells else {})


BART = Skipping(bart, ("BartEncoderLayer", "BartDecoderLayer"), "model.encoder", tells=False)
LEAVING = Skipping(Leaving)
ROUTED = Skipping(Routed)
