"""The exchange of one bucket in a GPU's memory. Also holds residuals and measures errors of the bucket's layers.

Every call only enqueues work, unless its comment says that it waits. ``device.py`` reads the outcome when the next step begins.
"""

import contextlib
import copy
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from lgreco._lgreco import Controller, DeviceBucket, LgrecoError
from lgreco.torch.collectives import Started, start
from lgreco.torch.cuda import Cuda

if TYPE_CHECKING:
    from lgreco.torch.device import Buckets

_LOG = logging.getLogger("lgreco")
OUT_OF_MEMORY = 7
"""The permanent error code of missing memory."""
NOT_FINITE = 101
"""The permanent error code of a gradient that is not finite."""


class Residuals:
    """The residuals of a bucket's layers as tensors: float32, one layer after the other."""

    def __init__(self, cuda: Cuda, bucket: DeviceBucket, memory: torch.Tensor, lens: list[int]) -> None:
        self._cuda = cuda
        self._bucket = bucket
        self._memory = memory
        self.lens = lens
        """Number of elements of each layer."""

    def both(self) -> torch.Tensor:
        """The current residuals and those of the previous step, one row each, in either order."""
        return self._cuda.part(self._memory, self._bucket.residuals[0], 8 * sum(self.lens), torch.float32).view(2, -1)

    def current(self) -> torch.Tensor:
        """A copy of the current residuals."""
        is_second = self._cuda.part(self._memory, self._bucket.residuals[1], 4, torch.int32) != 0
        both = self.both()
        return torch.where(is_second, both[1], both[0])


class Held:
    """Holds the residuals of layers whose gradient is all zeros in a step.

    DDP drops the mean of a parameter that no rank has used. If the parameter's residual were sent with these zeros, the residual
    would be lost. So only zeros are exchanged, and the residual is restored once the means are enqueued. Both copies of the
    residual are restored, because the step may fail or be undone by a GradScaler. The host does not learn which gradients are
    zeros, so the host need not wait.
    """

    def __init__(self, residuals: Residuals, is_zero: list[torch.Tensor]) -> None:
        """``is_zero`` says for each layer whether its gradient is all zeros, so that its residual is held."""
        self._residuals = residuals
        self._is_zero = is_zero
        self._mask = torch.cat([zero.expand(length) for zero, length in zip(self._is_zero, residuals.lens)])
        self._kept = residuals.current()

    def put_aside(self) -> None:
        """Replaces the held residuals by zeros. After an interrupt, the caller must call ``put_back``."""
        self._residuals.both().masked_fill_(self._mask, 0.0)

    def put_back(self) -> None:
        """Restores the held residuals, once the means are enqueued or the step has failed."""
        both = self._residuals.both()
        torch.where(self._mask, self._kept, both, out=both)

    def forget(self, places: list[int]) -> None:
        """Clears the residuals of these layers, except layers that are held. ``places`` are positions in the bucket."""
        layers = torch.split(self._residuals.both(), self._residuals.lens, dim=1)
        for place in places:
            layers[place].masked_fill_(self._is_zero[place].logical_not(), 0.0)

    def holds(self, place: int) -> bool:
        """Whether the residual of this layer is held. Waits for the GPU."""
        return bool(self._is_zero[place].item())


class Errors:
    """The relative squared compression errors of a bucket's layers in one step.

    The residual after the step is the compression error.
    """

    def __init__(self, cuda: Cuda, residuals: Residuals, gradients: list[torch.Tensor]) -> None:
        """Must be created before the compression of the gradients, because means replace gradients."""
        self._cuda = cuda
        self._residuals = residuals
        self._offered = residuals.current().add_(torch.cat([gradient.flatten() for gradient in gradients]))
        self._told: Callable[[], torch.Tensor] | None = None

    def measured(self) -> "Errors":
        """Measures the errors, once the means are enqueued. Returns itself."""
        norms = [self._norms(values) for values in (self._residuals.current(), self._offered)]
        self._told = self._cuda.later((norms[0] / norms[1]).square())
        return self

    def _norms(self, values: torch.Tensor) -> torch.Tensor:
        layers = torch.split(values, self._residuals.lens)
        return torch.stack([torch.linalg.vector_norm(layer, dtype=torch.float64) for layer in layers])

    def told(self, nothing: float | None) -> list[float | None]:
        """Errors by layer, once the step's outcome is known. The error of a layer whose gradient and residual were zeros is
        ``nothing``."""
        errors: list[float] = [] if self._told is None else self._told().tolist()
        return [error if math.isfinite(error) else nothing for error in errors]


class Failing:
    """What this rank knows of a bucket's failure in the last step."""

    def __init__(self) -> None:
        self.fault: tuple[int | None, LgrecoError | None, bool] = (None, None, False)
        """The failure on the GPU: the first rank at fault, the error, and whether only this rank knows of the failure."""
        self.refusal: LgrecoError | None = None
        """This rank's own error, which came before or during the exchange."""


class ResidentBucket(Failing):
    """A bucket with its memory on the GPU, which is reused in every step until the bucket's settings change."""

    def __init__(self, bucket: DeviceBucket, memory: torch.Tensor, step: int) -> None:
        super().__init__()
        self.bucket = bucket
        self.memory = memory
        self.step = step
        """The number of the bucket's next step."""
        self.outcome: Callable[[], torch.Tensor] | None = None
        """Returns the GPU's status record of the last step; None once the host has read the record."""
        self.is_revoked = False
        """Whether the last step's new residuals are invalid: the step succeeded in this group of ranks, but failed in
        another group."""
        self.is_to_forget = False
        """Whether the last step's residuals of layers without error feedback must still be cleared."""
        self.held: Held | None = None
        self.errors: Errors | None = None
        """Compression errors of the last step, until the controller has recorded them."""

    def forgotten(self) -> list[int]:
        """Positions of the layers whose residuals must be cleared after the last step. Waits for the GPU if layers are
        held."""
        return [place for place in self.bucket.forgetful if self.held is None or not self.held.holds(place)]


class InDeviceMemory:
    """An exchange that only enqueues work, which replaces gradients by means in a GPU's memory."""

    is_joined = False
    """Only buckets on the host can be joined."""

    def __init__(self, cuda: Cuda, buffer: torch.Tensor) -> None:
        self.future = cuda.future()
        self._cuda = cuda
        self._buffer: torch.Tensor | None = buffer
        self._work: Started | None = None

    def is_last(self) -> bool:
        """Always false, because every step enqueues the means."""
        return False

    def can_end(self) -> bool:
        """Always false: means are enqueued at the end of the backward pass, so that the pass's kernels do not wait for
        collectives."""
        return False

    def give_up(self, error: Exception) -> None:
        if self._work is not None:
            with contextlib.suppress(RuntimeError), self._cuda.stream():
                self._work.wait()
            self._work = None
        if not self.future.done():
            # DDP keeps the future. The frames of the error's traceback would keep the DDP alive, so a copy without
            # traceback is set.
            self.future.set_exception(copy.copy(error))  # type: ignore[arg-type]

    def deliver(self) -> None:
        """Does not copy, because the means are in place. Later work of the current stream runs after the exchange."""
        self._cuda.rejoin()

    def let_go(self) -> None:
        self._buffer = None

    def land(self) -> None:
        """Completes the future, unless the buffer was released."""
        if self._buffer is not None and not self.future.done():
            with self._cuda.stream():
                self.future.set_result(self._buffer)

    def land_zeros(self) -> None:
        assert self._buffer is not None
        with self._cuda.stream():
            self.future.set_result(self._buffer.zero_())


class DeviceExchange(InDeviceMemory):
    """The exchange of one bucket in a GPU's memory."""

    is_lost = False
    lends = False

    def __init__(self, buckets: "Buckets", bucket: ResidentBucket, buffer: torch.Tensor, is_measured: bool) -> None:
        super().__init__(buckets.cuda, buffer)
        self._is_measured = is_measured
        self._buckets = buckets
        self.bucket = bucket
        self.is_zero: list[torch.Tensor] | None = None
        """For each layer, whether it has no gradient in this step. None if ``submit`` must examine the gradients."""

    def open(self, controller: Controller, layers: list[int]) -> None:
        """Does nothing: the controller need not lend layers, because the residuals are on the GPU."""

    def close(self, controller: Controller) -> None:
        """Does nothing, because no layers were lent."""

    def submit(self, gradients: list[torch.Tensor], hold_zeros: bool, failure: LgrecoError | None) -> None:
        assert self._buffer is not None
        device, own, address = self._buckets.device, self.bucket, self._buffer.data_ptr()
        with self._cuda.stream(), self._buckets.computing():
            if failure is None:
                failure = self._keep(gradients, hold_zeros)
            if failure is None:
                device.submit(own.bucket, address)
                return
            device.submit_failure(own.bucket, address)
            own.refusal = failure

    def _keep(self, gradients: list[torch.Tensor], hold_zeros: bool) -> LgrecoError | None:
        """Prepares held residuals and the measurement of errors. Returns the error if residuals cannot be held."""
        own = self.bucket
        residuals = Residuals(self._cuda, own.bucket, own.memory, [gradient.numel() for gradient in gradients])
        try:
            if hold_zeros:
                is_zero = self.is_zero or [gradient.any().logical_not() for gradient in gradients]
                own.held = Held(residuals, is_zero)
                own.held.put_aside()
        except (MemoryError, RuntimeError) as error:
            told = LgrecoError(f"residuals cannot be held on the GPU: {error}")
            told.code = OUT_OF_MEMORY
            return told
        if self._is_measured:
            own.errors = self._measuring(lambda: Errors(self._cuda, residuals, gradients))
        return None

    def _measuring(self, measure: Callable[[], Errors]) -> Errors | None:
        """Runs ``measure``. If the GPU lacks memory, logs a warning and returns None. ``metrics()`` then lacks the step's
        errors."""
        try:
            return measure()
        except (MemoryError, RuntimeError) as error:
            _LOG.warning("the errors of a step are not measured on the GPU: %s", error)
            return None

    def go_on(self) -> bool:
        cuda, own, times = self._cuda, self.bucket, self._buckets.times

        def part(address: int, length: int, dtype: torch.dtype) -> torch.Tensor:
            return cuda.part(own.memory, address, length, dtype)

        with cuda.stream():
            if self._work is not None:
                self._work.wait()
                self._work = None
            try:
                with self._buckets.computing():
                    request = self._buckets.device.next(own.bucket)
            except LgrecoError as error:
                # Messages report the error to the other ranks. All ranks raise the error when the next step begins.
                request, own.refusal = None, own.refusal or error
            if request is None:
                if own.errors is not None:
                    own.errors = self._measuring(own.errors.measured)
                if own.held is not None:
                    own.held.put_back()
                if times is not None:
                    times.end()
                own.outcome = cuda.later(part(*own.bucket.outcome, torch.uint8))
                return False
            if times is not None:
                times.sends(request)
            self._work = start(request, self._buckets.group, part)
            return True

    def is_flying(self) -> bool:
        return self._work is not None

    def is_held(self) -> bool:
        return False

    def is_done(self) -> bool:
        """Whether a collective is under way. ``go_on`` may be called before this collective ends, because it only enqueues
        work."""
        return self._work is not None

    def give_up(self, error: Exception) -> None:
        super().give_up(error)
        if self.bucket.held is not None:
            with self._cuda.stream():
                self.bucket.held.put_back()
