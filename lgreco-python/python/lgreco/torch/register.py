"""One call for whatever the module is wrapped in."""

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from lgreco._lgreco import LgrecoError
from lgreco.torch.fsdp import LGreCoShardedState
from lgreco.torch.hook import lgreco_hook
from lgreco.torch.state import LGreCoState


def register(module: torch.nn.Module, **options: Any) -> LGreCoState | LGreCoShardedState:
    """Compresses the gradients of a module in DistributedDataParallel, or after ``fully_shard``.

    Options are those of ``LGreCoState`` or ``LGreCoShardedState``, which it returns. Raises LgrecoError for other modules.
    """
    if isinstance(module, DistributedDataParallel):
        state = LGreCoState(module.process_group, module, **options)
        module.register_comm_hook(state, lgreco_hook)
        return state
    if isinstance(module, FSDPModule):
        return LGreCoShardedState(module, **options)
    raise LgrecoError(f"a {type(module).__name__} is neither in DistributedDataParallel nor has it been through fully_shard")
