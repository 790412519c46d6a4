"""What ranks tell each other before they make a state: whether each could, what it was told, and of which layers."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from lgreco._errors import of_layer
from lgreco._lgreco import LgrecoError
from lgreco.torch.collectives import meeting


def agree(
    group: dist.ProcessGroup, told: Mapping[str, Any], layers: Sequence[tuple[str, str]], failure: Exception | None
) -> None:
    """Raises on all ranks when ``told`` differs in text, or ``layers``, names with what they are, or some rank has a ``failure``:
    there itself, elsewhere with its words."""
    fingerprint = hashlib.sha256(repr(layers).encode()).hexdigest()
    options = {name: repr(value) for name, value in told.items() if value is not None}
    own = (None if failure is None else _words(failure), options, fingerprint)
    every: list[Any] = [None] * group.size()
    with meeting(group):
        dist.all_gather_object(every, own, group=group)
    if isinstance(failure, ValueError):
        raise failure
    if failure is not None:
        raise LgrecoError(_words(failure)) from failure
    for rank, (said, _, _) in enumerate(every):
        if said is not None:
            raise LgrecoError(f"rank {rank} failed: {said}")
    if any(other != fingerprint for _, _, other in every):
        models: list[Any] = [None] * group.size()
        dist.all_gather_object(models, list(layers), group=group)
        raise _differing(models)
    first: dict[str, str] = every[0][1]
    for rank, (_, options, _) in enumerate(every):
        for name in sorted(first.keys() | options.keys()):
            here, there = (of.get(name, "left out") for of in (options, first))
            if here != there:
                raise LgrecoError(f"{name} is {here} on rank {rank}, {there} on rank 0: ranks are told the same")


def _differing(models: list[list[tuple[str, str]]]) -> LgrecoError:
    """Names the first layer in which some rank's model differs from rank 0's."""
    rank = next(rank for rank, model in enumerate(models) if model != models[0])
    for index, (here, there) in enumerate(itertools.zip_longest(models[rank], models[0])):
        if here != there:
            break
    shown = [f"{layer[0]}, {layer[1]}," if layer else "missing" for layer in (here, there)]
    name = (there or here)[0]
    return of_layer(name, f"layer {index} is {shown[0]} on rank {rank}, {shown[1]} on rank 0: ranks train the same model")


def _words(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}"
