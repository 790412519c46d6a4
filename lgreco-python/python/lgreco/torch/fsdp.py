"""Compressed gradients for fully_shard (FSDP2)."""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from lgreco._errors import of_layer
from lgreco._lgreco import LgrecoError
from lgreco.torch.cuda import Cuda, device_of, where_they_stay
from lgreco.torch.finalization import Finalization, replace_method
from lgreco.torch.groups import expect_group
from lgreco.torch.layers import Layer, frozen_before, plain_name, reshard
from lgreco.torch.options import Options, wrong_route
from lgreco.torch.training import Training

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LOG = logging.getLogger("lgreco")
_LEFT_OUT = (
    "%s: the parameter has no gradient on rank %d in this step, and is left out. All ranks must leave out the same parameters, as "
    "without lgreco; otherwise the process group fails. If they differ, call model.set_reduce_scatter_unused_params(True) (PyTorch 2.15)"
)


class _Parameter(NamedTuple):
    """A sharded parameter."""

    name: str
    shard: list[int]
    """Dims of each rank's shard. Shorter shards are padded to these dims."""
    whole: list[int]
    """Dims of the tensor of all shards, stacked without the padding at the end."""
    dtype: torch.dtype
    """Type of the parameter's gradients."""


class _Unit:
    """The parameters of one FSDP module. In FSDP's buffers gradients are ordered by rank, and within a rank by
    parameter."""

    def __init__(self, parameters: list[_Parameter], first: int, group: Any) -> None:
        self.parameters = parameters
        self.group = group
        """FSDP's parameter group."""
        self.layers = list(range(first, first + len(parameters)))
        self.lens = [torch.Size(parameter.shard).numel() for parameter in parameters]
        self.wholes = [torch.Size(parameter.whole).numel() for parameter in parameters]
        self.present = list(range(len(parameters)))
        """Indices of the parameters that have a gradient in this step, in the order of FSDP's buffer."""
        self._has_warned = False
        self.later: str | None = None
        """Name of a parameter that has a gradient, but was frozen when the state was made."""
        # A module's gradients are exchanged together, in the smallest type that can represent all of them.
        self.dtype = functools.reduce(torch.promote_types, [parameter.dtype for parameter in parameters])

    @property
    def divide_factor(self) -> float | None:
        """The user's divisor for sums of gradients. None if sums are divided by the number of ranks."""
        factor: float | None = getattr(self.group, "gradient_divide_factor", None)
        return factor

    def note_present(self, indices: Mapping[Any, int], names: Mapping[Any, str]) -> None:
        """Records in each step which parameters of the unit have a gradient, because FSDP omits all others. Does nothing if
        this version of FSDP does not report its parameters."""

        def noting(prepare: Callable[..., Any]) -> Callable[..., Any]:
            def noted(fsdp_params: list[Any], gradients: list[torch.Tensor], world: int) -> Any:
                self.present = [indices[p] for p in fsdp_params if p in indices]
                if not self._has_warned and len(self.present) < len(self.parameters):
                    self._has_warned = True
                    absent = next(index for index in range(len(self.parameters)) if index not in self.present)
                    _LOG.warning(_LEFT_OUT, self.parameters[absent].name, dist.get_rank())
                self.later = next((names[p.sharded_param] for p in fsdp_params if p not in indices), None)
                return prepare(fsdp_params, gradients, world)

            return noted

        replace_method(self.group, "_prepare_reduce_scatter_inputs", noting)

    def lens_of(self, elements: int) -> list[int]:
        """Lengths of the shards of parameters with a gradient, in elements. ``elements`` is the expected sum."""
        lens = [self.lens[index] for index in self.present]
        if self.later is not None:
            raise frozen_before(self.later)
        if sum(lens) != elements:
            of_unit = f"the unit's {len(lens)} parameters have {sum(lens)} elements, what FSDP reduces has {elements}"
            way_out = "some are frozen, or were not used in this step: fully_shard those by themselves"
            raise of_layer(self.parameters[0].name, f"{of_unit}; {way_out}")
        return lens


class LGreCoShardedState(Training):
    """Settings, residuals and plans of one process under ``fully_shard``.

    Without ``replicate_group``, the reduce-scatter is compressed: each rank gets the mean of its own shard. With
    ``replicate_group`` (HSDP), ``module`` is sharded only within an inner group, such as the processes of a node. FSDP
    reduces and scatters within that group as usual. lgreco then compresses the shards of the gradients, and averages
    the shards over ``replicate_group``, between nodes. With an NCCL process group, gradients on an NVIDIA GPU stay on the
    GPU, as under ``LGreCoState``, and no step waits for the host.

    >>> model = torch.nn.Linear(64, 64)
    >>> fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))  # doctest: +ELLIPSIS
    FSDP...
    >>> state = LGreCoShardedState(model, method="qsgd", policy="uniform", start_iter=2)
    >>> for _ in range(4):
    ...     model(torch.ones(1, 64)).sum().backward()
    >>> state.settings
    {'weight': 'qsgd 4', 'bias': 'dense'}

    Parameters
    ----------
    module
        The root module, after ``fully_shard`` of the root and of its parts.
    replicate_group
        The ranks that hold the same shard.
    **options
        As in ``LGreCoState``. Every FSDP module is a bucket, which is exchanged as soon as its gradients are ready. For
        gradients on the host, the backward pass waits for the exchange.

    Raises
    ------
    LgrecoError
        For modules that are not sharded, or are sharded over several groups. For modules that FSDP itself replicates (a
        mesh of two dimensions), because FSDP's all-reduce would stay uncompressed. For invalid options.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        replicate_group: dist.ProcessGroup | None = None,
        _device_of: Callable[[Iterable[torch.Tensor]], Cuda | None] = device_of,
        **options: "Unpack[Options]",
    ) -> None:
        reshard(module)
        names = {parameter: plain_name(name) for name, parameter in module.named_parameters()}
        units: list[tuple[FSDPModule, _Unit]] = []
        frozen: list[tuple[FSDPModule, _Frozen]] = []
        groups: set[dist.ProcessGroup] = set()
        seen: set[int] = set()
        for part in module.modules():
            for group in _param_groups(part):
                # All modules of fully_shard([a, b]) have the same group.
                if id(group) in seen:
                    continue
                seen.add(id(group))
                if group.mesh_info.replicate_mesh_dim is not None:
                    raise LgrecoError(
                        "the module is replicated by FSDP itself, over a mesh of two dimensions, and its all-reduce would stay "
                        "uncompressed: fully_shard it over the inner mesh and pass the outer one's group as replicate_group"
                    )
                if any(p.sharded_param not in names for p in group.fsdp_params):
                    raise LgrecoError(
                        f"parameters of a {type(part).__name__} are not sharded: a forward pass is under way; make the state before it"
                    )
                shards = [p for p in group.fsdp_params if p.sharded_param.requires_grad]
                found = [_parameter(names[p.sharded_param], group, p) for p in shards]
                if found:
                    unit = _Unit(found, sum(len(unit.layers) for _, unit in units), group)
                    unit.note_present({p: index for index, p in enumerate(shards)}, names)
                    units.append((part, unit))  # type: ignore[arg-type]
                else:
                    frozen.append((part, _Frozen({p: names[p.sharded_param] for p in group.fsdp_params})))  # type: ignore[arg-type]
                groups.add(group._reduce_scatter_process_group)
        if len(groups) != 1:
            raise LgrecoError(f"the module is sharded over {len(groups)} process groups: apply fully_shard to all of it with the same mesh")
        expect_group(replicate_group)
        sharded = replicate_group is None
        refused = wrong_route(options, "sharded" if sharded else None, "under fully_shard each rank gets the mean of its shard")
        inner = groups.pop()
        ranks = inner.size() if sharded else 1
        group = inner if replicate_group is None else replicate_group
        besides = {} if sharded else {"the number of the shard that this rank of replicate_group holds": inner.rank()}
        refused = refused or _other_shards(inner, replicate_group)
        route = {} if replicate_group is not None else {"route": "sharded"}
        cuda = where_they_stay(_device_of(module.parameters()), group, {**options, **route})
        layers = [layer for _, unit in units for layer in _layers(unit, ranks, sharded)]
        super().__init__(group, layers, cuda, besides, refused, **options)
        self._note_scales(module)
        self._note_units([unit.layers for _, unit in units], layers)
        for owner, unit in units:
            if replicate_group is not None:
                owner.set_all_reduce_hook(_AllReduce(self, unit))
            else:
                owner.set_custom_reduce_scatter(_ReduceScatter(self, unit))  # type: ignore[arg-type]
        for owner, later in frozen:
            if replicate_group is not None:
                owner.set_all_reduce_hook(later)
            else:
                owner.set_custom_reduce_scatter(later)  # type: ignore[arg-type]
        self._finalization = Finalization(module, self)

    def _end_backward(self) -> None:
        if self._finalization.is_awaited():
            self._await_caller()
        else:
            super()._end_backward()

    def _exchange(self, unit: _Unit, buffer: torch.Tensor, gradients: Sequence[torch.Tensor]) -> None:
        if buffer.dtype != unit.dtype:
            raise LgrecoError(f"{unit.parameters[0].name}: the gradient is {buffer.dtype}, expected {unit.dtype}")
        self._finalization.expect_root(unit.parameters[0].name)
        self._exchange_unit([unit.layers[index] for index in unit.present], buffer, list(gradients))


class _AllReduce:
    """Replaces the mean of a shard within the node by its mean over all nodes."""

    def __init__(self, state: LGreCoShardedState, unit: _Unit) -> None:
        self._state, self._unit = state, unit
        self._awaiting: dict[int, torch.Tensor] = {}
        """By parameter, the sum of the gradients from backward passes without an exchange."""
        self._forget_at_reset()

    def _forget_at_reset(self) -> None:
        """Extends ``reset_iter_state()``, which discards all gradients of a failed iteration: it then also discards the sums."""
        awaiting = self._awaiting

        def forgetting(reset: Callable[[], None]) -> Callable[[], None]:
            def forgotten() -> None:
                awaiting.clear()
                reset()

            return forgotten

        replace_method(self._unit.group, "_reset_iter_state", forgetting)  # since PyTorch 2.15

    def __call__(self, shard: torch.Tensor) -> None:
        unit = self._unit
        parts = torch.split(shard, unit.lens_of(shard.numel()))
        if not getattr(unit.group, "all_reduce_grads", True):
            # After set_requires_all_reduce(False), gradients are only summed within the node, without an exchange.
            for index, part in zip(unit.present, parts):
                if index in self._awaiting:
                    self._awaiting[index] += part
                else:
                    self._awaiting[index] = part.clone()
                part.zero_()
            return
        for index, part in zip(unit.present, parts):
            if (awaiting := self._awaiting.pop(index, None)) is not None:
                part += awaiting
        self._state._exchange(unit, shard, parts)
        if unit.divide_factor is not None:
            # The user's factor replaces any other division, so the mean's division by the number of nodes is undone.
            shard.mul_(self._state._group.size())


class _ReduceScatter:
    """Gives each rank the mean of its shard."""

    def __init__(self, state: LGreCoShardedState, unit: _Unit) -> None:
        self._state, self._unit = state, unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        world, rank = group.size(), group.rank()
        times = self._times_of_mean(op, world)
        if world == 1:  # older PyTorch also calls this for a single rank
            output_tensor.copy_(input_tensor)
            return
        # Reorders the gradients from rank by rank to layer by layer, and removes the padding.
        lens = self._unit.lens_of(output_tensor.numel())
        wholes = [self._unit.wholes[index] for index in self._unit.present]
        by_rank = torch.split(input_tensor.view(world, -1), lens, dim=1)
        buffer = torch.cat([part.reshape(-1)[:whole] for part, whole in zip(by_rank, wholes)])
        if input_tensor.device.type == "cpu":
            # The memory from allocate() is freed, because FSDP would keep it although the buffer has the gradients.
            input_tensor.untyped_storage().resize_(0)
        gradients = torch.split(buffer, wholes)
        self._state._exchange(self._unit, buffer, gradients)
        padded = []
        for gradient, length in zip(gradients, lens):
            shard = gradient[rank * length : (rank + 1) * length]
            padded += [shard, shard.new_zeros(length - shard.numel())]
        torch.cat(padded, out=output_tensor)
        if times != 1.0:
            output_tensor.mul_(times)

    def _times_of_mean(self, op: Any, world: int) -> float:
        """The factor that turns the mean into the result that FSDP asks for."""
        if op == dist.ReduceOp.AVG:
            return 1.0
        if op == dist.ReduceOp.SUM:
            return float(world)
        if self._unit.divide_factor is None:
            name = self._unit.parameters[0].name
            raise of_layer(name, "FSDP asks for a reduction that is neither a mean nor a sum, and the module has no set_gradient_divide_factor: set one")
        # FSDP has divided gradients by the factor, and asks for the sum of these quotients.
        return world / self._unit.divide_factor


class _Frozen:
    """Raises an error if a unit has gradients although all its parameters were frozen when the state was made."""

    def __init__(self, names: Mapping[Any, str]) -> None:
        """``names`` has the name of each of FSDP's parameters."""
        self._names = names

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, *_: Any, **__: Any) -> None:
        trained = (name for p, name in self._names.items() if p.sharded_param.requires_grad)
        raise frozen_before(next(trained, next(iter(self._names.values()))))


def _other_shards(inner: dist.ProcessGroup, replicate_group: dist.ProcessGroup | None) -> LgrecoError | None:
    """The error if ranks of ``replicate_group`` hold different shards, else None."""
    if replicate_group is None:
        return None
    holders, averaging = dist.get_process_group_ranks(inner), dist.get_process_group_ranks(replicate_group)
    if len(set(holders) & set(averaging)) <= 1:
        return None
    way_out = "give the group of the ranks that hold the same shard, one of each node, such as mesh.get_group(\"replicate\")"
    return LgrecoError(f"replicate_group has ranks {averaging}, and the module is sharded over ranks {holders}: {way_out}")


def _layers(unit: _Unit, ranks: int, sharded: bool) -> list[Layer]:
    """The unit's layers: whole parameters with ``ranks`` shards, or only this rank's shards."""
    layers = []
    for parameter, length, whole in zip(unit.parameters, unit.lens, unit.wholes):
        ends = [min(length * (rank + 1), whole) for rank in range(ranks)] if sharded else []
        layers.append(Layer(parameter.name, parameter.whole if sharded else parameter.shard, unit.dtype, ends))
    return layers


def _parameter(name: str, group: Any, parameter: Any) -> _Parameter:
    shard, ranks = list(parameter.padded_sharded_param_size), group._reduce_scatter_process_group.size()
    # FSDP shards dimensions other than the first evenly. The shards are treated as rows of a stacked tensor.
    along_rows = parameter.fsdp_placement.dim == 0
    whole = list(parameter._orig_size) if along_rows else [ranks * shard[0], *shard[1:]]
    return _Parameter(name, shard, whole, _reduced(group, parameter))


def _param_groups(module: torch.nn.Module) -> list[Any]:
    if not isinstance(module, FSDPModule):
        return []
    state = module._get_fsdp_state()
    # In older PyTorch a module has at most one parameter group.
    groups = state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def _reduced(group: Any, parameter: Any) -> torch.dtype:
    policy = parameter.mp_policy if hasattr(parameter, "mp_policy") else group.mp_policy  # older PyTorch
    own = parameter.sharded_param.dtype
    if not hasattr(type(parameter), "unsharded_grad_dtype"):  # before PyTorch 2.15
        return policy.reduce_dtype or policy.param_dtype or own  # type: ignore[no-any-return]
    chosen = parameter.sharded_grad_dtype if parameter._has_sharded_grad_dtype_override else own
    return policy.reduce_dtype or chosen or own  # type: ignore[no-any-return]
