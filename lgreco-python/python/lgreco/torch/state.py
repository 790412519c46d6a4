"""The state of lgreco's communication hook for DistributedDataParallel."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from lgreco._errors import of_layer
from lgreco._lgreco import LgrecoError
from lgreco.torch.bucket import GradBucket
from lgreco.torch.callers import called_by_user
from lgreco.torch.collectives import expect_group
from lgreco.torch.cuda import Cuda, device_of, where_they_stay
from lgreco.torch.layers import Layer, no_module
from lgreco.torch.names import plain_name, uncompiled
from lgreco.torch.options import Scaler
from lgreco.torch.training import Training


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

    Gradients on an NVIDIA GPU, in a process group of NCCL's, stay there: they are compressed, exchanged and averaged in its memory,
    with the same means as on the host (of more than two processes sums are rounded in another order), and so are plans. What goes wrong in a step is
    then an error at the beginning of the next one, which is not taken. They are copied to the host and back, which is logged once,
    with another ``residual_dtype`` than float32 or ``route="scatter_reduce"``; so is, from then on, a bucket for whose settings there is no kernel, or for which a GPU has no memory. With ``objective="seconds"`` what a
    step takes is measured on the GPU, by events in its stream that no step waits for.

    Parameters
    ----------
    process_group
        The group that DDP averages over; None is the one of a ``model`` that is wrapped in DDP, and else the default group. All its
        ranks make a state at the same time. What lgreco sends travels in groups of the same ranks, made here: Gloo's, and for
        gradients that stay on a GPU NCCL's.
    model
        The module, wrapped in DDP or not, compiled or not. Its trainable parameters, float32, float16 or bfloat16, are the layers.
    method
        ``"qsgd"`` (bits, default 4), ``"eden"`` (bits, 3; rotated quantisation), ``"topk"`` (density, default 0.01), ``"powersgd"`` (rank, default 4), or
        ``"hybrid"``: EDEN, TopK or PowerSGD per layer. Left out, it is ``"hybrid"``. Also ``"clt-k"`` and ``"sidco"`` (density, 0.01),
        ``"hard-threshold"`` (magnitude, 0.01), ``"adacomp"`` (elements per bin, 500) and ``"loco"`` (elements per group, 512).
        Several, as in ``"qsgd,topk,sidco"``, are chosen from per layer; the uniform setting is the first one's default.
    default
        The method's parameter in the uniform setting that plans are held to, and around which they search. Layers of fewer than
        1024 elements (``min_elements``), and vectors of any length, biases and norms, stay uncompressed.
    budget
        ``"size"``: plans have at most the bytes of the uniform setting, and the least error; ``"error"``: at most its error, and
        the fewest bytes, as in the paper; or so many bits per step and process. Sizes cost less of the final loss.
    objective
        ``"bits"``; or ``"seconds"``: what sending and what compressing costs is measured while training, on the slowest rank, and
        each layer is compressed only if that is faster, by the network as it is now: plans are as fast as their error allows
        with ``budget="error"``, as exact as possible in the uniform setting's seconds with ``"size"``. A network that changes is
        followed at the next plan or the one after. Rank 0 logs a line per plan, by ``logging.getLogger("lgreco")``.
    policy
        ``"lgreco"``, unless told otherwise, plans after ``start_iter`` steps and then every ``period`` steps; ``"paper"`` does as
        the L-GreCo paper: l2 errors, at most those of the uniform setting, by the dynamic program; ``"uniform"`` uses the default
        everywhere; ``"kmeans"`` clusters layers as CGX does; ``"accordion"`` has two levels, by how gradients' norms change, and
        ``"legacy"`` levels by the size of a layer and the phase of training; ``"uncompressed"`` is plain DDP.
    settings
        Instead of ``method`` and ``policy``: a fixed setting per layer, by name, as text (``"topk 786"``, ``"qsgd 4"``, ``"dense"``);
        layers that are left out stay uncompressed. A setting that sends more than the layer uncompressed is logged as a warning.
    start_iter, period, window
        Steps without compression at first, at least 2; steps between plans; steps whose gradients a plan looks at.
    error_feedback, residual_dtype
        Whether what TopK and PowerSGD do not send is remembered, and in which format: torch.float32, torch.bfloat16 or
        torch.int8.
    reduce_dtype
        What is summed on the network travels as torch.float32 or, in half the bytes, as torch.bfloat16: PowerSGD's factors and
        layers that stay uncompressed. What rounding loses of a process's own factors stays in its residuals, of layers that stay
        uncompressed it is lost, as in plain DDP of bfloat16. The default is bfloat16 where all parameters are, as in plain DDP, and else float32.
    grad_scaler
        The GradScaler of mixed precision. Steps that it skips are taken back, residuals follow its scale, and gradients
        that are not finite reach it on all ranks instead of being an error. On a GPU a step waits for nothing to know the
        scale where ``model`` is wrapped in DDP; one after a change of the scale waits for residuals, which the host rescales.
    hold_zeros
        Layers whose gradient is all zeros keep their residual. For ``find_unused_parameters=True``, where DDP drops the
        mean of parameters that no rank has used; the default is whether ``model`` is such a DDP.
    on_plan
        Is called with the state after every step with new settings.
    ramp_up
        ``(first, steps)``: plans go by ``first`` instead of ``default`` after ``start_iter``, milder, and come to ``default`` in
        so many steps. Early steps are worth more.
    lead
        Steps before its own at which a plan is begun, below ``start_iter`` and ``period``. With more than 0 rank 0 plans on a
        thread while training goes on, and the plan's own step waits for what is not ready, so that runs are reproducible. Unless told
        otherwise 10, or half of ``start_iter`` or ``period`` where that is less, for models of 4 million parameters and more whose
        gradients are on the host, and else 0.
    undo
        Whether the residuals of the step before are kept, which takes their memory twice, so that a step whose network has failed
        leaves no trace in them. They always are with ``grad_scaler``, which skips steps. ``memory()`` tells how much memory a run takes.
    **options
        ``alpha``, ``metric`` (``"squared-l2"`` or the paper's ``"l2"``), ``workers`` (whose mean is taken; those of the group), ``candidates`` (first, last, step), ``widths``
        (of TopK's values: ``"full"`` and 1 to 8 bits, all but 1 and 7 unless given), ``min_elements``, ``metrics_every``, ``route``, ``clusters``: as in the
        Rust crate's ``controller::Config`` and ``search::Search``. Of Accordion ``accordion``, the parameters of critical layers and of the
        others, then, unless they are 0.5 and 1.5, the change of a norm and the fall of the learning rate that make layers critical,
        and ``optimizer``, whose first group has that rate; with ``policy="lgreco"`` budgets come from its levels. Of LEGACY
        ``legacy``: bounds between sizes, a parameter per size for each phase, steps of training.

    Raises
    ------
    LgrecoError
        For options and parameters that do not fit, with the name of the layer; where ``process_group`` has other ranks than the
        group over which DDP averages ``model``.
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
        if (other := no_module(model)) is not None:
            raise other
        model = uncompiled(model)
        process_group = _group_of(model, process_group)
        parameters = _trainable(model)
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
            undo=undo,
            error_feedback=error_feedback,
            residual_dtype=residual_dtype,
            reduce_dtype=reduce_dtype,
            grad_scaler=grad_scaler,
            random_seed=random_seed,
            on_plan=on_plan,
        )
        self._uncompressed = policy == "uncompressed" and reduce_dtype is None
        refused = _without_values(parameters)
        if refused is None and not self._uncompressed:
            refused = _sparse(_module(model), {p for _, p in parameters})
        finds_unused = bool(getattr(model, "find_unused_parameters", False))
        self._hold_zeros = finds_unused if hold_zeros is None else bool(hold_zeros)
        cuda = None if self._uncompressed else _device_of(p for _, p in parameters)
        cuda = where_they_stay(cuda, process_group, told)
        besides = {"find_unused_parameters": finds_unused, "hold_zeros": self._hold_zeros}
        if told.get("route") == "sharded" and refused is None:
            expected = '"all_gather" or "scatter_reduce": each rank gets whole means here'
            refused = LgrecoError(f"route is 'sharded', expected {expected}")
        super().__init__(process_group, layers, cuda, besides, refused, **told)
        self._bucket_bytes = getattr(model, "bucket_bytes_cap", self._bucket_bytes)
        self._layers: dict[torch.Tensor, int] = {p: layer for layer, (_, p) in enumerate(parameters)}
        self._dtypes = [layer.dtype for layer in layers]
        others = ((plain_name(name), p) for name, p in _module(model).named_parameters())
        self._others: dict[torch.Tensor, str] = {p: name for name, p in others if p not in self._layers}
        self._waits: bool | None = None
        """Whether the backward pass waits for each bucket; None before the first."""
        self._process_group = process_group if process_group is not None else dist.group.WORLD
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            self._note_scales(model)

    def exchange(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begins the exchange of a bucket; the future's value is its buffer with the means."""
        if self._uncompressed:
            return self._average(bucket)
        if bucket.buffer().layout != torch.strided:
            layer = self._layers[bucket.parameters()[0]]
            raise of_layer(self.names[layer], _SPARSE)
        gradients = bucket.gradients()
        layers = [self._layer(parameter, gradient) for parameter, gradient in zip(bucket.parameters(), gradients)]
        waits = self._some_hook_may_wait()
        flight = self._begin(layers, bucket.buffer(), gradients, self._hold_zeros)
        if bucket.is_last():
            self._finish_step()
            if self._pass is None or not self._pass.is_known:
                self._end_step()
        elif waits:
            while flight.is_flying() and self._go_on(flight):
                pass
            flight.land()
        return flight.future

    def _some_hook_may_wait(self) -> bool:
        """Whether on some rank a function of the user's has called lgreco_hook, which may wait for the future.

        Collectives after a bucket's first are otherwise started at the end of the backward pass, which a hook that waits never comes
        to. All ranks go the same way, so that they start collectives in the same order. They agree at their first bucket.
        """
        if self._waits is None:
            waits = torch.tensor(int(called_by_user()))
            try:
                dist.all_reduce(waits, dist.ReduceOp.MAX, group=self._group)
            except RuntimeError as error:
                raise self._abandoned(error) from error
            self._waits = bool(waits)
        return self._waits

    def _average(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().div_(self._group.size())
        # Before the sum, which puts others' indices into the buffer.
        sizes = [part.nbytes for part in ((buffer._indices(), buffer._values()) if buffer.is_sparse else (buffer,))]
        work = dist.all_reduce(buffer, group=self._process_group, async_op=True)
        assert work is not None
        self._bytes = [sent + sum(sizes) for sent in self._bytes]
        return work.get_future().then(lambda done: done.value()[0])

    def _layer(self, parameter: torch.Tensor, gradient: torch.Tensor) -> int:
        layer = self._layers.get(parameter)
        if layer is None:
            if name := self._others.get(parameter):
                raise of_layer(name, "DDP exchanges it, and it was not trainable when the state was made: make the state after that")
            shape = list(parameter.shape)
            raise LgrecoError(f"DDP exchanges a parameter of shape {shape} that the model had not when the state was made")
        if gradient.dtype != self._dtypes[layer]:
            was = f"the parameter was {self._dtypes[layer]} when the state was made"
            raise of_layer(self.names[layer], f"the gradient is {gradient.dtype}, and {was}: make the state after that")
        return layer


_SPARSE = "the gradient is sparse, which lgreco does not compress: leave sparse=True out, or all to DDP by policy=\"uncompressed\""


def _without_values(parameters: list[tuple[str, torch.nn.Parameter]]) -> LgrecoError | None:
    """What to raise for parameters that have other ones in their place when they get values."""
    for name, p in parameters:
        if p.is_meta:
            return of_layer(name, "the parameter is on the meta device, without values: make the state after to_empty() and initialisation")
    return None


def _sparse(module: torch.nn.Module, exchanged: set[torch.Tensor]) -> LgrecoError | None:
    """What to raise before training rather than in it, where DDP does not go on after an error."""
    for name, part in module.named_modules():
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse and part.weight in exchanged:
            return of_layer(plain_name(f"{name}.weight" if name else "weight"), _SPARSE)
    return None


def _group_of(model: torch.nn.Module, group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group that DDP averages over; None for the default group."""
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
    """Its dims from the outermost in memory to the innermost: DDP's buckets have gradients in their parameter's order in memory, so
    that one stored transposed would be a matrix of other rows."""
    if parameter.is_contiguous():
        return list(parameter.shape)
    strides = parameter.stride()
    # Of dims of one element, which may have any stride, none becomes the innermost.
    outermost_first = sorted(range(parameter.ndim), key=lambda dim: (parameter.shape[dim] == 1, -strides[dim]))
    stored = parameter.detach().permute(outermost_first)
    # DDP makes it contiguous where it is not dense.
    return list(stored.shape if stored.is_contiguous() else parameter.shape)


def _trainable(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """What DDP exchanges."""
    module = _module(model)
    of_ddp: Any = model if isinstance(model, torch.nn.parallel.DistributedDataParallel) else None
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", []) if of_ddp is None else of_ddp.parameters_to_ignore)
    exchanged: dict[torch.nn.Parameter, str] = {}
    for prefix, part in module.named_modules():
        for name, p in part.named_parameters(recurse=False):
            # DDP looks for parameters that are the root's own with a dot before their names, for tied ones under each name.
            if p.requires_grad and f"{prefix}.{name}" not in ignored:
                exchanged.setdefault(p, plain_name(f"{prefix}.{name}" if prefix else name))
    return [(name, p) for p, name in exchanged.items()]
