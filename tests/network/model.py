"""The model: a character transformer of 7.5 million parameters that learns *Around the World in Eighty Days*."""

import pathlib

import torch
from torch.nn.functional import cross_entropy

CONTEXT, BATCH = 64, 4
HELD_OUT = 40  # batches for the held-out loss


class Transformer(torch.nn.Module):
    def __init__(self, characters: int, width: int = 320, layers: int = 6) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(characters, width)
        self.position = torch.nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        return self.head(self.layers(self.embed(text) + self.position, mask, is_causal=True))


class Text:
    """The text, split into characters for training and characters for the held-out loss."""

    def __init__(self) -> None:
        text = (pathlib.Path(__file__).parents[2] / "examples/data/eighty_days.txt").read_text()
        known = {character: number for number, character in enumerate(sorted(set(text)))}
        self.characters = len(known)
        all_of_it = torch.tensor([known[character] for character in text])
        split = len(all_of_it) * 9 // 10
        self.training, self._held_out = all_of_it[:split], all_of_it[split:]

    def batch(self, generator: torch.Generator, text: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        text = self.training if text is None else text
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
        rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        return rows[:, :-1], rows[:, 1:]

    @torch.no_grad()
    def held_out_loss(self, model: torch.nn.Module, rank: int, world: int) -> torch.Tensor:
        """This rank's part of the held-out loss. The sum over all ranks is the mean over 40 batches, which are the same
        in every call."""
        draw = torch.Generator().manual_seed(3)
        batches = [self.batch(draw, self._held_out) for _ in range(HELD_OUT)]
        losses = (cross_entropy(model(x).flatten(0, 1), y.flatten()) for x, y in batches[rank::world])
        return sum(losses, torch.zeros(())) / HELD_OUT
