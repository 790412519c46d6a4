"""Compressed gradients for DistributedDataParallel: the communication hook and its state."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lgreco._errors import of_layer
from lgreco._lgreco import LgrecoError
from lgreco.torch.cuda import Cuda, device_of, where_they_stay
from lgreco.torch.groups import expect_group
from lgreco.torch.layers import Layer, no_module, plain_name, uncompiled, without_values
from lgreco.torch.nodes import Nodes
from lgreco.torch.options import Scaler
from lgreco.torch.route import methods_of, routed_over
from lgreco.torch.step_state import Ended
from lgreco.torch.training import Training

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket
else:
    from torch.distributed import GradBucket  # register_comm_hook compares annotations with this class.


def lgreco_hook(state: "LGreCoState", bucket: GradBucket, *shard: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """Replaces a bucket's gradients by their mean over the workers, compressed as ``state`` has decided.

    Register this hook by ``model.register_comm_hook(state, lgreco_hook)``. The first collective of every bucket overlaps
    the backward pass, and later collectives follow at the end of the pass. Sums of uncompressed buckets start with the next
    bucket. Your own hook may call ``lgreco_hook`` and
    wait for its future. If some rank has such a hook, the backward pass waits for every bucket on all ranks. In the state's
    first step, ranks agree whether a rank has such a hook. If the state gets such a hook later, in a new
    DistributedDataParallel, one step raises an error on every rank.

    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> state = LGreCoState(None, model, settings={"weight": "topk 41"}, start_iter=2)
    >>> model.register_comm_hook(state, lgreco_hook)
    >>> for _ in range(4):
    ...     model.zero_grad()
    ...     model(torch.linspace(0, 1, 64)[None]).square().sum().backward()
    >>> int(model.module.weight.grad.count_nonzero())  # the residual has the others
    41

    ``backward`` raises LgrecoError on every rank, when a gradient is not finite or one rank failed. For gradients on a
    GPU, the next ``backward`` raises the error. The failed bucket's means are zeros on every rank, also in the future
    that your own hook gets. With ``grad_scaler``, gradients that are not finite reach the GradScaler on every rank and
    are no error.
    """
    if shard:
        raise TypeError(
            "lgreco_hook is for DistributedDataParallel, and was registered with FullyShardedDataParallel: leave register_comm_hook "
            "out, and call lgreco.torch.register(model)"
        )
    if not isinstance(bucket, GradBucket):
        raise TypeError(
            f"lgreco_hook was given a {type(bucket).__name__} instead of a GradBucket: torch.compile with "
            "optimize_ddp='python_reducer' calls hooks so; use optimize_ddp='ddp_optimizer' or False. FullyShardedDataParallel with "
            "NO_SHARD does, too; call lgreco.torch.register(model) instead of register_comm_hook"
        )
    if not isinstance(state, LGreCoState):
        raise TypeError(f"lgreco_hook was registered with a {type(state).__name__} as its state, expected an LGreCoState")
    return state.exchange(bucket)


class LGreCoState(Training):
    """Settings, residuals and plans of one process, for ``model.register_comm_hook(state, lgreco_hook)``.

    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> state = LGreCoState(None, model, method="topk", default=0.1, policy="uniform", start_iter=2)
    >>> model.register_comm_hook(state, lgreco_hook)
    >>> for _ in range(4):
    ...     model(torch.ones(1, 64)).sum().backward()
    >>> state.settings
    {'weight': 'topk 410', 'bias': 'dense'}
    >>> state.residual("weight").shape
    torch.Size([4096])

    With an NCCL process group, gradients on an NVIDIA GPU are compressed, exchanged, averaged, and measured for plans in the
    GPU's memory. The means equal the host's means, but with more than two processes sums are rounded in another order. A failed
    step raises its error at the beginning of the next step, which is then not performed.

    With another ``residual_dtype`` than float32, and with ``route="scatter_reduce"``, gradients are instead copied to the host
    and back, which is logged once. If a bucket's settings have no kernel, or the bucket does not fit in a GPU's memory, this
    bucket is copied to the host from then on.

    Parameters
    ----------
    process_group
        The group over which DDP averages. None means the group of a ``model`` wrapped in DDP, or else the default
        group. All ranks of the group must make a state at the same time. For its collectives, lgreco makes groups of
        the same ranks: one with Gloo, and for gradients on a GPU one with NCCL.
    model
        The module, wrapped in DDP or not, compiled or not. The module's trainable parameters, of type float32, float16 or
        bfloat16, are the layers.
    method
        ``"qsgd"`` (bits, default 4), ``"eden"`` (bits, 3; rotated quantisation), ``"topk"`` (density, default 0.01),
        ``"powersgd"`` (rank, default 4), or ``"hybrid"``, the default: EDEN, TopK or PowerSGD per layer. Further methods are
        ``"clt-k"`` and ``"sidco"`` (density, 0.01), ``"hard-threshold"`` (magnitude, 0.01), ``"adacomp"`` (elements per bin, 500)
        and ``"loco"`` (elements per group, 512). With several methods, as in ``"qsgd,topk,sidco"``, plans choose one per layer;
        the uniform setting is the first method's default.
    default
        The method's parameter in the uniform setting. Plans get their limit from this setting, and search around it.
        Layers of fewer than 1024 elements (``min_elements``) stay uncompressed, and so do vectors of any length, such
        as biases and norms.
    budget
        ``"size"``: plans have at most the bytes of the uniform setting, and minimise the error. ``"error"``: plans have
        at most the error of the uniform setting, and minimise the bytes, as in the paper. A number is the largest
        number of bits per step and process, without the layers that always stay uncompressed. ``"size"`` gives a lower
        final loss than ``"error"``.
    objective
        ``"bits"``, or ``"seconds"``: lgreco measures the times of sending and compressing during training, on the slowest
        rank. A layer is compressed only if its compression saves time on the present network. On a GPU, events in its stream
        measure the time, and no step waits for the events. With ``budget="error"``, plans are as fast as the error budget allows.
        With ``budget="size"``, plans have the least error within the uniform setting's time. After a change of the network, the
        next plan or the second next adapts. Rank 0 logs a line per plan, by ``logging.getLogger("lgreco")``.
    policy
        ``"lgreco"``, the default, plans after ``start_iter`` steps and then every ``period`` steps. ``"paper"`` follows
        the L-GreCo paper: l2 errors, at most those of the uniform setting, by the dynamic program. ``"uniform"`` uses
        the default everywhere. ``"kmeans"`` clusters layers as CGX does. ``"accordion"`` chooses between two parameters
        for each layer, by the change of the layer's gradient norm. ``"legacy"`` selects the parameter by the size of the
        layer and the phase of training. ``"uncompressed"`` is plain DDP.
    settings
        Instead of ``method`` and ``policy``: a fixed setting per layer, by name, as text (``"topk 786"``, ``"qsgd 4"``,
        ``"dense"``). Other layers stay uncompressed. A warning is logged for a setting that sends more than the
        uncompressed layer.
    start_iter, period, window
        The first ``start_iter`` steps, at least 2, are uncompressed. Plans are made every ``period`` steps, from the mean
        gradient of the last ``window`` steps. With ``objective="seconds"``, the second plan is made 50 steps after the first,
        if ``period`` is longer.
    route
        How payloads travel: ``"all_gather"``, ``"scatter_reduce"``, or ``"two_level"`` for nodes of several ranks. With
        two levels, the ranks of a node sum their gradients uncompressed. Each rank then exchanges its shard of the sums,
        compressed, with the ranks that have the same local rank on other nodes. The default is the route that sends the fewest
        bytes between nodes, and on a GPU never scatter-reduce. Rank 0 logs the chosen route.
    node_group
        The group of this node's ranks, for ``route="two_level"``. By default, nodes are blocks of LOCAL_WORLD_SIZE
        ranks, as torchrun numbers them. Under this route, errors number ranks node by node.
    error_feedback, residual_dtype
        Whether layers keep their compression errors as residuals, under all lossy methods except QSGD and EDEN; and the
        type of residuals: torch.float32, torch.bfloat16 or torch.int8. The residuals of LoCo are always torch.int8.
    reduce_dtype
        The type in which PowerSGD's factors and uncompressed layers are summed on the network: torch.float32, or torch.bfloat16
        in half the bytes. With two levels, the ranks of a node also send gradients in this type. Residuals keep the rounding
        errors of a process's own factors. Rounding errors of uncompressed layers are lost, as in plain DDP of bfloat16. The
        default is torch.bfloat16 if all parameters have this type, as in plain DDP; otherwise torch.float32.
    grad_scaler
        The GradScaler of mixed precision, one for each state. lgreco undoes the steps that the scaler skips, and rescales
        residuals with the loss scale. A GradScaler with ``enabled=False`` is treated as None. Gradients that are not finite
        reach the scaler on all ranks, and are no error. If several backward passes without ``no_sync`` precede a skipped
        step, only the last pass is undone. If ``model`` is wrapped in DDP, a step on a GPU never waits to read the scale.
        A step after a change of the scale waits for residuals, which the host rescales.
    hold_zeros
        Whether layers whose gradient is all zeros keep their residual instead of sending it. This is needed with
        ``find_unused_parameters=True``, where DDP drops the mean of parameters that no rank has used. The default is True if
        ``model`` is a DDP with ``find_unused_parameters=True``.
    on_plan
        A function that is called with the state after the first step under new settings.
    ramp_up
        ``(first, steps)``: after ``start_iter`` steps the uniform setting begins with the milder parameter ``first``, and
        reaches ``default`` within ``steps`` steps. Errors in early steps do more harm than errors in later steps.
    lead
        Number of steps from the beginning of planning to the step in which the plan takes effect; fewer than ``start_iter`` and
        ``period``. With a ``lead`` above 0, rank 0 plans on a thread while training continues. The step in which the plan takes
        effect waits for the plan, so that runs are reproducible. For models with at least 2^22 parameters and gradients on the
        host, the default is 10, or half of ``start_iter`` or ``period`` if that is less. For all other models, with
        ``objective="seconds"``, and under policies that do not look at gradients, the default is 0.
    undo
        Whether to keep the previous step's residuals too, which doubles the memory of residuals. A step in which the
        network fails then leaves residuals unchanged. With ``grad_scaler``, which skips steps, previous residuals are
        always kept. ``memory()`` returns the memory of a run.
    **options
        ``alpha`` multiplies a budget of ``"size"`` or ``"error"`` (default: 1). ``metric`` measures errors: ``"squared-l2"``, or
        ``"l2"`` as in the paper. ``workers`` is the number of averaged payloads (default: the number of workers, or of nodes with
        two levels). ``candidates`` is the range of parameters for plans: first, last and step. ``widths`` lists the
        formats of TopK's values: ``"full"`` and 1 to 8 bits (default: all but 1 and 7). Layers with fewer than ``min_elements``
        elements stay uncompressed (1024). Relative errors are measured every ``metrics_every`` steps; 0 means never (10; on a GPU
        0). ``clusters`` is the number of clusters under ``policy="kmeans"`` (6).

        ``accordion`` has the parameter of critical layers and the parameter of all other layers. Two thresholds may follow these
        parameters, by default 0.5 and 1.5. A layer is critical if its gradient norm changes by at least the first threshold, a
        fraction. All layers are critical if the learning rate falls by a factor above the second threshold. Accordion reads the
        learning rate of the first parameter group of ``optimizer``. With ``policy="lgreco"``, budgets come from Accordion's
        parameters.

        ``legacy`` is ``(bounds, levels, steps)``. ``bounds`` are ascending bounds between classes of layer sizes, in elements.
        ``levels`` has a list per phase, with one parameter per class. ``steps`` is the number of training steps, which the phases
        divide equally.

    Raises
    ------
    LgrecoError
        For invalid options and parameters, with the name of the layer. Also if the ranks of ``process_group`` differ from
        the ranks over which DDP averages ``model``.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None,
        model: torch.nn.Module,
        *,
        method: str | None = None,
        default: float | None = None,
        budget: str | int = "size",
        objective: str = "bits",
        policy: str | None = None,
        settings: Mapping[str, str] | None = None,
        start_iter: int = 100,
        period: int = 1000,
        window: int = 10,
        ramp_up: tuple[float, int] | None = None,
        lead: int | None = None,
        route: str | None = None,
        node_group: dist.ProcessGroup | None = None,
        error_feedback: bool = True,
        residual_dtype: torch.dtype = torch.float32,
        reduce_dtype: torch.dtype | None = None,
        grad_scaler: Scaler | None = None,
        random_seed: int = 0,
        undo: bool = False,
        hold_zeros: bool | None = None,
        on_plan: Callable[["LGreCoState"], None] | None = None,
        _device_of: Callable[[Iterable[torch.Tensor]], Cuda | None] = device_of,
        **options: Any,
    ) -> None:
        refused = no_module(model)
        # Without a module this rank has no layers, and reports this to the other ranks.
        model = torch.nn.Module() if refused is not None else uncompiled(model)
        try:
            process_group = _group_of(model, process_group)
        except LgrecoError as error:
            raise refused or error  # Arguments in the wrong order are two errors.
        parameters = _trainable(model)
        refused = refused or without_values(parameters) or _steps_in_backward(parameters)
        if refused is not None:
            parameters = []  # Lazy ones have no shape.
        layers = [Layer(name, _stored(p), p.dtype) for name, p in parameters]
        told = dict(
            options,
            method=method,
            default=default,
            budget=budget,
            objective=objective,
            policy=policy,
            settings=settings,
            start_iter=start_iter,
            period=period,
            window=window,
            ramp_up=ramp_up,
            lead=lead,
            route=route,
            undo=undo,
            error_feedback=error_feedback,
            residual_dtype=residual_dtype,
            reduce_dtype=reduce_dtype,
            grad_scaler=grad_scaler,
            random_seed=random_seed,
            on_plan=on_plan,
        )
        self._uncompressed = policy == "uncompressed" and reduce_dtype is None
        if refused is None and not self._uncompressed:
            refused = _sparse(_module(model), {p for _, p in parameters})
        finds_unused = bool(getattr(model, "find_unused_parameters", False))
        self._hold_zeros = finds_unused if hold_zeros is None else bool(hold_zeros)
        cuda = None if self._uncompressed else _device_of(p for _, p in parameters)
        cuda = where_they_stay(cuda, process_group, told)
        besides = {"find_unused_parameters": finds_unused, "hold_zeros": self._hold_zeros}
        if route not in (None, "all_gather", "scatter_reduce", "two_level") and refused is None:
            expected = '"all_gather", "scatter_reduce" or "two_level": each rank gets whole means here'
            refused = LgrecoError(f"route is {route!r}, expected {expected}")
        if not (hold_zeros is None or isinstance(hold_zeros, bool)):
            refused = refused or LgrecoError(f"hold_zeros is {hold_zeros!r}, expected True, False or None")

        if not (node_group is None or isinstance(node_group, dist.ProcessGroup)):
            expected = "a process group of torch.distributed that this process is in, or None"
            refused, node_group = LgrecoError(f"node_group is {node_group!r}, expected {expected}"), None
        methods = methods_of(method, settings)
        beside = None
        if self._uncompressed:
            beside = "policy='uncompressed'"
        elif route not in (None, "two_level"):
            beside = f"route={route!r}"
        elif route is None and methods == {"powersgd"}:
            beside = "method='powersgd' without a route"
        if node_group is not None and beside is not None:
            refused = refused or LgrecoError(f"node_group is given, which has no effect beside {beside}: leave it out, or give route=\"two_level\"")

        def routed(own: dist.ProcessGroup) -> tuple[Nodes | None, str]:
            may = not self._uncompressed and refused is None
            return routed_over(own, route, node_group, methods, may, cuda is not None, self._uncompressed)

        super().__init__(process_group, layers, cuda, besides, refused, routed, **told)
        self._bucket_bytes = getattr(model, "bucket_bytes_cap", self._bucket_bytes)
        self._layers: dict[torch.Tensor, int] = {p: layer for layer, (_, p) in enumerate(parameters)}
        self._dtypes = [layer.dtype for layer in layers]
        others = ((plain_name(name), p) for name, p in _module(model).named_parameters())
        self._others: dict[torch.Tensor, str] = {p: name for name, p in others if p not in self._layers}
        self._waits: bool | None = None
        """Whether the backward pass waits for each bucket. None before the first bucket, and after an error."""
        self._process_group = process_group if process_group is not None else dist.group.WORLD
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            self._note_scales(model)

    def exchange(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begins the exchange of a bucket. The future completes with the bucket's buffer once the buffer holds the means."""
        if self._uncompressed:
            return self._average(bucket)
        if bucket.buffer().layout != torch.strided:
            layer = self._layers[bucket.parameters()[0]]
            raise of_layer(self.names[layer], _SPARSE)
        gradients = bucket.gradients()
        layers = [self._layer(parameter, gradient) for parameter, gradient in zip(bucket.parameters(), gradients)]
        waits = self._a_hook_may_wait()
        unexpected = None if waits or not _called_by_user() else LgrecoError(_NEW_HOOK)
        exchange = self._begin(layers, bucket.buffer(), gradients, self._hold_zeros, failure=unexpected)
        if bucket.is_last():
            self._end_with_last_bucket()
        elif waits:
            self._complete(exchange)
            exchange.land()
        elif unexpected is not None:
            # The future is completed now, because the user's hook may wait for it: the other ranks complete this bucket only at
            # the end of the backward pass.
            exchange.land_zeros()
        return exchange.future

    def _finish_step(self) -> None:
        super()._finish_step()
        if isinstance(self._state, Ended) and self._state.failure is not None:
            # All ranks get the error in the same step, so all agree again in the next step.
            self._waits = None

    def metrics_line(self) -> str:
        if self._uncompressed:
            raise LgrecoError("policy is 'uncompressed', which leaves gradients to DDP: metrics_line() needs another policy, or settings={}")
        return super().metrics_line()

    def report(self) -> str:
        if not self._uncompressed:
            return super().report()
        return f"policy 'uncompressed': DDP averages {len(self.names)} layers over {self._group.size()} ranks, and nothing is compressed"

    def memory(self) -> dict[str, int]:
        found = super().memory()
        return dict.fromkeys(found, 0) if self._uncompressed else found

    def _a_hook_may_wait(self) -> bool:
        """Whether, on some rank, a user's hook calls lgreco_hook. Such a hook may wait for the future.

        Usually a bucket's later collectives start with the next bucket or at the end of the backward pass, which never come if
        a hook waits for them. Ranks agree on the answer at their first bucket, and again after an error, so that all ranks start
        collectives in the same order.
        """
        if self._waits is None:
            waits = torch.tensor(int(_called_by_user()), device="cpu")
            try:
                dist.all_reduce(waits, dist.ReduceOp.MAX, group=self._group)
            except RuntimeError as error:
                raise self._abandoned(error) from error
            self._waits = bool(waits)
        return self._waits

    def _average(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().div_(self._group.size())
        # The buffer's size is read before the all-reduce, which adds other ranks' indices to a sparse buffer.
        sizes = [part.nbytes for part in ((buffer._indices(), buffer._values()) if buffer.is_sparse else (buffer,))]
        work = dist.all_reduce(buffer, group=self._process_group, async_op=True)
        assert work is not None
        self._bytes = [sent + sum(sizes) for sent in self._bytes]
        return work.get_future().then(lambda done: done.value()[0])

    def _layer(self, parameter: torch.Tensor, gradient: torch.Tensor) -> int:
        layer = self._layers.get(parameter)
        if layer is None:
            if name := self._others.get(parameter):
                if not parameter.requires_grad:
                    raise of_layer(name, "DDP exchanges it, and it is frozen: freeze it before DDP(model), and make the state after that")
                raise of_layer(name, "DDP exchanges it, and it was not trainable when the state was made: make the state after that")
            shape = list(parameter.shape)
            raise LgrecoError(f"DDP exchanges a parameter of shape {shape} that was not in the model when the state was made: make a new state")
        if gradient.dtype != self._dtypes[layer]:
            if parameter.dtype == self._dtypes[layer]:
                way_out = "register lgreco_hook itself, without a wrapper that casts, such as bf16_compress_wrapper"
                raise of_layer(self.names[layer], f"the gradient is {gradient.dtype}, and the parameter is {parameter.dtype}: {way_out}")
            was = f"the parameter was {self._dtypes[layer]} when the state was made"
            raise of_layer(self.names[layer], f"the gradient is {gradient.dtype}, and {was}: make the state after that")
        return layer


def _called_by_user() -> bool:
    """Whether Python code outside PyTorch has called this package. PyTorch's own threads have no Python caller."""
    frame = sys._getframe(1)
    while frame is not None and _package_of(frame.f_globals) == "lgreco":
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and _package_of(frame.f_globals) != "torch"


def _package_of(names: dict[str, object]) -> str:
    return str(names.get("__name__")).partition(".")[0]


_NEW_HOOK = (
    "your own hook calls lgreco_hook, and the state was used without such a hook before: the means of this step are zeros; continue with "
    "the next step, in which ranks agree again whether the backward pass waits for hooks"
)
_SPARSE = "the gradient is sparse, which lgreco does not compress: leave sparse=True out, or all to DDP by policy=\"uncompressed\""


def _steps_in_backward(parameters: list[tuple[str, torch.nn.Parameter]]) -> LgrecoError | None:
    """The error for parameters whose optimizer runs in the backward pass. For such parameters DDP registers a hook itself in the
    first forward pass."""
    for name, p in parameters:
        if hasattr(p, "_in_backward_optimizers"):
            what = "the parameter has an optimizer by _apply_optimizer_in_backward, for which DDP needs its only communication hook"
            return of_layer(name, f"{what}: leave it out, and call an optimizer's step() after backward")
    return None


def _sparse(module: torch.nn.Module, exchanged: set[torch.Tensor]) -> LgrecoError | None:
    """The error for layers with sparse gradients. The constructor raises this error, because DDP cannot continue after an
    error during training."""
    for name, part in module.named_modules():
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse and part.weight in exchanged:
            return of_layer(plain_name(f"{name}.weight" if name else "weight"), _SPARSE)
    return None


def _group_of(model: torch.nn.Module, group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group over which DDP averages. None is the default group."""
    expect_group(group)
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return group
    its: dist.ProcessGroup | None = None if model.process_group is dist.group.WORLD else model.process_group
    if group is None:
        return its
    given, expected = dist.get_process_group_ranks(group), dist.get_process_group_ranks(its)
    if given != expected:
        raise LgrecoError(f"process_group has ranks {given}, the group over which DDP averages has {expected}")
    return group


def _module(model: torch.nn.Module) -> torch.nn.Module:
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model


def _stored(parameter: torch.Tensor) -> list[int]:
    """A parameter's dims, from the outermost in memory to the innermost.

    In DDP's buckets, a gradient has the memory order of its parameter. For a transposed matrix, the rows in memory are
    the columns of the matrix.
    """
    if parameter.is_contiguous():
        return list(parameter.shape)
    strides = parameter.stride()
    # Dims of length 1 come first, because they may have any stride and must not be the innermost dim.
    outermost_first = sorted(range(parameter.ndim), key=lambda dim: (parameter.shape[dim] == 1, -strides[dim]))
    stored = parameter.detach().permute(outermost_first)
    # If a parameter has gaps in memory, DDP makes its gradient contiguous.
    return list(stored.shape if stored.is_contiguous() else parameter.shape)


def _trainable(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that DDP exchanges, with their names."""
    module = _module(model)
    of_ddp: Any = model if isinstance(model, torch.nn.parallel.DistributedDataParallel) else None
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", []) if of_ddp is None else of_ddp.parameters_to_ignore)
    exchanged: dict[torch.nn.Parameter, str] = {}
    for prefix, part in module.named_modules():
        for name, p in part.named_parameters(recurse=False):
            # In DDP's list of ignored parameters, names of the root's own parameters begin with a dot. A tied parameter
            # may be listed under any of its names.
            if p.requires_grad and f"{prefix}.{name}" not in ignored:
                exchanged.setdefault(p, plain_name(f"{prefix}.{name}" if prefix else name))
    return [(name, p) for p, name in exchanged.items()]
