"""One call that compresses a module's gradients under DDP, FSDP1 or FSDP2."""

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from lgreco._lgreco import LgrecoError
from lgreco.torch.ddp import LGreCoState, lgreco_hook
from lgreco.torch.fsdp import LGreCoShardedState
from lgreco.torch.fsdp1 import LGreCoFSDP1State
from lgreco.torch.layers import uncompiled


def register(module: torch.nn.Module, **options: Any) -> LGreCoState | LGreCoShardedState | LGreCoFSDP1State:
    """Compresses the gradients of a module in DistributedDataParallel or FullyShardedDataParallel, or after ``fully_shard``.

    The module may be compiled. ``options`` are the options of the returned state. With DDP, the default of ``process_group`` is
    the group of the DDP. Raises LgrecoError for other modules.

    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> state = register(model, settings={"weight": "qsgd 4"}, start_iter=2)
    >>> for _ in range(4):
    ...     model(torch.ones(1, 64)).sum().backward()
    >>> state.settings
    {'weight': 'qsgd 4', 'bias': 'dense'}
    """
    given, module = module, uncompiled(module)
    if isinstance(module, DistributedDataParallel):
        if hooks := getattr(module, "_comm_hooks", None):
            names = ", ".join(getattr(hook, "__name__", repr(hook)) for hook, *_ in hooks)
            way_out = "wrap the module in another DistributedDataParallel, and register that"
            if (feature := _with_own_hook(module)) is not None:
                way_out = f"DistributedDataParallel itself has registered it for {feature}, so leave that out"
            raise LgrecoError(f"the DistributedDataParallel has a communication hook, {names}, and PyTorch allows one: {way_out}")
        state = LGreCoState(options.pop("process_group", None), module, **options)
        module.register_comm_hook(state, lgreco_hook)
        return state
    if isinstance(module, FSDPModule):
        return LGreCoShardedState(module, **options)
    if isinstance(module, FullyShardedDataParallel):
        return LGreCoFSDP1State(module, **options)
    expected = "a model in DistributedDataParallel or FullyShardedDataParallel, or after fully_shard: wrap it first"
    raise LgrecoError(f"found a {type(given).__name__}, expected {expected}")


def _with_own_hook(module: DistributedDataParallel) -> str | None:
    """The feature for which DistributedDataParallel itself registers a communication hook, or None."""
    if getattr(module, "mixed_precision", None) is not None:
        return "mixed_precision"
    in_backward = any(hasattr(p, "_in_backward_optimizers") for p in module.parameters())
    return "_apply_optimizer_in_backward" if in_backward else None
