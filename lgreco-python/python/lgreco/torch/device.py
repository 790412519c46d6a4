"""Buckets that stay in a GPU's memory: compressed, summed and averaged there, between torch.distributed's collectives.

The controller decides as it does for buckets on the host, and keeps residuals while no bucket on the device has them. Nothing of
a step waits for the device: what goes wrong there is copied to the host behind the step, and looked at when the next one begins. So
are the gradients that a plan is made of kept and measured there (``observed.py``).

With a GradScaler gradients that are not finite are no error: on all ranks the means of their bucket are NaN, by which the scaler
finds them. Where it has changed its scale, which is seldom, residuals come to the host, are taken back and rescaled there, and
return.
"""

import contextlib
import logging
from collections.abc import Callable

import torch
import torch.distributed as dist

from lgreco._lgreco import Controller, Device, DeviceBucket, LgrecoError, peer_error
from lgreco.torch.checkpoint import to_bytes
from lgreco.torch.collectives import Started, own_group, release_with, start
from lgreco.torch.cuda import Cuda
from lgreco.torch.errors import Errors
from lgreco.torch.held import Held
from lgreco.torch.observed import Observed
from lgreco.torch.remembered import Remembered
from lgreco.torch.times import Times

_LOG = logging.getLogger("lgreco")
_NOT_FINITE = 101
"""The permanent code of a gradient's error."""
_OUT_OF_MEMORY = 7
"""That of memory that is not there."""


class _Bucket:
    """A bucket with its memory."""

    def __init__(self, bucket: DeviceBucket, memory: torch.Tensor, step: int) -> None:
        self.bucket = bucket
        self.memory = memory
        self.step = step
        """The next one that it takes part in."""
        self.outcome: Callable[[], torch.Tensor] | None = None
        """What the device knows of the last step, until the host does."""
        self.fault: tuple[int | None, LgrecoError | None, bool] = (None, None, False)
        """Of the last step: the first rank at fault, the error, and whether this rank alone knows of it."""
        self.refusal: LgrecoError | None = None
        """What the device has refused in the last step, on this rank."""
        self.is_to_forget = False
        """Whether what the last step has not sent of layers without error feedback is still there."""
        self.held: Held | None = None
        """What layers without a gradient in the last step have kept."""
        self.errors: Errors | None = None
        """Of the last step, until they are told."""

    def forgotten(self) -> list[int]:
        """Waits where layers are held: the places of which nothing is to be remembered of the last step."""
        return [place for place in self.bucket.forgetful if self.held is None or not self.held.holds(place)]


class Buckets:
    """The buckets of one process on its GPU."""

    def __init__(
        self,
        cuda: Cuda,
        controller: Controller,
        group: dist.ProcessGroup | None,
        host: dist.ProcessGroup,
        is_scaled: bool,
        is_timed: bool,
        metrics_every: int,
    ) -> None:
        self.cuda = cuda
        self._is_scaled = is_scaled
        self._metrics_every = metrics_every
        self.group = own_group(group, cuda.backend)
        release_with(self, self.group)
        self.times = Times(cuda, controller, self.group) if is_timed else None
        self._host = host
        self._controller = controller
        self._device: Device | None = None
        self._buckets: dict[tuple[int, ...], _Bucket] = {}
        self._refused: set[tuple[int, ...]] = set()
        self._failed: list[_Bucket] = []
        self._has_observed = False
        """Whether the last step's gradients are to be planned by."""
        self.observed = Observed(cuda, controller)
        self._untold: LgrecoError | None = None
        """What the device has refused when there was no message left to tell the others by."""
        self._alone: LgrecoError | None = None
        """What this rank has found wrong with the means of its shards, until it tells the others."""
        self._taken_out: int | None = None
        """Before which step the controller's residuals have become the device's last."""
        self.is_behind = False
        """Whether the controller's residuals are the newer ones, as taking them out is to be done or has been interrupted."""

    @property
    def device(self) -> Device:
        assert self._device is not None
        return self._device

    def flight(self, layers: list[int], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> "DeviceFlight | None":
        """Begins the exchange of a bucket; None, on all ranks, when it must go by the host, where its residuals then are."""
        key = tuple(layers)
        if key in self._refused:
            return None
        bucket = self._buckets.get(key)
        if bucket is None or bucket.step != self._controller.steps or not bucket.bucket.suits(self._controller):
            bucket = self._renewed(key, buffer, gradients)
        if bucket is None:
            return None
        if self._controller.watches():
            self._has_observed = True
            if self.times is not None:
                with self.cuda.stream():
                    self.times.keep(layers, gradients)
            self._observe(layers, buffer, gradients)
        self._controller.note_exchanged(layers)
        is_measured = self._metrics_every > 0 and bucket.step % self._metrics_every == 0
        bucket.step += 1
        return DeviceFlight(self, bucket, buffer, is_measured)

    def _renewed(self, key: tuple[int, ...], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> _Bucket | None:
        """A bucket under new settings, with the residuals of those before; None when some rank cannot make it."""
        # What lags behind begins again at this step.
        for other, bucket in list(self._buckets.items()):
            lags = other == key and bucket.step != self._controller.steps
            if lags or (other != key and not set(other).isdisjoint(key)):
                self.device.take_home(self._controller, bucket.bucket, bucket.step)
                del self._buckets[other]
        made: _Bucket | None = None
        why = "another rank cannot"
        try:
            made = self._make(key, buffer, gradients)
        except (LgrecoError, MemoryError, RuntimeError) as error:
            why = str(error)
        could = torch.tensor(int(made is not None))
        dist.all_reduce(could, dist.ReduceOp.MIN, group=self._host)
        # The old one counts until the new one does, or the controller has its residuals: an interrupt may come between.
        if made is not None and could.item() == 1:
            self._buckets[key] = made
            return made
        if (old := self._buckets.get(key)) is not None:
            self.device.take_home(self._controller, old.bucket, old.step)
            del self._buckets[key]
        self._refused.add(key)
        names = f"{len(key)} layers from number {key[0]} on" if key else "no layers"
        _LOG.warning("a bucket of %s is copied to the host to be compressed: %s", names, why)
        return None

    def _make(self, key: tuple[int, ...], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> _Bucket:
        at = buffer.data_ptr()
        for gradient in gradients:
            if gradient.data_ptr() != at:
                raise LgrecoError("its gradients do not follow one another without gaps")
            at += gradient.nbytes
        layers = list(key)
        with self.cuda.stream() as handle:
            self._device = self._device or Device(handle)
            memory = self.cuda.allocate(self._device.bytes(self._controller, layers))
            bucket = self._device.bucket(self._controller, layers, memory.data_ptr())
            if key in self._buckets:
                self._device.take_over(bucket, self._buckets[key].bucket)
        return _Bucket(bucket, memory, self._controller.steps)

    def _observe(self, layers: list[int], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> None:
        """Keeps the gradients for the next plan. Where the GPU cannot, they are copied to the host, and that waits for them."""
        places = self.observed.observe(self.device, layers, gradients)
        if not places:
            return
        try:
            host = buffer.cpu()
        except (MemoryError, RuntimeError) as error:
            _LOG.warning("gradients are left out of the next plan, as they cannot be copied to the host: %s", error)
            return
        addresses = [host.data_ptr() + gradients[place].data_ptr() - buffer.data_ptr() for place in places]
        try:
            self._controller.observe([layers[place] for place in places], addresses)
        except LgrecoError as error:
            # What is not finite the device finds too, and tells all ranks.
            if error.code != _NOT_FINITE:
                raise

    def begin_step(self) -> None:
        """When ranks have agreed on a step, before its first bucket."""
        if self.times is not None:
            self.times.begin()

    def finish_step(self, was_copied: bool) -> None:
        """When all means are enqueued, or there; some of them were copied to the host and back if ``was_copied``."""
        if self.times is not None:
            if was_copied:
                with self.cuda.stream():
                    self.times.end()
            if self._device is not None:
                self.times.try_out(self._device)
        self.cuda.rejoin()

    def tell_times(self) -> None:
        """Before a step, when it is known that the last one has not failed: what that took."""
        if self.times is not None:
            self.times.tell()
            self._controller.meter_elsewhere(bool(self._buckets) or not self._refused)

    def fault(self) -> LgrecoError | None:
        """Before a step: what has gone wrong on a device in the last one; all ranks hear of it.

        Raises RuntimeError for what this rank alone knows of.
        """
        self._catch_up()
        self._settle()
        for bucket in self._buckets.values():
            if bucket.is_to_forget and bucket.held is not None:
                with self.cuda.stream():
                    bucket.held.forget(bucket.bucket.forgetful)
            elif bucket.is_to_forget:
                self.device.forget(bucket.bucket)
            bucket.is_to_forget, bucket.held = False, None
        if self._untold is not None:
            untold, self._untold = self._untold, None
            self.bring_home()
            self.forget()
            raise RuntimeError(str(untold))
        failed, self._failed = [bucket for bucket in self._failed if not self._found_alone(bucket)], []
        if not failed:
            return None
        error = self._worst(failed)
        for bucket in failed:
            bucket.refusal = None
        if error is not None:
            self.bring_home()
            self.forget()
        return error

    def _found_alone(self, bucket: _Bucket) -> bool:
        """Whether what has gone wrong in the last step this rank alone knows of."""
        _, error, alone = bucket.fault
        if alone:
            self._alone = self._alone or bucket.refusal or error
            bucket.refusal = None
        return alone

    def alone(self) -> LgrecoError | None:
        """When a step begins: what this rank has found wrong alone in the last one, to be told by the first bucket."""
        alone, self._alone = self._alone, None
        return alone

    def _worst(self, failed: list[_Bucket]) -> LgrecoError | None:
        """What has gone wrong first in buckets whose step has failed on some rank; all ranks hear of it.

        None for gradients that are not finite where the loss is scaled.
        """
        own = [bucket.refusal or bucket.fault[1] for bucket in failed]
        codes = torch.zeros(self._host.size() * len(failed), dtype=torch.int64)
        told = torch.tensor([0 if error is None else error.code for error in own])
        dist.all_gather_into_tensor(codes, told, group=self._host)
        for of_ranks, mine, bucket in zip(codes.view(-1, len(failed)).T.tolist(), own, failed):
            first = bucket.fault[0]
            at_fault = [rank for rank, code in enumerate(of_ranks) if code != 0]
            worse = [rank for rank in at_fault if of_ranks[rank] != _NOT_FINITE]
            if self._is_scaled and at_fault and not worse:
                continue
            named = worse or at_fault or [first or 0]
            return mine if mine is not None and self._host.rank() in named else peer_error(named[0], of_ranks[named[0]])
        return None

    def _settle(self) -> None:
        """Between steps: takes note of how the last one has ended."""
        for layers, bucket in self._buckets.items():
            if bucket.outcome is None:
                continue
            outcome, bucket.outcome = to_bytes(bucket.outcome()), None
            failed, first, error, alone = bucket.bucket.fault(outcome)
            bucket.fault = (first, error, alone)
            errors, bucket.errors = bucket.errors, None
            if errors is not None and not failed:
                # On the host layers that are held are not measured either.
                for layer, relative in zip(layers, errors.told(0.0 if bucket.held is None else None)):
                    if relative is not None:
                        self._controller.record_error(layer, relative)
            if failed:
                self._failed.append(bucket)
            elif bucket.refusal is not None:
                self._untold = bucket.refusal
            else:
                bucket.is_to_forget = True
        if self._failed and self.times is not None:
            self.times.forget_step()
        if self._has_observed and self._failed:
            self._controller.forget_observed()
            self.observed.forget()
        self._has_observed = False

    def bring_home(self, taken_back: bool = False) -> None:
        """Between steps: what is remembered on the device, the controller has too. Waits for the device.

        What was remembered before the last step, where that is ``taken_back``; no step is twice.
        """
        self._catch_up()
        self._settle()
        taken_back = taken_back and self._taken_out != self._controller.steps
        for bucket in self._buckets.values():
            before = self._controller.steps - int(taken_back)
            forgotten = bucket.forgotten() if bucket.is_to_forget and not taken_back else []
            self.device.take_home(self._controller, bucket.bucket, before, forgotten)

    def take_out(self) -> None:
        """Between steps: what the controller remembers, the device does too. Waits for the device."""
        self._taken_out, self.is_behind = self._controller.steps, True
        for bucket in self._buckets.values():
            self.device.take_out(self._controller, bucket.bucket)
            bucket.is_to_forget = False
        self.is_behind = False

    def _catch_up(self) -> None:
        if self.is_behind:
            self.take_out()

    def bring_observed_home(self) -> None:
        """Between steps: the controller has what was observed for the next plan, too. Waits for the device."""
        if self._device is not None:
            self.observed.bring_home(self._device)

    def abandon(self) -> None:
        """After a step that was given up: residuals are the controller's, as they were before it. An interrupt leaves what is to be done
        again."""
        self.observed.forget_unless_needed()
        try:
            for key, bucket in [] if self.is_behind else list(self._buckets.items()):
                self.device.take_home(self._controller, bucket.bucket, self._controller.steps)
                del self._buckets[key]
        except Exception:
            self.forget()
            raise
        self.forget()

    def forget(self) -> None:
        """The next step begins with the controller's residuals."""
        self._buckets.clear()
        self._failed.clear()
        self._has_observed = False
        self._untold = self._alone = self._taken_out = None
        self.is_behind = False
        if self.times is not None:
            self.times.forget()

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """What is enqueued meanwhile compresses or decompresses."""
        return contextlib.nullcontext() if self.times is None else self.times.computing()


class DeviceFlight:
    """The exchange of one bucket in the device's memory: gradients in ``buffer`` become means there."""

    bucket = None
    """None that the controller has lent."""
    is_lost = False

    def __init__(self, buckets: Buckets, bucket: _Bucket, buffer: torch.Tensor, is_measured: bool) -> None:
        self._is_measured = is_measured
        self.future = buckets.cuda.future()
        self._buckets = buckets
        self._bucket = bucket
        self._buffer: torch.Tensor | None = buffer
        self._work: Started | None = None

    def submit(self, gradients: list[torch.Tensor], hold_zeros: bool, failure: LgrecoError | None) -> None:
        """Compresses the buffer, whose parts the gradients are. Of a ``failure`` of this rank's all ranks are told instead."""
        assert self._buffer is not None
        device, own, address = self._buckets.device, self._bucket, self._buffer.data_ptr()
        with self._buckets.cuda.stream(), self._buckets.computing():
            if failure is None:
                failure = self._keep(gradients, hold_zeros)
            if failure is None:
                device.submit(own.bucket, address)
                return
            device.submit_failure(own.bucket, address)
            own.refusal = failure

    def _keep(self, gradients: list[torch.Tensor], hold_zeros: bool) -> LgrecoError | None:
        """Keeps what is needed when the means are enqueued; what has kept it from that, where the step cannot do without."""
        own = self._bucket
        remembered = Remembered(self._buckets.cuda, own.bucket, own.memory, [gradient.numel() for gradient in gradients])
        try:
            if hold_zeros:
                own.held = Held(remembered, gradients)
                own.held.put_aside()
        except (MemoryError, RuntimeError) as error:
            told = LgrecoError(f"residuals cannot be held on the GPU: {error}")
            told.code = _OUT_OF_MEMORY
            return told
        if self._is_measured:
            own.errors = self._measuring(lambda: Errors(self._buckets.cuda, remembered, gradients))
        return None

    def _measuring(self, measure: Callable[[], Errors]) -> Errors | None:
        """None, which is logged, where the GPU has no memory to measure by: ``metrics()`` goes without."""
        try:
            return measure()
        except (MemoryError, RuntimeError) as error:
            _LOG.warning("the errors of a step are not measured on the GPU: %s", error)
            return None

    def go_on(self) -> bool:
        """Enqueues what comes before the next collective, and that; False when the means are enqueued."""
        cuda, own, times = self._buckets.cuda, self._bucket, self._buckets.times

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
                # The others are told by messages, and all ranks when the next step begins.
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
        """Whether a collective is under way."""
        return self._work is not None

    def is_done(self) -> bool:
        """Whether going on would not wait: it enqueues."""
        return self._work is not None

    def is_last(self) -> bool:
        """Its means are enqueued in any step, in the order of the stream."""
        return False

    def can_end(self) -> bool:
        """The means are enqueued at the end of the backward pass, so that the rest of it does not wait for collectives."""
        return False

    def give_up(self, error: Exception) -> None:
        """Waits until the engine no longer touches the bucket's memory, as its network has failed."""
        if self._work is not None:
            with contextlib.suppress(RuntimeError), self._buckets.cuda.stream():
                self._work.wait()
            self._work = None
        if self._bucket.held is not None:
            with self._buckets.cuda.stream():
                self._bucket.held.put_back()
        if not self.future.done():
            self.future.set_exception(error)  # type: ignore[arg-type]

    def deliver(self) -> None:
        """The means are where the gradients were, for what the current stream does from now on; the buffer is no longer kept."""
        self._buckets.cuda.rejoin()
        self._buffer = None

    def land(self) -> None:
        """Hands the means over, if they have not been delivered."""
        if self._buffer is not None and not self.future.done():
            with self._buckets.cuda.stream():
                self.future.set_result(self._buffer)
