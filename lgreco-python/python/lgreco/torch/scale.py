"""Reads the loss scale of mixed precision without waiting for a GPU, and rescales residuals when the scale changes."""

from collections.abc import Callable

import torch

from lgreco._lgreco import Controller
from lgreco.torch.cuda import Cuda
from lgreco.torch.device import Buckets
from lgreco.torch.options import Scaler


class Scale:
    """The factor by which a GradScaler multiplies losses; 1 without a GradScaler."""

    def __init__(self, scaler: Scaler | None) -> None:
        self._scaler = scaler
        self._noted: tuple[torch.Tensor, int, Callable[[], torch.Tensor]] | None = None

    @property
    def is_scaled(self) -> bool:
        """Whether there is a GradScaler."""
        return self._scaler is not None

    def is_of(self, scaler: Scaler) -> bool:
        """Whether ``scaler`` determines this scale."""
        return self._scaler is scaler

    def note(self, cuda: Cuda) -> None:
        """Copies the scale from the GPU before a forward pass, so that ``now`` does not wait for the pass."""
        scale = getattr(self._scaler, "_scale", None)
        if torch.is_grad_enabled() and isinstance(scale, torch.Tensor) and scale.device == cuda.device:
            self._noted = (scale, scale._version, cuda.later(scale))

    def now(self) -> float:
        """The scale. Waits for the GPU unless the scale was noted and has not changed since."""
        if self._scaler is None:
            return 1.0
        if self._noted is not None:
            scale, version, value = self._noted
            if getattr(self._scaler, "_scale", None) is scale and scale._version == version:
                return float(value())
        return self._scaler.get_scale()

    def follow(self, controller: Controller, device: Buckets | None) -> None:
        """Rescales residuals if the scale has changed, and undoes the last step if the GradScaler has skipped it.

        A smaller scale means that the step was skipped. May be called again after an interrupt.
        """
        scale, before = self.now(), controller.scale
        if scale == before:
            return
        was_skipped = scale < before
        if device is None:
            if was_skipped:
                controller.roll_back()
            controller.follow_scale(scale)
            return
        device.bring_home(taken_back=was_skipped)
        device.is_behind = True
        if was_skipped:
            controller.roll_back()
        try:
            controller.follow_scale(scale)
        finally:
            device.take_out()
