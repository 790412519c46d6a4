"""Layers without a gradient on this rank keep what is remembered of them, in a GPU's memory.

DDP drops the mean of a parameter that no rank has used, so that a residual which went out with its zeros would be lost. In its stead zeros
are exchanged, and it is put back when the means are enqueued, in both places that a bucket has for residuals: whether the step counts or not,
and whether a GradScaler has it taken back later, it is there. The host does not hear which gradients are zeros, and waits for nothing.
"""

import torch

from lgreco.torch.remembered import Remembered


class Held:
    """The residuals of a bucket's layers whose gradient is all zeros in a step, and zeros in their place."""

    def __init__(self, remembered: Remembered, gradients: list[torch.Tensor]) -> None:
        self._remembered = remembered
        self._is_zero = [gradient.any().logical_not() for gradient in gradients]
        self._mask = torch.cat([zero.expand(length) for zero, length in zip(self._is_zero, remembered.lens)])
        self._kept = remembered.counted()

    def put_aside(self) -> None:
        """Has zeros exchanged. Whoever calls it can put back already, should an interrupt come."""
        self._remembered.both().masked_fill_(self._mask, 0.0)

    def put_back(self) -> None:
        """When the means are enqueued, or will never be."""
        both = self._remembered.both()
        torch.where(self._mask, self._kept, both, out=both)

    def forget(self, places: list[int]) -> None:
        """Forgets what the step has not sent of these layers, but for those that are held."""
        layers = torch.split(self._remembered.both(), self._remembered.lens, dim=1)
        for place in places:
            layers[place].masked_fill_(self._is_zero[place].logical_not(), 0.0)

    def holds(self, place: int) -> bool:
        """Waits: whether the layer in this place is held."""
        return bool(self._is_zero[place].item())
