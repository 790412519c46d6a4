"""The collectives that lgreco asks for, by torch.distributed."""

import atexit
import contextlib
import ctypes
import functools
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import torch.distributed as dist

from lgreco._lgreco import LgrecoError, Request
from lgreco.torch.options import expect


class ExchangeError(RuntimeError):
    """A collective has failed: a rank has died or stalled, or the network has.

    The step is taken back: residuals are what they were before it, and ``state_dict()`` saves them. Ranks may have got
    differently far with it, so those that go on, in a new group, load the state of one of them, each with its own residuals:
    ``load_state_dict(of_one, [own])``, and whoever takes a dead rank's place that rank's last.

    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> state = LGreCoState(None, model, method="topk")
    >>> model.register_comm_hook(state, lgreco_hook)
    >>> try:
    ...     model(torch.ones(1, 64)).sum().backward()
    ... except ExchangeError:  # on all ranks that are left
    ...     torch.save({"model": model.module.state_dict(), "lgreco": state.state_dict()}, f"rank{dist.get_rank()}.pt")
    >>> state.last_report.outcome
    'exchanged'
    """


class Started(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Returns when it is done."""

    def is_completed(self) -> bool:
        """Whether it is."""


def memory(address: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over ``length`` bytes at an address, which does not keep them alive."""
    if length == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=dtype)


class _All:
    """Several collectives, done when all are."""

    def __init__(self, works: list[dist.Work | None]) -> None:
        # Those of a group of one are done at once.
        self._works = [work for work in works if work is not None]

    def wait(self) -> None:
        failed: RuntimeError | None = None
        for work in self._works:
            try:
                work.wait()
            except RuntimeError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


class _ReduceScatter:
    """A sum of parts that differ in length, which reduce-scatters do not allow: parts are sent to their owners, who add them."""

    def __init__(self, values: torch.Tensor, lens: list[int], group: dist.ProcessGroup) -> None:
        rank, world = group.rank(), group.size()
        self._own = torch.split(values, lens)[rank]
        self._received = torch.empty(world, lens[rank], dtype=values.dtype, device=values.device)
        received = [lens[rank]] * world
        work = dist.all_to_all_single(self._received.view(-1), values, received, lens, group=group, async_op=True)
        self._work = _All([work])

    def wait(self) -> None:
        self._work.wait()
        torch.sum(self._received, 0, out=self._own)

    def is_completed(self) -> bool:
        return self._work.is_completed()


_SUMS = {
    "all_reduce": torch.float32,
    "all_reduce_bf16": torch.bfloat16,
    "reduce_scatter": torch.float32,
    "reduce_scatter_bf16": torch.bfloat16,
}


Memory = Callable[[int, int, torch.dtype], torch.Tensor]
"""Makes a tensor over so many bytes at an address."""


def start(request: Request, group: dist.ProcessGroup, memory: Memory = memory) -> Started:
    """Starts a collective on memory of the host, or of the kind that ``memory`` shows. Every rank starts the same ones in the
    same order."""
    if request.kind in _SUMS:
        values = memory(request.address, request.length, _SUMS[request.kind])
        if request.lens:
            return _ReduceScatter(values, request.lens, group)
        return _All([dist.all_reduce(values, group=group, async_op=True)])
    sent = memory(request.address, request.length, torch.uint8)
    if request.kind == "all_gather":
        return gather(sent, group)
    if request.kind == "all_gather_each":
        # A broadcast per rank needs no padding: lengths differ, and Gloo gathers equal ones alone.
        parts = enumerate(torch.split(sent, request.lens))
        return _All([
            dist.broadcast(part, group_src=rank, group=group, async_op=True) for rank, part in parts if part.numel() > 0
        ])
    if request.kind == "broadcast":
        return _All([dist.broadcast(sent, group_src=request.root, group=group, async_op=True)])
    received = memory(request.received_address, request.received_length, torch.uint8)
    work = dist.all_to_all_single(received, sent, request.received_lens, request.lens, group=group, async_op=True)
    return _All([work])


def complete(request: Request, group: dist.ProcessGroup) -> None:
    """Makes a collective of copies, which it keeps alive itself, should whoever waits for it be interrupted."""
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def copied(address: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        place = memory(address, length, dtype)
        copies.append((place, place.clone()))
        return copies[-1][1]

    start(request, group, copied).wait()
    for place, copy in copies:
        place.copy_(copy)


def gather(parts: torch.Tensor, group: dist.ProcessGroup) -> Started:
    """Starts the all-gather of equal parts, of which this rank's is in its place."""
    own = parts.chunk(group.size())[group.rank()].clone()
    return _All([dist.all_gather_into_tensor(parts, own, group=group, async_op=True)])


def expect_group(group: object) -> None:
    """Refuses what is no process group, nor None for the default one."""
    expected = "a process group of torch.distributed that this process is in, or None"
    expect(group is None or isinstance(group, dist.ProcessGroup), "process_group", group, expected)


def own_group(group: dist.ProcessGroup | None, backend: str = "gloo") -> dist.ProcessGroup:
    """A group of the same ranks for lgreco's collectives alone, so that no order with others' matters.

    It waits as long as the group does. For what is compressed in the host's memory it is Gloo's, whatever the group's.
    Raises LgrecoError where there is no process group, or ``group`` is none.
    """
    expect_group(group)
    of = group if group is not None else dist.group.WORLD
    if of is None:
        raise LgrecoError("there is no process group: call torch.distributed.init_process_group first")
    timeout = of._get_backend(of._device_types[0]).options._timeout
    ranks = dist.get_process_group_ranks(of)
    _await_threads_at_exit()
    with meeting(of):
        made = dist.new_group(ranks, timeout, backend=backend, use_local_synchronization=of is not dist.group.WORLD)
    assert isinstance(made, dist.ProcessGroup)
    return made


def release_with(owner: object, group: dist.ProcessGroup) -> None:
    """Releases a group when its owner is freed. Otherwise its sockets and threads would stay until the process ends."""
    weakref.finalize(owner, release, group, os.getpid()).atexit = False


def release(group: dist.ProcessGroup, made_by: int) -> None:
    """Closes the sockets and ends the threads of a group that this process has made, if it was ``made_by`` it."""
    if os.getpid() != made_by:
        return  # A child that was forked has none of the threads that would be waited for.
    # Where all groups have been destroyed before, this one has been, too.
    with contextlib.suppress(ValueError):
        dist.destroy_process_group(group)


@contextlib.contextmanager
def meeting(group: dist.ProcessGroup) -> Iterator[None]:
    """For what all ranks do when they make a state: says so where some rank does not come."""
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
    """Lets Gloo's threads have the interpreter before it goes: they free what the last collectives have held, and PyTorch 2.15 aborts
    the process where one of them asks for the interpreter later."""
    atexit.register(time.sleep, 0.2)
