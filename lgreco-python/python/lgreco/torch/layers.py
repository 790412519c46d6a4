"""The layers, which are tensors with gradients to exchange: names, checks, and the parts that a process holds."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.fsdp._runtime_utils import _reshard
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from lgreco._errors import of_layer
from lgreco._lgreco import LgrecoError

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Name parts that torch.compile, checkpoint_wrapper and FullyShardedDataParallel insert into parameters' names."""


class Layer(NamedTuple):
    """A tensor whose gradient is exchanged."""

    name: str
    shape: list[int]
    dtype: torch.dtype
    ends: list[int] = []
    """The element at which each rank's shard ends. Empty if each rank gets the mean of the whole layer."""

    @property
    def bytes(self) -> int:
        """Bytes of the layer's gradient."""
        return math.prod(self.shape) * self.dtype.itemsize

    def described(self) -> tuple[str, str]:
        """The layer's name, and its shape and type as text, which ranks compare."""
        return self.name, f"{list(self.shape)} of {self.dtype}"

    def dtype_name(self) -> str:
        """``"float32"``, ``"float16"`` or ``"bfloat16"``. Raises LgrecoError for other types."""
        if self.dtype not in _DTYPES:
            raise of_layer(self.name, f"the parameter is {self.dtype}: lgreco compresses float32, float16 and bfloat16")
        return str(self.dtype).removeprefix("torch.")


def no_module(model: object) -> LgrecoError | None:
    """The error for a model that is not a module, or None."""
    if isinstance(model, torch.nn.Module):
        return None
    return LgrecoError(f"model is a {type(model).__name__}, expected a torch.nn.Module")


def without_values(named: Iterable[tuple[str, torch.Tensor]]) -> LgrecoError | None:
    """The error for a trainable parameter of a lazy module, which has no values yet, or None."""
    for name, p in named:
        if p.requires_grad and is_lazy(p):
            return of_layer(plain_name(name), "the parameter is of a lazy module, and has no shape: run a forward pass of the model before")
        if p.requires_grad and p.is_meta:
            return of_layer(plain_name(name), "the parameter is on the meta device, without values: call to_empty() and initialise it before")
    return None


def frozen_before(name: str) -> LgrecoError:
    """The error for a parameter that has a gradient now but had none when the state was made."""
    return of_layer(name, "the parameter was frozen when the state was made: make another state")


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """The module that torch.compile wraps, or the model itself."""
    return getattr(model, "_orig_mod", model)


def plain_name(name: str) -> str:
    """A parameter's name without the names of wrappers, so that settings and saved states fit wrapped and plain models."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def local(parameter: torch.Tensor) -> torch.Tensor:
    """The part of a parameter that this process holds, in place."""
    return parameter._local_tensor if isinstance(parameter, DTensor) else parameter


def sharded_over(model: torch.nn.Module, parameters: Iterable[torch.Tensor]) -> list[int]:
    """The ranks that hold a part of the model; empty if the model is not sharded."""
    ranks: set[int] = set()
    for parameter in parameters:
        if isinstance(parameter, DTensor):
            ranks.update(parameter.device_mesh.mesh.flatten().tolist())
    for part in model.modules():
        if isinstance(part, FullyShardedDataParallel):
            ranks.update(dist.get_process_group_ranks(part.process_group))
    return sorted(ranks)


def reshard(model: torch.nn.Module) -> None:
    """Replaces the whole parameters of FSDP1 and FSDP2 modules by their shards. A forward pass without a backward pass leaves
    whole parameters in some modules."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
        elif isinstance(part, FullyShardedDataParallel) and (handle := part._handle) is not None:
            # Before the first forward pass, parameters are already sharded, and there is no _local_shard.
            if handle.uses_sharded_strategy and hasattr(handle.flat_param, "_local_shard") and not handle.needs_unshard():
                _reshard(part, handle, True)


def is_flat(model: torch.nn.Module) -> bool:
    """Whether FullyShardedDataParallel (FSDP1) keeps the parameters in flat parameters."""
    return any(isinstance(part, FullyShardedDataParallel) for part in model.modules())
