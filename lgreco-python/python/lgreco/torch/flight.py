"""One DDP bucket on its way from gradients to means."""

import contextlib

import torch
import torch.distributed as dist

from lgreco._lgreco import Bucket, LgrecoError, Request
from lgreco.torch.collectives import Started, start

_LOST: "list[Flight]" = []
"""Those that are never freed: a collective that nobody can wait for may still write to their memory."""


class Flight:
    """The exchange of one bucket: gradients in ``buffer`` become means in ``future``.

    Without a bucket, in a step that could not begin, they stay as they are.
    """

    def __init__(self, bucket: Bucket | None, buffer: torch.Tensor, group: dist.ProcessGroup) -> None:
        self.bucket = bucket
        self.buffer = buffer
        self._on_device = buffer.device.type != "cpu"
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[buffer.device] if self._on_device else []
        )
        self._group = group
        self._host = buffer
        self._is_delivered = False
        self._failure: Exception | None = None
        self._work: Started | None = None
        self._rounds = 0
        self.is_lost = False
        """Whether an interrupt has come while a collective was started, which may be under way."""

    def submit(self, gradients: list[torch.Tensor], hold_zeros: bool, failure: Exception | None) -> None:
        """Compresses the gradients, parts of the buffer. Of a ``failure`` of this rank's all ranks are told instead.

        Raises what keeps this rank from telling them.
        """
        if self.bucket is None:
            return
        try:
            if failure is not None:
                raise failure
            if self._on_device:
                # Compressors work in the host's memory: what is on a device is copied there and back.
                self._host = self.buffer.cpu()
            start_of_buffer = self.buffer.data_ptr()
            self.bucket.submit([self._host.data_ptr() + g.data_ptr() - start_of_buffer for g in gradients], hold_zeros)
        except Exception as error:
            self._failure = error
            self.bucket.submit_failure(isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)))
        self._rounds = self.bucket.rounds()

    def go_on(self) -> bool:
        """Waits for the collective under way and starts the next one; False when the gradients are means."""
        if self._work is not None:
            self._work.wait()
        request = self._next()
        if request is None:
            self._work = None
            return False
        self._rounds -= 1
        self.is_lost = True
        try:
            self._work = start(request, self._group)
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
            if self._failure is None:
                raise
            if isinstance(self._failure, LgrecoError):
                raise self._failure from None
            told = LgrecoError(f"{type(self._failure).__name__}: {self._failure}")
            told.code, told.layer = error.code, error.layer
            raise told from self._failure

    def is_flying(self) -> bool:
        """Whether a collective is under way."""
        return self._work is not None

    def is_done(self) -> bool:
        """Whether going on would not wait."""
        return self._work is not None and self._work.is_completed()

    def is_last(self) -> bool:
        """Whether going on would start no other collective, on this rank."""
        return self._rounds <= 0

    def can_end(self) -> bool:
        """Whether going on would neither wait nor start another collective, on this rank."""
        return self.is_last() and self.is_done()

    def give_up(self, error: Exception) -> None:
        """Waits until the engine no longer touches the bucket's memory, as its network has failed."""
        if self._work is not None:
            with contextlib.suppress(RuntimeError):
                self._work.wait()
            self._work = None
        if self.is_lost and self not in _LOST:
            _LOST.append(self)
        if not self.future.done():
            self.future.set_exception(error)  # type: ignore[arg-type]

    def deliver(self) -> None:
        """Puts the means where the gradients were, once: later the trainer has made something else of them."""
        if self._host is not self.buffer and not self._is_delivered:
            self.buffer.copy_(self._host)
        self._is_delivered = True

    def let_go(self) -> None:
        """Keeps the buffer no longer, after it has been delivered to somebody who does not wait for the future."""
        self.buffer = self._host = self.buffer.new_empty(0)

    def land(self) -> None:
        """Hands the means over, if they have not been."""
        self.deliver()
        if not self.future.done():
            self.future.set_result(self.buffer)
