"""Names of layers, whatever their modules are wrapped in."""

import torch

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""What torch.compile, checkpoint_wrapper and FullyShardedDataParallel put into parameters' names."""


def plain_name(name: str) -> str:
    """A parameter's name in the model that was wrapped, so that settings and saved states fit with and without."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """The module that torch.compile has been given, or the model itself."""
    return getattr(model, "_orig_mod", model)
