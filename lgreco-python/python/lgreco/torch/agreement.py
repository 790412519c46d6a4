"""What ranks tell each other before they make a state: whether each could, and what it was told."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from lgreco._lgreco import LgrecoError


def agree(group: dist.ProcessGroup, told: Mapping[str, Any], failure: Exception | None) -> None:
    """Raises on all ranks when ``told`` differs in text, or some rank has a ``failure``: there itself, elsewhere with its words."""
    own = (None if failure is None else _words(failure), {name: repr(value) for name, value in told.items() if value is not None})
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, own, group=group)
    if isinstance(failure, ValueError):
        raise failure
    if failure is not None:
        raise LgrecoError(_words(failure)) from failure
    for rank, (said, _) in enumerate(every):
        if said is not None:
            raise LgrecoError(f"rank {rank} failed: {said}")
    first: dict[str, str] = every[0][1]
    for rank, (_, options) in enumerate(every):
        for name in sorted(first.keys() | options.keys()):
            here, there = (of.get(name, "left out") for of in (options, first))
            if here != there:
                raise LgrecoError(f"{name} is {here} on rank {rank}, {there} on rank 0: ranks are told the same")


def _words(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}"
