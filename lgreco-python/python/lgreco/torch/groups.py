"""Makes process groups for lgreco's collectives, and compares options and layers between ranks when a state is made."""

import atexit
import contextlib
import functools
import hashlib
import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from lgreco._errors import of_layer
from lgreco._lgreco import LgrecoError, __version__
from lgreco.torch.options import expect

_VERSION = "the version of lgreco"


def expect_group(group: object) -> None:
    """Raises if ``group`` is neither a process group nor None, which stands for the default group."""
    expected = "a process group of torch.distributed that this process is in, or None"
    expect(group is None or isinstance(group, dist.ProcessGroup), "process_group", group, expected)


def own_group(group: dist.ProcessGroup | None, backend: str = "gloo") -> dist.ProcessGroup:
    """Makes a group of the same ranks with the same timeout, for lgreco's collectives alone.

    In a separate group, lgreco's collectives need no order relative to other collectives. Collectives in host memory need
    Gloo, whatever the backend of ``group``. Raises LgrecoError if there is no process group, or if ``group`` is of another
    type.
    """
    expect_group(group)
    of = group if group is not None else dist.group.WORLD
    if of is None:
        raise LgrecoError("there is no process group: call torch.distributed.init_process_group first")
    ranks = dist.get_process_group_ranks(of)
    return _new(ranks, of, backend, _is_world(of))


def part_of(parts: list[list[int]], of: dist.ProcessGroup, backend: str = "gloo") -> dist.ProcessGroup:
    """Makes a group of each part of a group's ranks, and returns this rank's group. All ranks of ``of`` must call
    ``part_of`` together.

    A process group sorts its ranks.
    """
    rank, is_world = dist.get_rank(), _is_world(of)
    # If all processes take part, each process makes every group. The number of groups then stays the same in all processes,
    # because PyTorch before 2.15 names groups by this number.
    made = [_new(part, of, backend, is_world) for part in parts if is_world or rank in part]
    return next(group for group in made if isinstance(group, dist.ProcessGroup))


def _is_world(group: dist.ProcessGroup) -> bool:
    return group.size() == dist.get_world_size()


def _new(ranks: list[int], of: dist.ProcessGroup, backend: str, with_all: bool) -> dist.ProcessGroup:
    """Makes a group. ``with_all`` says whether all processes make the group together, or only the group's ranks.

    On a rank outside the group, the result is PyTorch's NON_GROUP_MEMBER.
    """
    timeout = of._get_backend(of._device_types[0]).options._timeout
    _await_threads_at_exit()
    with meeting(of):
        made = dist.new_group(ranks, timeout, backend=backend, use_local_synchronization=not with_all)
    return made  # type: ignore[return-value]


def release_with(owner: object, group: dist.ProcessGroup) -> Callable[[], object]:
    """Releases a group when its owner is freed. Otherwise the group's sockets and threads would stay until the process ends.

    The returned function releases the group at once.
    """
    finalizer = weakref.finalize(owner, release, group, os.getpid())
    finalizer.atexit = False
    return finalizer


def release(group: dist.ProcessGroup, made_by: int) -> None:
    """Closes the sockets and ends the threads of a group, but only in the process that made it."""
    if os.getpid() != made_by:
        return  # A forked child does not have the group's threads, and would wait for them.
    # ValueError means that the user has already destroyed all groups.
    with contextlib.suppress(ValueError):
        dist.destroy_process_group(group)


@contextlib.contextmanager
def meeting(group: dist.ProcessGroup) -> Iterator[None]:
    """Within this context, ranks wait for each other to make a state. Adds the likely cause to an error of the network."""
    try:
        yield
    except LgrecoError:
        raise
    except RuntimeError as error:
        who = f"rank {group.rank()} has waited for the other {group.size() - 1} ranks of its process group"
        what = "every rank makes a state (by register, LGreCoState or OuterStep), and in the same order"
        raise LgrecoError(f"{who}, and not all have made a state at the same time: {what}: {error}") from error


@functools.cache
def _await_threads_at_exit() -> None:
    """Gives Gloo's threads time to free the memory of the last collectives before the interpreter ends.

    PyTorch 2.15 aborts the process if one of these threads calls the interpreter after its end.
    """
    atexit.register(time.sleep, 0.2)


def agree(
    group: dist.ProcessGroup, told: Mapping[str, Any], layers: Sequence[tuple[str, str]], failure: Exception | None
) -> None:
    """Raises on all ranks if options (``told``) or layers differ, or if some rank has a ``failure``.

    Options are compared as text. Layers are names with descriptions. The rank that failed raises its own error. All other
    ranks raise an error with the same text.
    """
    fingerprint = hashlib.sha256(repr(layers).encode()).hexdigest()
    options = {_VERSION: __version__} | {name: repr(value) for name, value in told.items() if value is not None}
    own = (None if failure is None else _words(failure), options, fingerprint)
    every: list[Any] = [None] * group.size()
    with meeting(group):
        dist.all_gather_object(every, own, group=group)
    for rank, (_, options, _) in enumerate(every):
        here, there = (of.get(_VERSION) for of in (options, every[0][1]))
        if here != there:
            # The versions are compared first, because other differences may follow from different versions.
            raise LgrecoError(f"{_VERSION} is {here} on rank {rank}, {there} on rank 0: install the same version on all ranks")
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
                raise LgrecoError(f"{name} is {here} on rank {rank}, {there} on rank 0: pass the same value on all ranks")


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
