"""What all doors to training have in common: steps made of buckets, residuals, plans, saved states."""

import logging
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lgreco._errors import of_layer
from lgreco._lgreco import Bucket, Controller, LgrecoError, PlanResult, Report, payload_len
from lgreco.torch.agreement import agree
from lgreco.torch.allocator import give_back
from lgreco.torch.backward import BackwardPass, queue
from lgreco.torch.checkpoint import Checkpointed, Loaded, to_bytes, to_tensor
from lgreco.torch.collectives import ExchangeError, complete, own_group, release_with
from lgreco.torch.cuda import Cuda
from lgreco.torch.device import Buckets, DeviceFlight
from lgreco.torch.effects import without_effect
from lgreco.torch.flight import Flight
from lgreco.torch.layers import Layer
from lgreco.torch.options import Options, Scaler, deciding, expect, in_order, name_of
from lgreco.torch.reports import Reports
from lgreco.torch.scale import Scale

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OF_RESIDUALS = (torch.float32, torch.bfloat16, torch.int8)
_OF_SUMS = (torch.float32, torch.bfloat16)
_NOT_BEGUN = 103
"""The code of a call that does not fit where the step is."""
_TOLD_TOO_LARGE = re.compile("error code (101|8)\\b")
"""How other ranks hear of values that are not finite, or too large for the type in which they are sent."""
_LOG = logging.getLogger("lgreco")
_LEAD = 10
"""Steps that a plan of a large model has on its thread, unless told otherwise."""
_LARGE = 1 << 22
"""Elements of one, of which planning takes a tenth of a second and more."""


class Training(Reports, Checkpointed[Loaded]):
    """Settings, residuals and plans of one process.

    A step begins with the first bucket of a backward pass, and ends with the last or with the pass. Passes that reentrant
    checkpoints run within another one belong to that one's step.
    """

    _bucket_bytes: int = 25 << 20
    """Of each bucket, which is what DDP makes of it."""
    _at_once: int = sys.maxsize
    """How many buckets are exchanged at the same time."""
    _advice: str | None = "under a GradScaler, whose overflows these may be, make the state with grad_scaler="

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        layers: Sequence[Layer],
        cuda: Cuda | None = None,
        besides: Mapping[str, Any] = MappingProxyType({}),
        refused: LgrecoError | None = None,
        /,
        **options: "Unpack[Options]",
    ) -> None:
        """For ranks that must have been told the same options, and the same ``besides``; what this one's model is ``refused`` for."""
        if options.get("lead", 0) is None:
            del options["lead"]
            if (lead := _lead(layers, cuda, options)) > 0:
                options["lead"] = lead
        told: dict[str, Any] = dict(options)
        reduce_dtype: torch.dtype | None = told.pop("reduce_dtype", None)
        if reduce_dtype is None:
            halves = all(layer.dtype == torch.bfloat16 for layer in layers)
            reduce_dtype = torch.bfloat16 if halves else torch.float32
        grad_scaler: Scaler | None = told.pop("grad_scaler", None)
        settings: Mapping[str, str] | None = told.pop("settings", None)
        on_plan: Callable[[Any], None] | None = told.pop("on_plan", None)
        self._optimizer: torch.optim.Optimizer | None = told.pop("optimizer", None)
        self.names = [layer.name for layer in layers]
        self._group = own_group(group)
        release_with(self, self._group)
        self._scale = None if grad_scaler is None else Scale(grad_scaler)
        self._on_plan = on_plan
        self._switched = False
        """In the step that ends, of which ``on_plan`` has not been told."""
        self._flights: list[Flight | DeviceFlight] | None = None
        self._pass: BackwardPass | None = None
        """That in which the last step has begun."""
        self._in_step: set[int] = set()
        """Layers whose exchange has begun in the step under way."""
        self._failed: LgrecoError | None = None
        self._refused = False
        self._bytes = [0, 0]
        self._timed = options.get("objective") == "seconds"
        self._leads = bool(options.get("lead"))
        self._planner: ThreadPoolExecutor | None = None
        self._planning: Future[PlanResult] | None = None
        self.last_report: Report | None = None
        self._rate = 1.0  # of the last step that has begun with its own
        # What ranks must have been told alike; measuring errors is each one's own affair.
        together = {**told, **besides, "settings": in_order(settings), "reduce_dtype": reduce_dtype}
        together.update(grad_scaler=grad_scaler is not None, metrics_every=None, gradients="on a GPU" if cuda else "on the host")
        self._decides = deciding(together)
        failure: Exception | None = None
        try:
            if refused is not None:
                raise refused
            if on_plan is not None:
                expect(callable(on_plan), "on_plan", on_plan, "a function of the state")
            if self._scale is not None:
                expect(hasattr(grad_scaler, "get_scale"), "grad_scaler", grad_scaler, "a torch.amp.GradScaler")
            if self._optimizer is not None:
                expect(hasattr(self._optimizer, "param_groups"), "optimizer", self._optimizer, "a torch.optim.Optimizer")
            # The controller would not name it.
            if (idle := without_effect({name: options.get(name) for name in ("ramp_up", "policy", "settings")})) is not None:
                raise idle
            if settings is not None:
                told["settings"] = self._settings_of_all(settings)
            self._controller = Controller(
                [(layer.name, layer.shape, layer.dtype_name(), layer.ends) for layer in layers],
                self._group.rank(),
                self._group.size(),
                grad_scaler is not None,
                residual_dtype=name_of("residual_dtype", told.pop("residual_dtype", torch.float32), _OF_RESIDUALS),
                reduce_dtype=name_of("reduce_dtype", reduce_dtype, _OF_SUMS),
                **told,
            )
            if (idle := without_effect(options)) is not None:
                raise idle
            if self._scale is not None:
                self._controller.note_scale(self._scale.now())
        except Exception as error:
            failure = error
        agree(self._group, together, [layer.described() for layer in layers], failure)
        if settings is not None and self._group.rank() == 0:
            _warn_of_larger(layers, settings)
        every: int = options.get("metrics_every") or 0
        scaled = self._scale is not None
        self._device = None if cuda is None else Buckets(cuda, self._controller, group, self._group, scaled, self._timed, every)

    def _settings_of_all(self, settings: Mapping[str, str]) -> list[str]:
        expect(isinstance(settings, Mapping), "settings", settings, "a setting per name of a layer")
        for name, setting in settings.items():
            if name not in self.names:
                raise LgrecoError(f"settings for {name!r}, which is no trainable parameter of the model")
            if not isinstance(setting, str):
                raise of_layer(name, f"the setting is {setting!r}, expected text such as 'topk 786'")
        return [settings.get(name, "dense") for name in self.names]

    def _note_scales(self, module: torch.nn.Module) -> None:
        """Has the scale noted before each of the module's forward passes, where gradients stay on a GPU."""
        if self._device is not None and self._scale is not None:
            cuda, scale = self._device.cuda, self._scale
            module.register_forward_pre_hook(lambda *_: scale.note(cuda))

    def _note_units(self, units: Sequence[list[int]], layers: Sequence[Layer]) -> None:
        """Says that these layers are exchanged together, one unit after the other."""
        self._bucket_bytes, self._at_once = max(sum(layers[layer].bytes for layer in unit) for unit in units), 1

    def _exchange_unit(self, layers: list[int], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> None:
        """Exchanges a bucket, while the backward pass waits."""
        flight = self._begin(layers, buffer, gradients, False)
        while flight.is_flying() and self._go_on(flight):
            pass
        flight.deliver()
        if isinstance(flight, Flight):
            # Its memory is for the next unit.
            self._close(flight)
            flight.let_go()

    def _begin(
        self, layers: list[int], buffer: torch.Tensor, gradients: list[torch.Tensor], hold_zeros: bool
    ) -> Flight | DeviceFlight:
        """Begins a bucket, and the step with the first."""
        # Between inner passes the end of an outer one may be unknown, but a layer comes once in each.
        again = self._pass is not None and self._pass.is_between and not self._in_step.isdisjoint(layers)
        self._take_back_left_over(is_over=again)
        failure = None
        if self._flights is None:
            if self._pass is None or not self._pass.is_between:
                self._failed = None  # of a pass that has ended otherwise
            # From here on there is something to be taken back, should the pass end early.
            self._flights, self._in_step = [], set()
            self._pass = BackwardPass(self._end_backward)
            failure = self._begin_step()
        self._in_step.update(layers)
        try:
            flight = self._flight(layers, buffer, gradients)
            self._flights.append(flight)
            if flight.bucket is not None:
                # Lent to what is kept already: an interrupt may come before a call's result is anybody's.
                self._controller.open(layers, flight.bucket)
        except (LgrecoError, RuntimeError) as error:
            raise self._abandoned(error) from error
        try:
            flight.submit(gradients, hold_zeros, failure)
        except Exception as error:
            raise self._abandoned(error) from error
        self._go_on(flight)
        for other in self._flights[:-1]:
            if other.can_end():
                self._go_on(other)
        return flight

    def _flight(self, layers: list[int], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> Flight | DeviceFlight:
        if self._device is not None and not self._refused:
            on_device = self._device.flight(layers, buffer, gradients)
            if on_device is not None:
                return on_device
        return Flight(None if self._refused else Bucket(), buffer, self._group)

    def _begin_step(self) -> LgrecoError | None:
        """What has gone wrong on this rank alone, to be told by the first bucket; what goes wrong on all is ``_refused``."""
        failure = None
        try:
            self._follow_scale()
        except LgrecoError as error:
            failure = error
        try:
            fault = self._device.fault() if self._device is not None else None
        except (LgrecoError, RuntimeError) as error:
            self._flights = None  # nothing has begun
            raise self._broken(error) from error
        if fault is not None:
            self._failed, self._refused = fault, True
            return None
        if self._device is not None:
            failure = failure or self._device.alone()
        self._take_over_plan()
        if self._device is not None:
            self._device.tell_times()
            # What the last step took is known now.
            if self._leads:
                self._plan_aside()
        rate = 1.0 if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])
        try:
            self._controller.begin_step(rate)
            self._rate = rate
        except LgrecoError as error:
            failure = error
            self._controller.begin_step(self._rate)
        if self._device is not None and not self._leads:
            # The rate that a plan may depend on is known now.
            self._plan_aside()
        try:
            while (request := self._controller.control()) is not None:
                complete(request, self._group)
            if self._device is not None:
                self._device.begin_step()
        except LgrecoError as error:
            # All ranks hear of it: the step has not begun, and nothing is exchanged in it.
            self._failed, self._refused = error, True
        except Exception as error:
            raise self._abandoned(error) from error
        return failure

    def follow_scale(self) -> None:
        """Takes the last step back if the GradScaler has skipped it, and rescales residuals when its scale has changed.

        Every step begins with it; call it before saving states, after ``scaler.update()``.
        """
        self._take_back_left_over()
        self._follow_scale()

    def _follow_scale(self) -> None:
        """An interrupt leaves what is to be done again."""
        scale, before = 1.0 if self._scale is None else self._scale.now(), self._controller.scale
        if scale == before:
            return
        if self._device is None:
            if scale < before:
                self._controller.roll_back()
            self._controller.follow_scale(scale)
            return
        self._device.bring_home(taken_back=scale < before)
        self._device.is_behind = True
        if scale < before:
            self._controller.roll_back()
        try:
            self._controller.follow_scale(scale)
        finally:
            self._device.take_out()

    def _go_on(self, flight: Flight | DeviceFlight) -> bool:
        try:
            return flight.go_on()
        except LgrecoError as error:
            # All ranks hear of it, and go on with the other buckets.
            self._failed = self._failed or error
            return False
        except Exception as error:
            raise self._abandoned(error) from error

    def _abandoned(self, cause: Exception) -> ExchangeError:
        """Takes the step back."""
        error = self._broken(cause)
        self._take_back(error)
        return error

    def _take_back_left_over(self, is_over: bool = False) -> None:
        """Takes a step back whose backward pass has ended by an exception of autograd's or an interrupt, before its end."""
        if self._flights is not None and self._pass is not None and (is_over or (self._pass.is_known and self._pass.is_over())):
            self._take_back(LgrecoError("the backward pass has ended before its buckets were exchanged: the step is taken back"))

    def _take_back(self, why: Exception) -> None:
        for flight in self._flights or []:
            flight.give_up(why)
            if not flight.is_lost:
                self._close(flight)
        if self._is_lost():
            raise LgrecoError("an interrupt has come while a collective was started: load a saved state")
        if not self._refused:
            try:
                self._controller.abandon_step()
            except LgrecoError as error:
                if error.code != _NOT_BEGUN:
                    raise
        if self._device is not None:
            self._device.abandon()
        if self._pass is not None:
            self._pass.forget()
        # At last: a second interrupt leaves the step to be taken back.
        self._flights, self._failed, self._refused = None, None, False

    def _is_lost(self) -> bool:
        """Whether the step under way cannot be taken back."""
        return any(flight.is_lost for flight in self._flights or [])

    def _broken(self, cause: Exception) -> ExchangeError:
        rank, step = self._group.rank(), self._controller.steps
        return ExchangeError(f"rank {rank}, step {step}: a collective has failed, and the step is taken back: {cause}")

    def _close(self, flight: Flight | DeviceFlight) -> None:
        """Once, or again where that has been interrupted; not where it has not been opened."""
        if flight.bucket is not None and not flight.bucket.is_closed:
            self._controller.close(flight.bucket)

    def _finish_step(self) -> None:
        if self._flights is None:
            return
        left = [flight for flight in self._flights if flight.is_flying()]
        # In the order of buckets, and every bucket's second collective after all first ones: the same on every rank.
        while left:
            left = [flight for flight in left if self._go_on(flight)]
        for flight in self._flights:
            self._close(flight)
            flight.land()
        if self._device is not None:
            # What is on its way is kept alive by flights, which are gone now.
            self._device.finish_step(was_copied=any(flight.bucket is not None for flight in self._flights))
        if self._refused:
            self._flights, self._refused = None, False
            return
        report = self._controller.finish_step()
        self._flights = None
        self._bytes = [self._bytes[0] + report.bytes_in, self._bytes[1] + report.bytes_out]
        self.last_report = report
        if self._device is None:
            self._plan_aside()
        if report.switched:
            give_back()
            if self._device is not None:
                self._device.observed.forget_unless_needed()
            plan = self.plan
            if self._timed and plan is not None and self._group.rank() == 0:
                _LOG.info("%s", plan["why"])
            self._switched = self._on_plan is not None

    def _plan_aside(self) -> None:
        """With ``lead`` steps to go, and on the rank that measures, plans on a thread while training goes on."""
        task = self._controller.take_plan_task() if self._planning is None else None
        work = None
        if task is not None:
            work = task.run if self._device is None else self._device.observed.planning(task)
        del task
        if work is not None:
            self._planner = self._planner or ThreadPoolExecutor(1, "lgreco-plan")
            self._planning = self._planner.submit(work)
            del work
            if not self._leads:
                # Gradients are on a GPU, and the plan is due now.
                wait([self._planning])
                self._take_over_plan()

    def _take_over_plan(self) -> None:
        """Once it is there: a step that is the plan's own waits for it, so that every run switches at the same step."""
        if self._planning is not None and (self._planning.done() or self._controller.is_plan_due()):
            planning, self._planning = self._planning, None
            if (error := planning.exception()) is None:
                self._controller.hand_in(planning.result())
                return
            # A task that is dropped is done during the step of its decision, and what fails then all ranks hear of.
            # As text: who keeps what is logged would keep the task.
            _LOG.warning("planning aside has failed, and is done again: %s", repr(error))
            del planning, error
            if self._device is not None:
                self._device.bring_observed_home()

    def _end_backward(self) -> None:
        # Where the last bucket is not known, or does not come: DDP leaves the last ones out where nobody uses their
        # parameters and skip_all_reduce_unused_params is set.
        self._finish_step()
        if self._failed is not None or self._switched:
            # After DDP's own callback, which ends its step: it can then go on after an error.
            queue(self._end_step)

    def _end_step(self) -> None:
        """Tells of a plan, and raises what all ranks have been told of."""
        switched, self._switched = self._switched, False
        failed, self._failed = self._failed, None
        try:
            if switched:
                self._tell_of_plan()
        finally:
            if failed is not None:
                raise self._with_advice(failed)

    def _tell_of_plan(self) -> None:
        if self._on_plan is not None:
            self._on_plan(self)

    def _with_advice(self, failed: LgrecoError) -> LgrecoError:
        """The error, where a GradScaler might have made it."""
        if self._scale is not None or self._advice is None or _TOLD_TOO_LARGE.search(f"error code {failed.code}; {failed}") is None:
            return failed
        advised = LgrecoError(f"{failed}; {self._advice}")
        advised.code, advised.layer, advised.peer, advised.peer_code = failed.code, failed.layer, failed.peer, failed.peer_code
        return advised.with_traceback(failed.__traceback__)

    def replan(self) -> int | None:
        """Asks for a plan before the next one, because the data or the network have changed; the step at which it is due.

        All ranks call it between the same two steps. The plan looks at the gradients of the next ``window`` steps, and those after it come
        when they would have. None where nothing is left to decide: a fixed or uniform policy.

        Raises LgrecoError while a step is under way; the next step does, on every rank, when some have not called it. Of gradients
        that stay on a GPU, and with ``objective="seconds"`` and a ``window`` of 1, ranks then wait for each other until the group's timeout.
        """
        return self._controller.replan()

    @property
    def settings(self) -> dict[str, str]:
        """Each layer's setting at the last step, as text."""
        return dict(zip(self.names, self._controller.settings()))

    @property
    def plan(self) -> dict[str, Any] | None:
        """The last decision: step, sizes in bits, error and whether it is proved optimal, and in words ``why``; None before the first.

        With ``objective="seconds"`` sizes are picoseconds, and a step's exchange, compressing included, is told in seconds:
        ``measured_seconds`` since the plan before (``computing_seconds`` of them compressing), and what is expected:
        ``plan_seconds``, ``default_seconds``, ``uncompressed_seconds``.
        """
        return self._controller.decision()

    def memory(self) -> dict[str, int]:
        """Bytes that the run takes on this rank beside its gradients, in ``total`` and by what they are for; also before it begins.

        ``residuals``, those of the step before (``undo``), PowerSGD's ``factors``, the ``exchange`` of all buckets of a step, and on rank
        0 the ``window`` of gradients that a plan looks at, from its first step until the plan. Under the settings of the last plan, or
        before the first under ``default``. Agrees within a tenth with what is allocated; the system may count less, as parts are hardly touched.
        """
        parts = dict(self._controller.memory(self._bucket_bytes, self._at_once))
        return {**parts, "total": sum(parts.values())}

    def metrics(self) -> dict[str, dict[str, Any]]:
        """What is known of each layer: setting, steps, bytes, relative error and norm of the residual. Reads residuals."""
        self._bring_home()
        return {name: self._controller.metrics(layer) for layer, name in enumerate(self.names)}

    def compression_stats(self) -> tuple[float, int, int]:
        """How many times fewer bytes this process has sent than gradients have, and both numbers of bytes."""
        gradients, sent = self._bytes
        return (gradients / sent if sent else 1.0, gradients, sent)

    def _bring_home(self) -> None:
        """Has the controller's residuals be those of the last step, where a GPU has them."""
        if self._device is not None:
            self._device.bring_home()

    def _plans(self) -> list[dict[str, Any]]:
        return [] if self.plan is None else [self.plan]

    def residual(self, name: str) -> torch.Tensor:
        """A copy of a layer's residual on this rank: float32, flat, in its gradient's order in memory; zeros without one."""
        self._take_back_left_over()
        self._bring_home()
        if name not in self.names:
            raise LgrecoError(f"no layer is called {name!r}")
        values = bytearray(self._controller.residual(self.names.index(name)))
        return torch.frombuffer(values, dtype=torch.float32) if values else torch.empty(0)

    def state_dict(self, *, window: bool = True) -> dict[str, Any]:
        """This rank's state by layer name; every rank saves its own. Bytes as uint8 tensors, for ``weights_only=True``.

        Without the ``window`` the gradients for the next plan are left out, as large as the model, which only rank 0 has.
        """
        self._take_back_left_over()
        self._bring_home()
        if window and self._device is not None:
            self._device.bring_observed_home()
        parts = self._controller.save(window)
        layers = {name: to_tensor(part) for name, part in parts if name is not None}
        run = next(to_tensor(part) for name, part in parts if name is None)
        rank, options = self._group.rank(), dict(self._decides)
        return {"run": run, "layers": layers, "bytes": list(self._bytes), "scale": self._controller.scale, "rank": rank, "options": options}

    def _ranks(self) -> list[int]:
        return dist.get_process_group_ranks(self._group)

    def _step(self) -> int:
        return self._controller.steps

    def load_state_dict(self, state: Mapping[str, Any], residuals: Sequence[Mapping[str, Any]] | None = None) -> Loaded:
        """Continues from a state, between two steps, on all ranks; what it had is also logged where something is lost.

        Options are those of this state, not of the saved one: where they differ, which is logged, the next plan is made as soon as
        its window has been seen, and a fixed or uniform policy goes by them at once.

        ``residuals`` are the states whose residuals this rank takes over, by default the same: with fewer workers than
        before also those of ranks that are gone, on a new rank none (``[]``), with the state of any rank. Those of earlier steps
        than the state's, a dead rank's last, have not what it has not sent since.

        Raises LgrecoError when a state is damaged or of another kind; nothing has changed then.
        """
        try:
            self._take_back_left_over()
        except LgrecoError:
            if not self._is_lost():
                raise
        taken = [state] if residuals is None else residuals
        for other in (state, *taken):
            if not isinstance(other, Mapping) or not {"run", "layers", "bytes"} <= other.keys():
                raise LgrecoError("what is to be loaded is not what state_dict() has returned: it has no 'run', 'layers' and 'bytes'")
        # Older states do not say.
        rank = self._group.rank()
        if residuals is None and state.get("rank", rank) != rank:
            whose = f"this is rank {rank}, and the state is that of rank {state['rank']}, whose residuals that one takes over"
            raise LgrecoError(f"{whose}: load each rank's own, or say by residuals= whose this one takes over, [] for none")
        plan = [to_bytes(state["run"])] + [to_bytes(part) for part in state["layers"].values()]
        residual_parts = [to_bytes(part) for other in taken for part in other["layers"].values()]
        (missing, extra, misshaped), step, oldest = self._controller.load(plan, residual_parts)
        if self._device is not None:
            self._device.forget()
            self._device.observed.forget()
        loaded = Loaded(missing, extra, misshaped, step, oldest)
        self._bytes = list(state["bytes"])
        # Residuals follow the scaler's at the next step, whether that is loaded before or after. Older states have none.
        self._controller.note_scale(state.get("scale", self._controller.scale))
        self._flights, self._failed, self._refused = None, None, False
        for what, names in (("missing in", loaded.missing), ("too much in", loaded.extra), ("of another shape in", loaded.misshaped)):
            if names:
                _LOG.warning("layers %s the state: %s", what, ", ".join(names))
        self._overrule(state.get("options", self._decides))
        if loaded.oldest_residual < loaded.step:
            steps = (loaded.step, loaded.oldest_residual)
            _LOG.warning("the run continues at step %d with a residual of step %d: what was not sent between them is lost", *steps)
        return loaded

    def _overrule(self, saved: Mapping[str, str]) -> None:
        """Has settings that were chosen by other options than this state's give way."""
        differing = [name for name in sorted(saved.keys() | self._decides.keys()) if saved.get(name) != self._decides.get(name)]
        if not differing:
            return
        due = self._controller.replan()
        when = "now" if due is None else f"when the next plan is made, before step {due}"
        for name in differing:
            own, was = (of.get(name, "left out") for of in (self._decides, saved))
            _LOG.warning("%s is %s, and was %s in the run that is continued: it has its effect %s", name, own, was, when)


def _lead(layers: Sequence[Layer], cuda: Cuda | None, options: "Options") -> int:
    """How many steps before its own a plan is begun on a thread: some where planning takes longer than a step would notice."""
    elements = sum(math.prod(layer.shape) for layer in layers)
    looks_at_gradients = options.get("settings") is None and (options.get("policy") or "lgreco") in ("lgreco", "kmeans", "accordion")
    if cuda is not None or not looks_at_gradients or elements < _LARGE or options.get("objective") == "seconds":
        return 0
    steps = (options.get("start_iter", 100), options.get("period", 1000))
    soonest = min((step for step in steps if isinstance(step, int) and step > 0), default=0)
    return min(_LEAD, soonest // 2)


def _warn_of_larger(layers: Sequence[Layer], settings: Mapping[str, str]) -> None:
    """Logs settings that send more than no compression."""
    for layer in layers:
        if (setting := settings.get(layer.name)) is None:
            continue
        sent, uncompressed = (payload_len(text, layer.shape, layer.dtype_name()) for text in (setting, "dense"))
        if sent > uncompressed:
            _LOG.warning("%s: %r sends %d bytes, more than the %d of the layer uncompressed", layer.name, setting, sent, uncompressed)
