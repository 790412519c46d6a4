"""A model whose gradients do not depend on its parameters, so that tests detect values that are lost or sent twice."""

import torch

SHAPES = {"first": (40, 48), "bias": (40,), "second": (64, 40), "third": (32, 64)}


class Linear(torch.nn.Module):
    """A model whose loss is the sum of its parameters times given numbers, which are therefore the gradients."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        return sum((getattr(self, name) * gradient).sum() for name, gradient in gradients.items())  # type: ignore[return-value]


def gradients(rank: int, step: int, names: tuple[str, ...] = tuple(SHAPES)) -> dict[str, torch.Tensor]:
    """Gradients of this rank in this step, in multiples of 1/64, so that sums and means over few ranks are exact."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {name: torch.randint(-64, 64, SHAPES[name], generator=generator) / 64 for name in names}


def mean(world: int, step: int, name: str) -> torch.Tensor:
    return sum(gradients(rank, step)[name] for rank in range(world)) / world  # type: ignore[return-value]
