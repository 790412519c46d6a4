"""What a process keeps for compressed training."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from lgreco._lgreco import Controller, LgrecoError, Report
from lgreco.torch.bucket import GradBucket
from lgreco.torch.collectives import own_group, start
from lgreco.torch.flight import Flight

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16", torch.int8: "int8"}


class Scaler(Protocol):
    """torch.amp.GradScaler, as far as it matters here."""

    def get_scale(self) -> float:
        """The factor of the loss."""


class LGreCoState:
    """Settings, residuals and plans of one process, for ``model.register_comm_hook(state, lgreco_hook)``.

    Parameters
    ----------
    process_group
        The group that DDP averages over; None is the default group. All its ranks make a state at the same time. Compressed
        data travels in a Gloo group of the same ranks, made here; gradients on a GPU are copied to the host and back.
    model
        The module, wrapped in DDP or not. Its trainable parameters, float32, float16 or bfloat16, are the layers.
    method
        ``"qsgd"`` (bits, default 4), ``"topk"`` (density, default 0.01), ``"powersgd"`` (rank, default 4), or
        ``"hybrid"``: any of them per layer.
    default
        The method's parameter in the uniform setting by which the plan's budget is set, and around which it searches.
    policy
        ``"lgreco"`` plans after ``start_iter`` steps and then every ``period`` steps; ``"uniform"`` uses the default
        everywhere; ``"kmeans"`` clusters layers as CGX does; ``"uncompressed"`` is plain DDP.
    settings
        Instead of a policy: a fixed setting per layer, by name, as text (``"topk 786"``, ``"qsgd 4"``, ``"dense"``);
        layers that are left out stay uncompressed.
    start_iter, period, window
        Steps without compression at first, at least 2; steps between plans; steps whose gradients a plan looks at.
    error_feedback, residual_dtype
        Whether what TopK and PowerSGD do not send is remembered, and in which format: torch.float32, torch.bfloat16 or
        torch.int8.
    grad_scaler
        The GradScaler of mixed precision. Steps that it skips are taken back, residuals follow its scale, and gradients
        that are not finite reach it on all ranks instead of being an error.
    hold_zeros
        Layers whose gradient is all zeros keep their residual. For ``find_unused_parameters=True``, where DDP drops the
        mean of parameters that no rank has used; the default is whether ``model`` is such a DDP.
    on_plan
        Is called with the state after every step with new settings.
    **options
        ``alpha``, ``metric``, ``candidates`` (first, last, step), ``min_elements``, ``lead``, ``metrics_every``, ``route``,
        ``clusters``: as in the Rust crate's ``controller::Config`` and ``search::Search``.

    Raises
    ------
    LgrecoError
        For options and parameters that do not fit, with the name of the layer.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None,
        model: torch.nn.Module,
        *,
        method: str = "hybrid",
        default: float | None = None,
        policy: str = "lgreco",
        settings: Mapping[str, str] | None = None,
        start_iter: int = 100,
        period: int = 1000,
        window: int = 10,
        error_feedback: bool = True,
        residual_dtype: torch.dtype = torch.float32,
        grad_scaler: Scaler | None = None,
        random_seed: int = 0,
        hold_zeros: bool | None = None,
        on_plan: Callable[["LGreCoState"], None] | None = None,
        **options: Any,
    ) -> None:
        parameters = dict(_trainable(model))
        self.names = list(parameters)
        self._layers: dict[torch.Tensor, int] = {parameter: layer for layer, parameter in enumerate(parameters.values())}
        self._process_group = process_group if process_group is not None else dist.group.WORLD
        self._group = own_group(process_group)
        self._uncompressed = policy == "uncompressed" and settings is None
        self._hold_zeros = bool(getattr(model, "find_unused_parameters", False)) if hold_zeros is None else hold_zeros
        self._scaler, self._scale = grad_scaler, None if grad_scaler is None else grad_scaler.get_scale()
        self._on_plan = on_plan
        self._flights: list[Flight] | None = None
        self._in_backward = False
        self._failed: LgrecoError | None = None
        self._bytes = [0, 0]
        self.last_report: Report | None = None
        if settings is not None:
            options["settings"] = self._fixed(settings)
        layers = [(name, list(p.shape), _name_of(name, p.dtype)) for name, p in parameters.items()]
        self._controller = Controller(
            layers,
            self._group.rank(),
            self._group.size(),
            method=method,
            default=default,
            policy=policy,
            start_iter=start_iter,
            period=period,
            window=window,
            error_feedback=error_feedback,
            residual_dtype=_name_of("residual_dtype", residual_dtype),
            loss_scaling=grad_scaler is not None,
            seed=random_seed,
            **options,
        )

    def _fixed(self, settings: Mapping[str, str]) -> list[str]:
        unknown = [name for name in settings if name not in self.names]
        if unknown:
            raise LgrecoError(f"settings for {unknown[0]!r}, which is no trainable parameter of the model")
        return [settings.get(name, "dense") for name in self.names]

    def exchange(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begins the exchange of a bucket; the future's value is its buffer with the means."""
        if self._uncompressed:
            return self._average(bucket)
        if self._flights is None:
            self._begin_step()
        assert self._flights is not None
        parameters, gradients = bucket.parameters(), bucket.gradients()
        layers = [self._layer(parameter, gradient) for parameter, gradient in zip(parameters, gradients)]
        lent = self._controller.open(layers)
        flight = Flight(lent, bucket.buffer(), gradients, self._group, self._hold_zeros)
        self._go_on(flight)
        for other in self._flights:
            if other.can_end():
                self._go_on(other)
        self._flights.append(flight)
        if bucket.is_last():
            self._finish_step()
            if not self._in_backward:
                self._raise_failed()
        return flight.future

    def _average(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().div_(self._group.size())
        work = dist.all_reduce(buffer, group=self._process_group, async_op=True)
        assert work is not None
        self._bytes = [sent + buffer.nbytes for sent in self._bytes]
        return work.get_future().then(lambda done: done.value()[0])

    def _layer(self, parameter: torch.Tensor, gradient: torch.Tensor) -> int:
        layer = self._layers.get(parameter)
        if layer is None:
            raise LgrecoError("DDP exchanges a parameter that was not trainable when the state was made")
        if gradient.dtype != parameter.dtype:
            name = self.names[layer]
            raise LgrecoError(f"{name}: the gradient is {gradient.dtype}, the parameter {parameter.dtype}")
        return layer

    def _begin_step(self) -> None:
        self.follow_scale()
        self._controller.begin_step(1.0)
        while (request := self._controller.control()) is not None:
            start(request, self._group).wait()
        self._flights = []
        self._in_backward = _queue(self._end_backward)

    def follow_scale(self) -> None:
        """Takes the last step back if the GradScaler has skipped it, and rescales residuals when its scale has changed.

        Every step begins with it; call it before saving states, after ``scaler.update()``.
        """
        if self._scaler is None or self._scale is None:
            return
        scale = self._scaler.get_scale()
        if scale < self._scale:
            self._controller.roll_back()
        if scale != self._scale:
            self._controller.rescale_residuals(scale / self._scale)
            self._scale = scale

    def _go_on(self, flight: Flight) -> bool:
        try:
            return flight.go_on()
        except LgrecoError as error:
            # All ranks hear of it, and go on with the other buckets.
            self._failed = self._failed or error
            return False

    def _finish_step(self) -> None:
        if self._flights is None:
            return
        flights, self._flights = self._flights, None
        left = [flight for flight in flights if flight.is_flying()]
        # In the order of buckets, and every bucket's second collective after all first ones: the same on every rank.
        while left:
            left = [flight for flight in left if self._go_on(flight)]
        for flight in flights:
            self._controller.close(flight.bucket)
            flight.land()
        report = self._controller.finish_step()
        self._bytes = [self._bytes[0] + report.bytes_in, self._bytes[1] + report.bytes_out]
        self.last_report = report
        if report.switched and self._on_plan is not None:
            self._on_plan(self)

    def _end_backward(self) -> None:
        # DDP leaves the last buckets out where nobody uses their parameters and skip_all_reduce_unused_params is set.
        self._finish_step()
        if self._failed is not None:
            # After DDP's own, which ends its step: it can then go on after the error.
            _queue(self._raise_failed)

    def _raise_failed(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    @property
    def settings(self) -> dict[str, str]:
        """Each layer's setting at the last step, as text."""
        return dict(zip(self.names, self._controller.settings()))

    @property
    def plan(self) -> dict[str, Any] | None:
        """The last decision: step, sizes in bits, error and whether it is proved optimal; None before the first."""
        return self._controller.decision()

    def metrics(self) -> dict[str, dict[str, Any]]:
        """What is known of each layer: setting, steps, bytes, relative error and norm of the residual. Reads residuals."""
        return {name: self._controller.metrics(layer) for layer, name in enumerate(self.names)}

    def compression_stats(self) -> tuple[float, int, int]:
        """How many times fewer bytes this process has sent than gradients have, and both numbers of bytes."""
        gradients, sent = self._bytes
        return (gradients / sent if sent else 1.0, gradients, sent)

    def residual(self, name: str) -> torch.Tensor:
        """A copy of a layer's residual on this rank, float32, in the shape of the layer's matrix flattened; zeros without one."""
        values = bytearray(self._controller.residual(self.names.index(name)))
        return torch.frombuffer(values, dtype=torch.float32) if values else torch.empty(0)

    def state_dict(self, *, window: bool = True) -> dict[str, Any]:
        """This rank's state by layer name; every rank saves its own. Bytes as uint8 tensors, for ``weights_only=True``.

        Without the ``window`` the gradients for the next plan are left out, as large as the model, which only rank 0 has.
        """
        parts = self._controller.save(window)
        layers = {name: _tensor(part) for name, part in parts if name is not None}
        run = next(_tensor(part) for name, part in parts if name is None)
        return {"run": run, "layers": layers, "bytes": list(self._bytes)}

    def load_state_dict(self, state: Mapping[str, Any], residuals: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Continues from a state, between two steps, on all ranks.

        ``residuals`` are the states whose residuals this rank takes over, by default the same: with fewer workers than
        before also those of ranks that are gone, on a new rank none (``[]``), with the state of any rank.

        Raises LgrecoError when a state is damaged or of another kind; nothing has changed then.
        """
        plan = [_bytes(state["run"])] + [_bytes(part) for part in state["layers"].values()]
        taken = [state] if residuals is None else residuals
        missing, _, misshaped = self._controller.load(
            plan, [_bytes(part) for other in taken for part in other["layers"].values()]
        )
        if misshaped:
            raise LgrecoError(f"{misshaped[0]} has another shape or type than when the state was saved")
        self._bytes = list(state["bytes"])
        self._flights = None


def _queue(callback: Callable[[], None]) -> bool:
    """Has it called at the end of the backward pass, after what was queued before; False when there is none.

    There is none where a process that has joined shadows the others' collectives.
    """
    try:
        torch.autograd.Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True


def _trainable(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    module = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", []))
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad and name not in ignored]


def _name_of(what: str, dtype: torch.dtype) -> str:
    name = _DTYPES.get(dtype)
    if name is None:
        raise LgrecoError(f"{what} is {dtype}: lgreco compresses float32, float16 and bfloat16")
    return name


def _tensor(part: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(part), dtype=torch.uint8)


def _bytes(part: torch.Tensor) -> bytes:
    part = part.contiguous().cpu()
    return ctypes.string_at(part.data_ptr(), part.numel())
