"""Parts of parameters that a process holds, and with whom it shares the rest."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor


def local(parameter: torch.Tensor) -> torch.Tensor:
    """What of it this process holds, in its place."""
    return parameter._local_tensor if isinstance(parameter, DTensor) else parameter


def sharded_over(model: torch.nn.Module, parameters: Iterable[torch.Tensor]) -> list[int]:
    """All processes that hold a part of the model beside this one's, and this one; none where it is whole."""
    ranks: set[int] = set()
    for parameter in parameters:
        if isinstance(parameter, DTensor):
            ranks.update(parameter.device_mesh.mesh.flatten().tolist())
    for part in model.modules():
        if isinstance(part, FullyShardedDataParallel):
            ranks.update(dist.get_process_group_ranks(part.process_group))
    return sorted(ranks)


def is_flat(model: torch.nn.Module) -> bool:
    """Whether FullyShardedDataParallel (FSDP1) keeps its parameters in other ones."""
    return any(isinstance(part, FullyShardedDataParallel) for part in model.modules())
