"""Compressed gradients for FullyShardedDataParallel (FSDP1)."""

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp._common_utils import clean_tensor_name

from lgreco._lgreco import LgrecoError
from lgreco.torch.cuda import Cuda, device_of, where_they_stay
from lgreco.torch.layers import Layer, frozen_before, plain_name
from lgreco.torch.options import Options, wrong_route
from lgreco.torch.training import Training

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Flat:
    """A flat parameter: its original parameters, and their positions in its gradient."""

    def __init__(self, prefix: str, handle: Any, first: int) -> None:
        flat = handle.flat_param
        starts = [0, *itertools.accumulate(flat._numels_with_padding)]
        spans = list(zip(starts, starts[1:]))
        padding = flat._is_padding_mask
        self.spans = [span for span, is_padding in zip(spans, padding) if not is_padding]
        self.names = [plain_name(clean_tensor_name(f"{prefix}.{name}" if prefix else name)) for name in flat._fqns]
        self.shapes = [list(shape) for shape in flat._shapes]
        self.dtype: torch.dtype = handle._reduce_dtype or flat.dtype
        self.layers = list(range(first, first + len(self.names)))

    def layers_of(self, shard: int, world: int) -> list[Layer]:
        """The layers, for ``world`` shards of ``shard`` elements. If ``shard`` is 0, the gradient is not sharded."""
        layers = []
        for name, shape, (start, end) in zip(self.names, self.shapes, self.spans):
            ends = [min(max(shard * (rank + 1) - start, 0), end - start) for rank in range(world)]
            layers.append(Layer(name, shape, self.dtype, ends if shard > 0 else []))
        return layers


class LGreCoFSDP1State(Training):
    """Settings, residuals and plans of one process under FullyShardedDataParallel.

    ``module`` is the root. With FULL_SHARD or SHARD_GRAD_OP each rank gets the mean of its shard; NO_SHARD is supported
    too. All other parameters are as in ``LGreCoState``. Every flat parameter is a bucket, and the backward pass waits
    for its exchange. The original parameters in the flat parameter are the layers. Gradients on an NVIDIA GPU stay on
    the GPU, as under ``LGreCoState``. FullyShardedDataParallel has no hook for HYBRID_SHARD; use ``fully_shard`` instead.

    >>> model = FullyShardedDataParallel(torch.nn.Linear(64, 64), device_id=torch.device("cpu"))
    >>> state = LGreCoFSDP1State(model, method="qsgd", policy="uniform", start_iter=2)
    >>> for _ in range(4):
    ...     model(torch.ones(1, 64)).sum().backward()
    >>> state.settings
    {'weight': 'qsgd 4', 'bias': 'dense'}

    Raises LgrecoError for modules with another sharding, and for invalid options.
    """

    def __init__(
        self,
        module: FullyShardedDataParallel,
        *,
        _device_of: Callable[[Iterable[torch.Tensor]], Cuda | None] = device_of,
        **options: "Unpack[Options]",
    ) -> None:
        if not isinstance(module, FullyShardedDataParallel):
            raise LgrecoError(f"found a {type(module).__name__}, expected a model in FullyShardedDataParallel")
        wrapped = [(prefix, part) for prefix, part in module.named_modules() if isinstance(part, FullyShardedDataParallel)]
        parts = [(prefix, part) for prefix, part in wrapped if part._handle is not None and part._handle.flat_param.requires_grad]
        strategies = {part.sharding_strategy for _, part in parts}
        sharded = strategies <= {ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP}
        if not sharded and strategies != {ShardingStrategy.NO_SHARD}:
            names = ", ".join(sorted(strategy.name for strategy in strategies))
            raise LgrecoError(f"the module is sharded by {names}, expected FULL_SHARD or SHARD_GRAD_OP in all parts, or NO_SHARD in all parts")
        ranks = dist.get_process_group_ranks(module.process_group)
        for prefix, part in parts:
            if (own := dist.get_process_group_ranks(part.process_group)) != ranks:
                raise LgrecoError(
                    f"{plain_name(prefix)}: the module is sharded over ranks {own}, and the root over ranks {ranks}: give all modules the same "
                    "process_group, and leave other ones outside the root"
                )
        world = len(ranks)
        layers: list[Layer] = []
        flats = []
        for prefix, part in parts:
            handle: Any = part._handle
            flats.append(_Flat(prefix, handle, len(layers)))
            shard = handle.flat_param._sharded_size.numel() if sharded else 0
            layers.extend(flats[-1].layers_of(shard, world))
        refused = wrong_route(options, "sharded" if sharded else None, "under FullyShardedDataParallel each rank gets the mean of its shard")
        cuda = where_they_stay(_device_of(module.parameters()), module.process_group, options)
        super().__init__(module.process_group, layers, cuda, {}, refused, **options)
        self._note_scales(module)
        self._note_units([flat.layers for flat in flats], layers)
        for prefix, part in wrapped:
            if part._comm_hook is _hook:
                part._comm_hook = None  # This state replaces an earlier one.
        module.register_comm_hook(None, _hook)
        for prefix, part in wrapped:
            if part._handle is not None:
                part._comm_hook_state = _Frozen(_Flat(prefix, part._handle, 0).names[0])
        for (_, part), flat in zip(parts, flats):
            part._comm_hook_state = (self, flat)

    def _exchange(self, flat: _Flat, buffer: torch.Tensor) -> None:
        if buffer.dtype != flat.dtype:
            raise LgrecoError(f"{flat.names[0]}: the gradient is {buffer.dtype}, expected {flat.dtype}")
        self._exchange_unit(flat.layers, buffer, [buffer[start:end] for start, end in flat.spans])


class _Frozen(NamedTuple):
    """A flat parameter that was frozen when the state was made."""

    name: str
    """The name of the flat parameter's first original parameter."""


def _hook(of_part: tuple[LGreCoFSDP1State, _Flat] | _Frozen, gradient: torch.Tensor, shard: torch.Tensor | None = None) -> None:
    if isinstance(of_part, _Frozen):
        raise frozen_before(of_part.name)
    state, flat = of_part
    state._exchange(flat, gradient)
    if shard is not None:
        rank = dist.get_rank(state._group)
        shard.copy_(gradient[rank * shard.numel() : (rank + 1) * shard.numel()])
