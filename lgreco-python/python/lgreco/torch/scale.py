"""The factor of mixed precision's losses, and how it is known without waiting for a GPU's forward pass."""

from collections.abc import Callable

import torch

from lgreco.torch.cuda import Cuda
from lgreco.torch.options import Scaler


class Scale:
    """What a GradScaler multiplies losses by."""

    def __init__(self, scaler: Scaler) -> None:
        self._scaler = scaler
        self._noted: tuple[torch.Tensor, int, Callable[[], torch.Tensor]] | None = None

    def note(self, cuda: Cuda) -> None:
        """Before a forward pass: has the scale copied from the GPU, so that nobody waits for the pass to know it."""
        scale = getattr(self._scaler, "_scale", None)
        if torch.is_grad_enabled() and isinstance(scale, torch.Tensor) and scale.device == cuda.device:
            self._noted = (scale, scale._version, cuda.later(scale))

    def now(self) -> float:
        """The scale. Waits for all that is enqueued if it has been changed since it was noted, or has not been noted."""
        if self._noted is not None:
            scale, version, value = self._noted
            if getattr(self._scaler, "_scale", None) is scale and scale._version == version:
                return float(value())
        return self._scaler.get_scale()
