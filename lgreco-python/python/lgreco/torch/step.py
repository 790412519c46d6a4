"""Steps: the first bucket begins a step, and the last bucket or the end of the backward pass ends it.

``step_state.py`` has the states of a step. This file performs the transitions between them.
"""

import logging
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from lgreco._lgreco import Bucket, Controller, LgrecoError, Report
from lgreco.torch.backward import BackwardPass, queue
from lgreco.torch.collectives import ExchangeError, complete
from lgreco.torch.device import Buckets
from lgreco.torch.exchange import BucketExchange, HostExchange
from lgreco.torch.nodes import Nodes
from lgreco.torch.planning import Planning, trim_memory
from lgreco.torch.scale import Scale
from lgreco.torch.step_state import Between, Ended, Exchanging, Refused, StepState, UnderWay

_NOT_BEGUN = 103
"""The permanent error code of a controller call in the wrong state of a step."""
_TOLD_TOO_LARGE = re.compile("error code (101|8)\\b")
"""Matches the errors for a value that is not finite or too large for the type in which it is sent, also on another rank."""
_LOG = logging.getLogger("lgreco")


class Steps:
    """The steps of one process.

    Reentrant checkpoints run inner backward passes within an outer pass. The inner passes belong to the step of the outer
    pass.
    """

    _advice: str | None = "under a GradScaler, whose overflows these may be, make the state with grad_scaler="
    """Advice to add to an error about values that are not finite."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        controller: Controller,
        scale: Scale,
        device: Buckets | None,
        nodes: Nodes | None = None,
        *,
        leads: bool,
        is_timed: bool,
        optimizer: torch.optim.Optimizer | None,
        on_plan: Callable[[Any], None] | None,
    ) -> None:
        """Accordion reads the learning rate of ``optimizer``. If ``is_timed`` is set, rank 0 logs the reasons of plans."""
        self._group = group
        self._controller = controller
        self._scale = scale
        self._device = device
        self._nodes = nodes
        self._planning = Planning(leads, device)
        self._is_timed = is_timed
        self._optimizer = optimizer
        self._on_plan = on_plan
        self._state: StepState = Between()
        self._is_told = False
        """Whether a line about the compression has been logged."""
        self._has_new_plan = False
        """Whether ``on_plan`` must still be called, also in a later step if this step's backward pass ends early."""
        self._bytes = [0, 0]
        """Total bytes of all gradients so far, and total bytes that this process has sent for these gradients."""
        self._rate = 1.0
        """The learning rate of the last step that began without an error."""
        self.last_report: Report | None = None

    def metrics_line(self) -> str:
        """The last step as one line of JSON, without a newline. ``lgreco watch FILE`` shows a run from a file of such lines.

        The line has the contents of ``last_report``, ``plan`` and ``metrics()``. Raises LgrecoError before the first step, and
        under DDP with ``policy="uncompressed"``.
        """
        if self.last_report is None:
            raise LgrecoError("no step has ended: metrics_line() is about the last one, so call it after backward")
        return self._controller.metrics_line(self.last_report)

    def report(self) -> str:
        """The present settings in one line, which rank 0 logs after the first step with compression.

        The line says which methods compress how many layers, to how many bytes, and over which route. Bytes are those that
        this rank sends in a step by all-gather. For uncompressed layers, the line has the reason: ``warm-up``, ``small``
        (one dimension, or few elements), ``no saving``, ``chosen`` (by the plan or the user), ``slower`` or
        ``not contractive`` (error feedback could grow without bound).
        """
        return self._controller.summary()

    # Exchanging buckets

    def _under_way(self) -> list[BucketExchange]:
        """The exchanges of the step under way; empty between steps."""
        return self._state.exchanges if isinstance(self._state, UnderWay) else []

    def _begin(
        self,
        layers: list[int],
        buffer: torch.Tensor,
        gradients: list[torch.Tensor],
        hold_zeros: bool,
        in_same_pass: bool = False,
        failure: LgrecoError | None = None,
    ) -> BucketExchange:
        """Begins the exchange of a bucket. The first bucket also begins the step. ``in_same_pass`` says whether this step
        is in the backward pass of the previous step. This rank's ``failure`` is reported to all ranks."""
        self._take_back_left_over(layers)
        if not isinstance(self._state, UnderWay):
            # From now on, the step must be undone if the backward pass ends early.
            if in_same_pass and isinstance(self._state, Ended):
                self._state = self._state.begin_in_same_pass()
            else:
                self._state = self._state.begin(BackwardPass(self._end_backward))
            failure = self._begin_step(self._state) or failure
        step = self._state
        assert isinstance(step, UnderWay)
        step.layers.update(layers)
        try:
            exchange = self._exchange_of(layers, buffer, gradients)
            # The step records the exchange before the exchange borrows layers, because an interrupt may come at any time.
            step.exchanges.append(exchange)
            exchange.open(self._controller, layers)
        except (LgrecoError, RuntimeError) as error:
            raise self._abandoned(error) from error
        try:
            exchange.submit(gradients, hold_zeros, failure)
        except Exception as error:
            raise self._abandoned(error) from error
        self._go_on(exchange)
        before = step.exchanges[-2] if len(step.exchanges) > 1 else None
        if before is not None and before.is_flying() and (self._nodes is not None or before.is_joined):
            # Meanwhile, the node's ranks have summed the previous bucket, which continues between nodes. Or the ranks of a joined
            # bucket have exchanged the next message before its sum. All ranks start collectives in this order.
            self._go_on(before)
        for other in step.exchanges[:-1]:
            if other.can_end():
                self._go_on(other)
        return exchange

    def _exchange_of(self, layers: list[int], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> BucketExchange:
        if isinstance(self._state, Refused):
            return HostExchange(None, buffer, self._group, self._nodes)
        on_device = None if self._device is None else self._device.exchange(layers, buffer, gradients)
        return on_device if on_device is not None else HostExchange(Bucket(), buffer, self._group, self._nodes)

    def _go_on(self, exchange: BucketExchange) -> bool:
        """Calls the exchange's ``go_on``, and records an error that all ranks get. After this error, other buckets
        continue."""
        try:
            return exchange.go_on()
        except LgrecoError as error:
            if isinstance(self._state, Exchanging):
                self._state.fail(error)
            return False
        except Exception as error:
            raise self._abandoned(error) from error

    def _complete(self, exchange: BucketExchange) -> None:
        """Waits for all collectives of one bucket."""
        while exchange.is_flying() and self._go_on(exchange):
            pass

    def _exchange_unit(self, layers: list[int], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> None:
        """Exchanges a bucket while the backward pass waits.

        A unit that contains a reentrant checkpoint may be used several times in a backward pass. The unit then has gradients
        after each use, and FSDP adds the means of all uses. Each further use begins another step.
        """
        self._take_back_left_over(layers)
        is_used_again = isinstance(self._state, UnderWay) and not self._state.layers.isdisjoint(layers)
        if is_used_again:
            self._finish_step()
        exchange = self._begin(layers, buffer, gradients, False, is_used_again)
        self._complete(exchange)
        exchange.deliver()
        # Frees the unit's memory for the next unit.
        exchange.close(self._controller)
        exchange.let_go()

    # Beginning a step

    def _begin_step(self, step: Exchanging) -> LgrecoError | None:
        """Runs the ranks' agreement on the step. After an error that all ranks get, the step is refused.

        Returns an error of this rank alone, which the first bucket reports to the other ranks.
        """
        failure: LgrecoError | None = None
        try:
            self._scale.follow(self._controller, self._device)
        except LgrecoError as error:
            failure = error
        except Exception as error:
            failure = as_own("the scale of grad_scaler cannot be read", error)
        try:
            fault = self._device.fault() if self._device is not None else None
        except (LgrecoError, RuntimeError) as error:
            self._state = Between()  # nothing has begun
            raise self._broken(error) from error
        if fault is not None:
            self._state = step.refuse(fault)
            return None
        if self._device is not None:
            failure = failure or self._device.alone()
        self._planning.take_over(self._controller)
        if self._device is not None:
            self._device.tell_times()
            # The plan begins now because it may depend on the last step's time, which was unknown before.
            if self._planning.leads:
                self._planning.begin(self._controller)
        try:
            rate = 1.0 if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])
            self._controller.begin_step(rate)
            self._rate = rate
        except Exception as error:
            what = "the learning rate of the first parameter group of optimizer is no number"
            failure = error if isinstance(error, LgrecoError) else as_own(what, error)
            self._controller.begin_step(self._rate)
        if self._device is not None and not self._planning.leads:
            # The plan begins now because it may depend on the learning rate, which the controller did not know before.
            self._planning.begin(self._controller)
        try:
            while (request := self._controller.control()) is not None:
                complete(request, self._group if self._nodes is None else self._nodes.group(request))
            if self._device is not None:
                self._device.begin_step()
        except LgrecoError as error:
            # This rank's own failure takes precedence, because it may be the cause of a disagreement between ranks.
            self._state = step.refuse(failure or error)
        except Exception as error:
            raise self._abandoned(error) from error
        return failure

    # Ending a step

    def _finish_step(self) -> None:
        """If a step is under way, waits for all buckets and ends the step."""
        step = self._state
        if not isinstance(step, UnderWay):
            return
        left = [exchange for exchange in step.exchanges if exchange.is_flying() and not exchange.is_held()]
        # All ranks start collectives in this order: first each bucket's second collective, then each bucket's third,
        # and so on.
        while left:
            left = [exchange for exchange in left if self._go_on(exchange) and not exchange.is_held()]
        held = [exchange for exchange in step.exchanges if exchange.is_held()]
        # At most two last collectives run at a time, because each needs memory for its bucket's means.
        for at, exchange in enumerate(held):
            self._go_on(exchange)
            if at > 0:
                self._complete(held[at - 1])
        for exchange in held[-1:]:
            self._complete(exchange)
        for exchange in step.exchanges:
            exchange.close(self._controller)
            exchange.land()
        if self._device is not None:
            # The step's exchanges, which kept the memory of running collectives alive, are no longer needed.
            self._device.finish_step(was_copied=any(exchange.lends for exchange in step.exchanges))
        if isinstance(step, Refused):
            self._state = step.end()
            return
        report = self._controller.finish_step()
        self._state = step.end()
        self._bytes = [self._bytes[0] + report.bytes_in, self._bytes[1] + report.bytes_out]
        self.last_report = report
        if self._device is None:
            self._planning.begin(self._controller)
        if not self._is_told and (report.switched or report.bytes_out < report.bytes_in):
            self._is_told = True
            if self._group.rank() == 0:
                _LOG.info("%s", self.report())
        if report.switched:
            trim_memory()
            if self._device is not None:
                self._device.observed.forget_unless_needed()
            plan = self._controller.decision()
            if self._is_timed and plan is not None and self._group.rank() == 0:
                _LOG.info("%s", plan["why"])
            self._has_new_plan = self._on_plan is not None

    def _end_with_last_bucket(self) -> None:
        """Ends the step. Raises the step's error at once if the end of the backward pass cannot be detected."""
        self._finish_step()
        if isinstance(self._state, Ended) and not self._state.backward.is_known:
            self._end_step()

    def _end_backward(self) -> None:
        """Ends the step at the end of the backward pass. The last bucket may be missing.

        DDP omits buckets of unused parameters if ``skip_all_reduce_unused_params`` is set, and FSDP marks no last
        bucket.
        """
        self._finish_step()
        if self._has_new_plan or (isinstance(self._state, Ended) and self._state.failure is not None):
            # ``_end_step`` runs after DDP's own callback, which ends DDP's step, so that DDP can continue after an error.
            queue(self._end_step)

    def _await_caller(self) -> None:
        """Records at the end of a backward pass that the caller will end the step by ``_end_outside_pass``."""
        if isinstance(self._state, UnderWay):
            self._state.backward.is_known = False

    def _end_outside_pass(self) -> None:
        """Ends the step, if the end of its backward pass is unknown. Raises the step's error, which all ranks get."""
        if isinstance(self._state, UnderWay) and not self._state.backward.is_known:
            self._end_with_last_bucket()

    def _end_step(self) -> None:
        """Calls ``on_plan``, and raises the step's error, which all ranks get."""
        has_new_plan, self._has_new_plan = self._has_new_plan, False
        failure = None
        if isinstance(self._state, Ended):
            failure, self._state = self._state.failure, Between()
        try:
            if has_new_plan:
                self._tell_of_plan()
        finally:
            if failure is not None:
                raise self._with_advice(failure)

    def _tell_of_plan(self) -> None:
        if self._on_plan is not None:
            self._on_plan(self)

    def _with_advice(self, failed: LgrecoError) -> LgrecoError:
        """Adds advice to an error that a GradScaler might have caused."""
        if self._scale.is_scaled or self._advice is None or _TOLD_TOO_LARGE.search(f"error code {failed.code}; {failed}") is None:
            return failed
        advised = LgrecoError(f"{failed}; {self._advice}")
        advised.code, advised.layer, advised.peer, advised.peer_code = failed.code, failed.layer, failed.peer, failed.peer_code
        return advised.with_traceback(failed.__traceback__)

    # Taking a step back

    def _abandoned(self, cause: Exception) -> ExchangeError:
        """Undoes the step, and returns the error to raise."""
        error = self._broken(cause)
        self._take_back(error)
        if isinstance(cause, MemoryError) and self._nodes is not None and self._device is None:
            # The other ranks wait for this rank's collective, and no message informs them of the error.
            self._nodes.leave()
        return error

    def _broken(self, cause: Exception) -> ExchangeError:
        rank, step = self._group.rank(), self._controller.steps
        what = "a bucket cannot be exchanged" if isinstance(cause, LgrecoError) else "a collective has failed"
        return ExchangeError(f"rank {rank}, step {step}: {what}, and the step is taken back: {cause}")

    def _break_off(self) -> None:
        """Records that the caller will not end the step. If no backward pass is under way, the next call undoes the step."""
        if isinstance(self._state, UnderWay):
            self._state.backward.is_known = True

    def _take_back_left_over(self, layers: list[int] | None = None) -> None:
        """Undoes a step whose backward pass ended early, by the user's exception or an interrupt."""
        if isinstance(self._state, UnderWay) and self._state.is_left_over(layers):
            self._take_back(LgrecoError("the backward pass has ended before its buckets were exchanged: the step is taken back"))

    def _take_back(self, why: Exception) -> None:
        """Undoes the step under way, if there is one. May be called again after an interrupt."""
        step = self._state
        for exchange in self._under_way():
            exchange.give_up(why)
            if not exchange.is_lost:
                exchange.close(self._controller)
        if self._is_lost():
            raise LgrecoError("an interrupt came while a collective was started: load a saved state")
        if not isinstance(step, Refused):
            try:
                self._controller.abandon_step()
            except LgrecoError as error:
                if error.code != _NOT_BEGUN:
                    raise
        if self._device is not None:
            self._device.abandon()
        if not isinstance(step, Between):
            step.backward.forget()
        # The state changes last, so that an interrupt before this line leaves a step that is undone later.
        self._state = Between()

    def _is_lost(self) -> bool:
        """Whether a step is under way that cannot be undone."""
        return isinstance(self._state, UnderWay) and self._state.is_lost


def as_own(what: str, error: Exception) -> LgrecoError:
    """The error for an exception from one of the user's objects. This rank reports the error to the other ranks."""
    told = LgrecoError(f"{what}: {type(error).__name__}: {error}")
    told.__cause__ = error
    return told
