"""The buckets of one process that stay in a GPU's memory. Between steps this module reads failures and moves residuals.

The controller decides as for buckets on the host, and keeps the residuals of layers that are in no bucket on the GPU. A step
never waits for the GPU: the step's outcome is copied to the host after the step, and read when the next step begins. Gradients
for the next plan are also kept and measured on the GPU (``observed.py``). In training over nodes, the layers of this module are
this rank's shards (``node_buckets.py``).

With a GradScaler, a gradient that is not finite is no error. The means of the gradient's bucket become NaN on all ranks, which
the scaler detects. When the loss scale changes, the host undoes and rescales the residuals, which are copied there and back.
"""

import contextlib
import logging

import torch
import torch.distributed as dist

from lgreco._lgreco import Controller, Device, LgrecoError, peer_error
from lgreco.torch.checkpoint import to_bytes
from lgreco.torch.cuda import Cuda
from lgreco.torch.device_exchange import NOT_FINITE, DeviceExchange, Failing, ResidentBucket
from lgreco.torch.exchange import BucketExchange
from lgreco.torch.groups import release_with
from lgreco.torch.observed import Observed
from lgreco.torch.times import Times

_LOG = logging.getLogger("lgreco")
_TRAINER = 103
"""The code that other ranks get for an error without a code, which one of the user's objects has raised."""


class Buckets:
    """The buckets of one process on its GPU."""

    def __init__(
        self,
        cuda: Cuda,
        controller: Controller,
        group: dist.ProcessGroup,
        host: dist.ProcessGroup,
        is_scaled: bool,
        is_timed: bool,
        metrics_every: int,
    ) -> None:
        """``group`` exchanges the buckets, and ``host`` has the same ranks and works in the host's memory."""
        self.cuda = cuda
        self._is_scaled = is_scaled
        self._metrics_every = metrics_every
        self.group = group
        release_with(self, group)
        self.times = Times(cuda, controller, self.group) if is_timed else None
        self._host = host
        self._everyone = host
        """The group whose ranks all learn of a failure in the same step."""
        self._controller = controller
        self._device: Device | None = None
        self._buckets: dict[tuple[int, ...], ResidentBucket] = {}
        self._refused: set[tuple[int, ...]] = set()
        self._failed: list[Failing] = []
        """The buckets that failed in the last step, in the same order on all ranks of ``_everyone``."""
        self._has_observed = False
        """Whether gradients of the last step were kept for the next plan."""
        self.observed = Observed(cuda, controller)
        self._untold: LgrecoError | None = None
        """A failure of the GPU at the end of a step, after the last message that could report it to the other ranks."""
        self._alone: LgrecoError | None = None
        """An error in the means of this rank's shards, until this rank reports the error to all ranks."""
        self._taken_out: int | None = None
        """The step number at the last copy of residuals from the controller to the GPU."""
        self.is_behind = False
        """Whether the controller's residuals are newer than the GPU's, because ``take_out`` was not called yet or was
        interrupted."""

    @property
    def device(self) -> Device:
        assert self._device is not None
        return self._device

    def exchange(self, layers: list[int], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> BucketExchange | None:
        """Makes the exchange of a bucket. Returns None, on all ranks, if the host must compress the bucket. The controller then
        has the bucket's residuals."""
        return self.resident(layers, buffer, gradients)

    def resident(self, layers: list[int], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> DeviceExchange | None:
        """Makes the exchange of a bucket with the ranks of ``group``. Returns None, on all these ranks, if the host must compress
        the bucket."""
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
        return DeviceExchange(self, bucket, buffer, is_measured)

    def _renewed(self, key: tuple[int, ...], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> ResidentBucket | None:
        """Makes a bucket under the present settings, with the old bucket's residuals. Returns None if some rank fails to
        make its bucket."""
        # If the old bucket was not in the last step, the controller takes its residuals first.
        old = self._buckets.get(key)
        self._take_home(key, unless=None if old is None or old.step != self._controller.steps else key)
        made: ResidentBucket | None = None
        why = "another rank cannot"
        try:
            made = self._make(key, buffer, gradients)
        except (LgrecoError, MemoryError, RuntimeError) as error:
            why = str(error)
        could = torch.tensor(int(made is not None), device="cpu")
        dist.all_reduce(could, dist.ReduceOp.MIN, group=self._host)
        # The old bucket stays until the new bucket or the controller has its residuals, because an interrupt may come at
        # any time.
        if made is not None and could.item() == 1:
            self._buckets[key] = made
            return made
        self._take_home(key)
        self._refuse(key, why)
        return None

    def _take_home(self, layers: tuple[int, ...], unless: tuple[int, ...] | None = None) -> None:
        """Drops all buckets with some of these layers, except the bucket ``unless``. Gives the controller the residuals of
        dropped buckets."""
        for key, bucket in list(self._buckets.items()):
            if key != unless and (key == layers or not set(key).isdisjoint(layers)):
                self.device.take_home(self._controller, bucket.bucket, bucket.step)
                del self._buckets[key]

    def _refuse(self, key: tuple[int, ...], why: str) -> None:
        """Makes the host compress this bucket from now on."""
        self._refused.add(key)
        names = f"{len(key)} layers from number {key[0]} on" if key else "no layers"
        _LOG.warning("a bucket of %s is copied to the host to be compressed: %s", names, why)

    def _make(self, key: tuple[int, ...], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> ResidentBucket:
        at = buffer.data_ptr()
        for gradient in gradients:
            if gradient.nbytes > 0 and gradient.data_ptr() != at:
                raise LgrecoError("its gradients do not follow one another without gaps")
            at += gradient.nbytes
        layers = list(key)
        with self.cuda.stream() as handle:
            self._device = self._device or Device(handle)
            memory = self.cuda.allocate(self._device.bytes(self._controller, layers))
            bucket = self._device.bucket(self._controller, layers, memory.data_ptr())
            if key in self._buckets:
                self._device.take_over(bucket, self._buckets[key].bucket)
        return ResidentBucket(bucket, memory, self._controller.steps)

    def _observe(self, layers: list[int], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> None:
        """Keeps the gradients for the next plan. If the GPU cannot keep them, copies them to the host and waits for the
        copy."""
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
            # The GPU also detects gradients that are not finite, and reports them to all ranks.
            if error.code != NOT_FINITE:
                raise

    def begin_step(self) -> None:
        """Starts the clock, after the ranks' agreement on the step."""
        if self.times is not None:
            self.times.begin()

    def finish_step(self, was_copied: bool) -> None:
        """Stops the clock, once all means are enqueued. ``was_copied`` says whether the host has compressed some
        buckets."""
        if self.times is not None:
            if was_copied:
                with self.cuda.stream():
                    self.times.end()
            if self._device is not None:
                self.times.try_out(self._device)
        self.cuda.rejoin()

    def tell_times(self) -> None:
        """Gives the controller the times of the last step, unless the step has failed."""
        if self.times is not None:
            self.times.tell()
            self._controller.meter_elsewhere(bool(self._buckets) or not self._refused)

    def fault(self) -> LgrecoError | None:
        """Before a step: reads the last step's failures on the GPUs. Either all ranks get an error, or none does.

        Raises RuntimeError for a failure that only this rank knows of.
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
        for failure in failed:
            failure.refusal = None
        if error is not None:
            self.bring_home()
            self.forget()
        return error

    def _found_alone(self, bucket: Failing) -> bool:
        """Whether only this rank knows of the failure of the last step."""
        _, error, alone = bucket.fault
        if alone:
            self._alone = self._alone or bucket.refusal or error
            bucket.refusal = None
        return alone

    def alone(self) -> LgrecoError | None:
        """Returns and clears the failure of the last step that only this rank knows of. The next step's first bucket reports
        this failure to all ranks."""
        alone, self._alone = self._alone, None
        return alone

    def _worst(self, failed: list[Failing]) -> LgrecoError | None:
        """Agrees on the first error of the buckets that failed on some rank.

        Returns None if the loss is scaled and the only errors are gradients that are not finite.
        """
        own = [bucket.refusal or bucket.fault[1] for bucket in failed]
        rank, world = self._number(self._everyone.rank()), self._everyone.size()
        codes = torch.zeros(world * len(failed), dtype=torch.int64, device="cpu")
        own_codes = [0 if error is None else error.code or _TRAINER for error in own]
        codes.view(world, -1)[rank] = torch.tensor(own_codes, device="cpu")
        dist.all_reduce(codes, group=self._everyone)
        for of_ranks, mine, bucket in zip(codes.view(-1, len(failed)).T.tolist(), own, failed):
            first = bucket.fault[0]
            at_fault = [rank for rank, code in enumerate(of_ranks) if code != 0]
            worse = [rank for rank in at_fault if of_ranks[rank] != NOT_FINITE]
            if self._is_scaled and at_fault and not worse:
                continue
            named = worse or at_fault or [first or 0]
            return mine if mine is not None and rank in named else peer_error(named[0], of_ranks[named[0]])
        return None

    def _number(self, rank: int) -> int:
        """The number by which errors name a rank of ``_everyone``."""
        return rank

    def _settle(self) -> None:
        """Between steps: reads the outcome of the last step."""
        self._read_outcomes()
        if self._failed and self.times is not None:
            self.times.forget_step()
        if self._has_observed and self._failed:
            self._controller.forget_observed()
            self.observed.forget()
        self._has_observed = False

    def _read_outcomes(self) -> None:
        """Reads the outcomes of all buckets, and lists those that failed."""
        for layers, bucket in self._buckets.items():
            if self._has_failed(layers, bucket):
                self._failed.append(bucket)

    def _has_failed(self, layers: tuple[int, ...], bucket: ResidentBucket, is_revoked: bool = False) -> bool:
        """Reads the outcome of a bucket. ``is_revoked`` says whether the bucket has failed in another group of ranks."""
        if bucket.outcome is None:
            return False
        outcome, bucket.outcome = to_bytes(bucket.outcome()), None
        failed, first, error, alone = bucket.bucket.fault(outcome)
        bucket.fault = (first, error, alone)
        bucket.is_revoked = is_revoked and not failed
        errors, bucket.errors = bucket.errors, None
        if failed or is_revoked:
            return True
        if errors is not None:
            # As on the host, the error of a layer with a held residual is not recorded.
            for layer, relative in zip(layers, errors.told(0.0 if bucket.held is None else None)):
                if relative is not None:
                    self._controller.record_error(layer, relative)
        if bucket.refusal is not None:
            self._untold = bucket.refusal
        else:
            bucket.is_to_forget = True
        return False

    def bring_home(self, taken_back: bool = False) -> None:
        """Between steps: copies the GPU's residuals to the controller. Waits for the GPU.

        With ``taken_back``, copies the residuals from before the last step, unless that step was already undone.
        """
        self._catch_up()
        self._settle()
        taken_back = taken_back and self._taken_out != self._controller.steps
        for bucket in self._buckets.values():
            before = self._controller.steps - int(taken_back or bucket.is_revoked)
            forgotten = bucket.forgotten() if bucket.is_to_forget and not taken_back else []
            self.device.take_home(self._controller, bucket.bucket, before, forgotten)

    def take_out(self) -> None:
        """Between steps: copies the controller's residuals to the GPU. Waits for the GPU."""
        self._taken_out, self.is_behind = self._controller.steps, True
        for bucket in self._buckets.values():
            self.device.take_out(self._controller, bucket.bucket)
            bucket.is_to_forget = bucket.is_revoked = False
        self.is_behind = False

    def _catch_up(self) -> None:
        if self.is_behind:
            self.take_out()

    def bring_observed_home(self) -> None:
        """Between steps: copies the gradients for the next plan to the controller. Waits for the GPU."""
        if self._device is not None:
            self.observed.bring_home(self._device)

    def abandon(self) -> None:
        """Restores the residuals from before an abandoned step, in the controller, and drops all buckets.

        May be called again after an interrupt.
        """
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
        """Drops all buckets. The next step begins with the controller's residuals."""
        self._buckets.clear()
        self._failed.clear()
        self._has_observed = False
        self._untold = self._alone = self._taken_out = None
        self.is_behind = False
        if self.times is not None:
            self.times.forget()

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """Times the work that is enqueued within this context, as compression or decompression."""
        return contextlib.nullcontext() if self.times is None else self.times.computing()
