"""Compressed gradients for FullyShardedDataParallel (FSDP1)."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp._common_utils import clean_tensor_name

from lgreco._lgreco import LgrecoError
from lgreco.torch.training import Layer, Scaler, Training


class _Flat:
    """The parameters in one flat parameter, and where they are in its gradient."""

    def __init__(self, prefix: str, handle: Any, first: int) -> None:
        flat = handle.flat_param
        starts = [0, *itertools.accumulate(flat._numels_with_padding)]
        spans = list(zip(starts, starts[1:]))
        padding = flat._is_padding_mask
        self.spans = [span for span, is_padding in zip(spans, padding) if not is_padding]
        self.names = [clean_tensor_name(f"{prefix}.{name}" if prefix else name) for name in flat._fqns]
        self.shapes = [list(shape) for shape in flat._shapes]
        self.dtype: torch.dtype = handle._reduce_dtype or flat.dtype
        self.layers = list(range(first, first + len(self.names)))

    def layers_of(self, shard: int, world: int) -> list[Layer]:
        """Of ``world`` shards of so many elements; without shards of 0."""
        return [
            Layer(name, shape, self.dtype, [min(max(shard * (rank + 1) - start, 0), end - start) for rank in range(world)] if shard else [])
            for name, shape, (start, end) in zip(self.names, self.shapes, self.spans)
        ]


class LGreCoFSDP1State(Training):
    """Settings, residuals and plans of one process under FullyShardedDataParallel.

    ``module`` is the root, with FULL_SHARD or SHARD_GRAD_OP, where each rank gets the mean of its shard, or with NO_SHARD. Other
    parameters are those of ``LGreCoState``. Every flat parameter is a bucket, and the backward pass waits for it; its original
    parameters are the layers. FullyShardedDataParallel has no hook for HYBRID_SHARD: use ``fully_shard``.

    Raises LgrecoError for modules that are sharded otherwise, and for options that do not fit.
    """

    def __init__(
        self,
        module: FullyShardedDataParallel,
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
        on_plan: Callable[["LGreCoFSDP1State"], None] | None = None,
        **options: Any,
    ) -> None:
        parts = [(prefix, part) for prefix, part in module.named_modules() if _trains(part)]
        strategies = {part.sharding_strategy for _, part in parts}
        if not strategies <= {ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP} and strategies != {ShardingStrategy.NO_SHARD}:
            names = ", ".join(sorted(strategy.name for strategy in strategies))
            raise LgrecoError(f"the module is sharded by {names}, expected FULL_SHARD or SHARD_GRAD_OP, or NO_SHARD alone")
        sharded = ShardingStrategy.NO_SHARD not in strategies
        world = dist.get_world_size(module.process_group)
        layers: list[Layer] = []
        flats = []
        for prefix, part in parts:
            handle: Any = part._handle
            flats.append(_Flat(prefix, handle, len(layers)))
            shard = handle.flat_param._sharded_size.numel() if sharded else 0
            layers.extend(flats[-1].layers_of(shard, world))
        super().__init__(
            module.process_group,
            layers,
            method=method,
            default=default,
            policy=policy,
            settings=settings,
            start_iter=start_iter,
            period=period,
            window=window,
            error_feedback=error_feedback,
            residual_dtype=residual_dtype,
            grad_scaler=grad_scaler,
            random_seed=random_seed,
            on_plan=on_plan,
            **({"route": "sharded"} if sharded else {}),
            **options,
        )
        module.register_comm_hook(None, _hook)
        for (_, part), flat in zip(parts, flats):
            part._comm_hook_state = (self, flat)

    def _exchange(self, flat: _Flat, buffer: torch.Tensor) -> None:
        if buffer.dtype != flat.dtype:
            raise LgrecoError(f"{flat.names[0]}: the gradient is {buffer.dtype}, expected {flat.dtype}")
        flight = self._begin(flat.layers, buffer, [buffer[start:end] for start, end in flat.spans], False)
        while flight.is_flying() and self._go_on(flight):
            pass
        flight.deliver()


def _hook(of_part: tuple[LGreCoFSDP1State, _Flat], gradient: torch.Tensor, shard: torch.Tensor | None = None) -> None:
    state, flat = of_part
    state._exchange(flat, gradient)
    if shard is not None:
        rank = dist.get_rank(state._group)
        shard.copy_(gradient[rank * shard.numel() : (rank + 1) * shard.numel()])


def _trains(module: torch.nn.Module) -> TypeGuard[FullyShardedDataParallel]:
    handle = module._handle if isinstance(module, FullyShardedDataParallel) else None
    return handle is not None and handle.flat_param.requires_grad
