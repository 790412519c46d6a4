"""The exchange of one bucket: the interface, and the exchange in the host's memory.

``device_exchange.py`` has the exchange in a GPU's memory.
"""

import contextlib
import copy
from typing import Protocol

import torch
import torch.distributed as dist

from lgreco._lgreco import Bucket, Controller, LgrecoError, Request
from lgreco.torch.collectives import Started, start
from lgreco.torch.nodes import Nodes

_LOST: "list[HostExchange]" = []
"""Exchanges that are never freed, because their last collective cannot be waited for and may still write to their memory."""


class BucketExchange(Protocol):
    """Replaces the gradients of one bucket by means, one collective after another."""

    future: torch.futures.Future[torch.Tensor]
    """The future's result is the buffer, once the buffer holds the means, or zeros after a failure."""

    @property
    def is_lost(self) -> bool:
        """Whether an interrupt came during the start of a collective, which therefore cannot be waited for."""

    @property
    def lends(self) -> bool:
        """Whether the controller lends layers to the exchange."""

    @property
    def is_joined(self) -> bool:
        """Whether one collective sums all gradients, after a short one that shows whether a rank has failed."""

    def open(self, controller: Controller, layers: list[int]) -> None:
        """Borrows the layers from the controller, if the exchange works on the host."""

    def close(self, controller: Controller) -> None:
        """Returns the layers to the controller. May be called again after an interrupt, and also before ``open``."""

    def submit(self, gradients: list[torch.Tensor], hold_zeros: bool, failure: LgrecoError | None) -> None:
        """Compresses the gradients, which are parts of the buffer. Given a ``failure``, reports it to all ranks
        instead.

        Raises only errors that prevent this rank from informing the others.
        """

    def go_on(self) -> bool:
        """Waits for the collective under way and starts the next one. Returns False when the buffer holds the means.

        Raises LgrecoError on all ranks after a failure on one.
        """

    def is_flying(self) -> bool:
        """Whether a collective is under way, or the last collective is held."""

    def is_held(self) -> bool:
        """Whether the last collective is held: all ranks start this collective after the collectives of other buckets."""

    def is_done(self) -> bool:
        """Whether the collective under way has ended, so that ``go_on`` would not wait."""

    def is_last(self) -> bool:
        """Whether ``go_on`` would start no other collective on this rank."""

    def can_end(self) -> bool:
        """Whether ``go_on`` would neither wait nor start another collective on this rank."""

    def give_up(self, error: Exception) -> None:
        """Waits until no collective uses the bucket's memory, and sets the future's exception."""

    def deliver(self) -> None:
        """Overwrites the gradients with the means, but only once, because the trainer may change them afterwards. After a
        failure that all ranks know, the means are zeros, so that the ranks' parameters stay the same."""

    def let_go(self) -> None:
        """Releases the buffer, after the means were delivered. The caller must not use the future."""

    def land(self) -> None:
        """Delivers the means and completes the future."""

    def land_zeros(self) -> None:
        """Completes the future with zeros before the exchange ends, after a failure that ``submit`` has reported."""


def _is_one_piece(gradients: list[torch.Tensor]) -> bool:
    """Whether the gradients are f32 values that follow each other in memory, as in DDP's buckets."""
    end = gradients[0].data_ptr() if gradients else 0
    for gradient in gradients:
        if gradient.dtype != torch.float32 or gradient.numel() == 0 or gradient.data_ptr() != end:
            return False
        end += gradient.nbytes
    return bool(gradients)


class HostExchange:
    """The exchange of one bucket in the host's memory. Gradients on a GPU are copied to the host and back.

    If all ranks have refused the step, ``bucket`` is None, and the means are zeros.
    """

    def __init__(
        self, bucket: Bucket | None, buffer: torch.Tensor, group: dist.ProcessGroup, nodes: Nodes | None = None
    ) -> None:
        self.bucket = bucket
        self.buffer = buffer
        self._on_device = buffer.device.type != "cpu"
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[buffer.device] if self._on_device else []
        )
        self._group = group
        self._nodes = nodes
        self._host = buffer
        self._is_delivered = False
        self._failure: Exception | None = None
        """This rank's failure."""
        self._has_means = bucket is not None
        """False once all ranks know that the bucket has no means."""
        self._work: Started | None = None
        self._is_held = False
        """Whether only the last collective of a bucket over nodes is left. This collective is held until all buckets have
        reached their last one, because the number of earlier collectives may differ between ranks of a node."""
        self._rounds = 0
        """Number of collectives that this rank must still start."""
        self.is_lost = False

    @property
    def lends(self) -> bool:
        return self.bucket is not None

    @property
    def is_joined(self) -> bool:
        return self.bucket is not None and self.bucket.is_joined

    def open(self, controller: Controller, layers: list[int]) -> None:
        if self.bucket is not None:
            controller.open(layers, self.bucket)

    def close(self, controller: Controller) -> None:
        if self.bucket is not None and not self.bucket.is_closed:
            controller.close(self.bucket)

    def submit(self, gradients: list[torch.Tensor], hold_zeros: bool, failure: LgrecoError | None) -> None:
        if self.bucket is None:
            return
        # A rank that has failed, perhaps without gradients, sends messages of the same lengths as the other ranks.
        if _is_one_piece(gradients) or (failure is not None and not gradients):
            self.bucket.join()
        try:
            if failure is not None:
                raise failure
            if self._on_device:
                self._host = self.buffer.cpu()
            start_of_buffer = self.buffer.data_ptr()
            # An empty gradient has no address.
            offsets = [g.data_ptr() - start_of_buffer if g.numel() > 0 else 0 for g in gradients]
            self.bucket.submit([self._host.data_ptr() + offset for offset in offsets], hold_zeros)
        except Exception as error:
            self._failure = error
            self.bucket.submit_failure(isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)))
        self._rounds = self.bucket.rounds()

    def go_on(self) -> bool:
        if self._work is not None:
            self._work.wait()
        self._work, was_held = None, self._is_held
        request = self._next()
        self._is_held = request is None and self.bucket is not None and self.bucket.is_paused
        if request is None:
            return self._is_held
        group = self._group
        if self._nodes is None:
            self._rounds -= 1
        else:
            # After a failure the number of collectives is unknown until the last collective.
            group, self._rounds = self._nodes.group(request), 0 if was_held else 1
        self.is_lost = True
        try:
            self._work = start(request, group)
        except Exception:
            self.is_lost = False
            raise
        self.is_lost = False
        return True

    def _next(self) -> Request | None:
        if self.bucket is None:
            return None
        try:
            return self.bucket.next()
        except LgrecoError as error:
            if self.bucket.is_paused:
                # The other ranks do not know of this error, and wait for the last collective.
                raise MemoryError(str(error)) from error
            self._has_means = False
            if self._failure is None:
                raise
            if isinstance(self._failure, LgrecoError):
                raise self._failure from None
            told = LgrecoError(f"{type(self._failure).__name__}: {self._failure}")
            told.code, told.layer = error.code, error.layer
            raise told from self._failure

    def is_flying(self) -> bool:
        return self._work is not None or self._is_held

    def is_held(self) -> bool:
        return self._is_held

    def is_done(self) -> bool:
        return self._work is not None and self._work.is_completed()

    def is_last(self) -> bool:
        return self._rounds <= 0

    def can_end(self) -> bool:
        return self.is_last() and self.is_done()

    def give_up(self, error: Exception) -> None:
        if self._work is not None:
            with contextlib.suppress(RuntimeError):
                self._work.wait()
            self._work = None
        self._is_held = False
        if self.is_lost and self not in _LOST:
            _LOST.append(self)
        if not self.future.done():
            # DDP keeps the future. The frames of the error's traceback would keep the DDP alive, so a copy without
            # traceback is set.
            self.future.set_exception(copy.copy(error))  # type: ignore[arg-type]

    def deliver(self) -> None:
        if self._is_delivered:
            return
        if not self._has_means:
            self.buffer.zero_()
        elif self._host is not self.buffer:
            self.buffer.copy_(self._host)
        self._is_delivered = True

    def let_go(self) -> None:
        self.buffer = self._host = self.buffer.new_empty(0)

    def land(self) -> None:
        self.deliver()
        if not self.future.done():
            self.future.set_result(self.buffer)

    def land_zeros(self) -> None:
        self.future.set_result(self.buffer.zero_())
