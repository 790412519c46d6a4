"""Layers without a gradient on this rank keep what is remembered of them, in a GPU's memory.

DDP drops the mean of a parameter that no rank has used, so that a residual which went out with its zeros would be lost. In its stead zeros
are exchanged, and it is put back when the means are enqueued, in both places that a bucket has for residuals: whether the step counts or not,
and whether a GradScaler has it taken back later, it is there. The host does not hear which gradients are zeros, and waits for nothing.
"""

import torch

from lgreco._lgreco import DeviceBucket
from lgreco.torch.cuda import Cuda


class Held:
    """The residuals of a bucket's layers whose gradient is all zeros in a step, and zeros in their place."""

    def __init__(self, cuda: Cuda, bucket: DeviceBucket, memory: torch.Tensor, gradients: list[torch.Tensor]) -> None:
        self._cuda = cuda
        self._bucket = bucket
        self._memory = memory
        self._lens = [gradient.numel() for gradient in gradients]
        self._is_zero = [gradient.any().logical_not() for gradient in gradients]
        self._mask = torch.cat([zero.expand(length) for zero, length in zip(self._is_zero, self._lens)])
        second = cuda.part(memory, bucket.residuals[1], 4, torch.int32)
        residuals = self._residuals()
        self._kept = torch.where(second == 0, residuals[0], residuals[1])
        residuals.masked_fill_(self._mask, 0.0)

    def _residuals(self) -> torch.Tensor:
        return self._cuda.part(self._memory, self._bucket.residuals[0], 8 * sum(self._lens), torch.float32).view(2, -1)

    def put_back(self) -> None:
        """When the means are enqueued, or will never be."""
        residuals = self._residuals()
        torch.where(self._mask, self._kept, residuals, out=residuals)

    def forget(self) -> None:
        """Forgets what the step has not sent of layers that are to go without error feedback, but for those that are held."""
        residuals = torch.split(self._residuals(), self._lens, dim=1)
        for place in self._bucket.forgetful:
            residuals[place].masked_fill_(self._is_zero[place].logical_not(), 0.0)

    def holds(self, place: int) -> bool:
        """Waits: whether the layer in this place is held."""
        return bool(self._is_zero[place].item())
