"""What is exchanged, and what is not."""

import math
from typing import NamedTuple

import torch

from lgreco._errors import of_layer
from lgreco._lgreco import LgrecoError

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Layer(NamedTuple):
    """A tensor whose gradient is exchanged."""

    name: str
    shape: list[int]
    dtype: torch.dtype
    ends: list[int] = []
    """At which element each rank's shard ends, where ranks want shards."""

    @property
    def bytes(self) -> int:
        """Of its gradient."""
        return math.prod(self.shape) * self.dtype.itemsize

    def described(self) -> tuple[str, str]:
        """Its name and what it is, for other ranks."""
        return self.name, f"{list(self.shape)} of {self.dtype}"

    def dtype_name(self) -> str:
        """``"float32"``, ``"float16"`` or ``"bfloat16"``. Raises LgrecoError for others."""
        if self.dtype not in _DTYPES:
            raise of_layer(self.name, f"the parameter is {self.dtype}: lgreco compresses float32, float16 and bfloat16")
        return str(self.dtype).removeprefix("torch.")


def no_module(model: object) -> LgrecoError | None:
    """What to raise for what has no parameters to be exchanged."""
    if isinstance(model, torch.nn.Module):
        return None
    return LgrecoError(f"model is a {type(model).__name__}, expected a torch.nn.Module")
