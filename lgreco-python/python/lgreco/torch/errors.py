"""What compressing loses in a step, measured in a GPU's memory: what is not sent is what is remembered of it."""

import math
from collections.abc import Callable

import torch

from lgreco.torch.cuda import Cuda
from lgreco.torch.remembered import Remembered


class Errors:
    """The relative squared errors of a bucket's layers in one step."""

    def __init__(self, cuda: Cuda, remembered: Remembered, gradients: list[torch.Tensor]) -> None:
        """Before the gradients are compressed, which become means."""
        self._cuda = cuda
        self._remembered = remembered
        self._offered = remembered.counted().add_(torch.cat([gradient.flatten() for gradient in gradients]))
        self._told: Callable[[], torch.Tensor] | None = None

    def measured(self) -> "Errors":
        """When the means are enqueued: itself, with what has been sent."""
        norms = [self._norms(values) for values in (self._remembered.counted(), self._offered)]
        self._told = self._cuda.later((norms[0] / norms[1]).square())
        return self

    def _norms(self, values: torch.Tensor) -> torch.Tensor:
        layers = torch.split(values, self._remembered.lens)
        return torch.stack([torch.linalg.vector_norm(layer, dtype=torch.float64) for layer in layers])

    def told(self, nothing: float | None) -> list[float | None]:
        """By layer, when the outcome of the step is known; ``nothing`` where there was nothing to compress."""
        errors: list[float] = [] if self._told is None else self._told().tolist()
        return [error if math.isfinite(error) else nothing for error in errors]
