"""Performs the collectives that lgreco requests, with torch.distributed."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from lgreco._lgreco import Request


class ExchangeError(RuntimeError):
    """A collective has failed: a rank has died or stalled, or the network has failed.

    The step is undone, and ``state_dict()`` saves the residuals. With ``undo=True`` or a ``grad_scaler``, residuals are as before
    the step. Otherwise, layers that were already exchanged keep their new residuals. Ranks may have failed at different steps.
    All ranks that continue in a new group load the state of the same rank, each with its own residuals: ``load_state_dict(of_one,
    [own])``. A rank that replaces a dead rank loads the dead rank's last residuals.

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
        """Waits until the collective is done."""

    def is_completed(self) -> bool:
        """Whether the collective is done."""


def memory(address: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over ``length`` bytes at an address. The caller must keep this memory alive."""
    if length == 0:
        return torch.empty(0, dtype=dtype, device="cpu")
    return torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=dtype)


class _All:
    """Several collectives as one, which is done when all are done."""

    def __init__(self, works: list[dist.Work | None]) -> None:
        # In a group of one rank, torch.distributed returns None.
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
    """A reduce-scatter of parts of different lengths. Each part is sent to its owner, which sums all ranks' parts."""

    def __init__(self, values: torch.Tensor, lens: list[int], group: dist.ProcessGroup) -> None:
        rank, world = group.rank(), group.size()
        self._own = torch.split(values, lens)[rank]
        self._is_pair = world == 2
        """Whether there are two ranks. In this case, a rank receives only the other rank's part, and adds this part to its own in
        place."""
        rows = 1 if self._is_pair else world
        self._received = torch.empty(rows, lens[rank], dtype=values.dtype, device=values.device)
        received = [lens[rank]] * world
        if self._is_pair:
            values, lens, received = torch.split(values, lens)[1 - rank], list(lens), list(received)
            lens[rank] = received[rank] = 0
        work = dist.all_to_all_single(self._received.view(-1), values, received, lens, group=group, async_op=True)
        self._work = _All([work])

    def wait(self) -> None:
        self._work.wait()
        if self._is_pair:
            self._own.add_(self._received[0])
        else:
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
"""A function that makes a tensor over memory, from the address, the number of bytes, and the tensor's type."""


def start(request: Request, group: dist.ProcessGroup, memory: Memory = memory) -> Started:
    """Starts a collective on host memory, or on the memory that ``memory`` makes accessible. All ranks must start the same
    collectives in the same order."""
    if request.kind in _SUMS:
        values = memory(request.address, request.length, _SUMS[request.kind])
        if request.lens:
            return _ReduceScatter(values, request.lens, group)
        return _All([dist.all_reduce(values, group=group, async_op=True)])
    sent = memory(request.address, request.length, torch.uint8)
    if request.kind == "all_gather" and request.group == "node":
        # Gloo's all-gather would receive into separate memory and then copy. A broadcast per rank receives in place.
        return _broadcasts(sent.chunk(group.size()), group)
    if request.kind == "all_gather":
        return gather(sent, group)
    if request.kind == "all_gather_each":
        # Each rank broadcasts its part. Gloo's all-gather would need padding, because the parts differ in length.
        return _broadcasts(torch.split(sent, request.lens), group)
    if request.kind == "broadcast":
        return _All([dist.broadcast(sent, group_src=request.root, group=group, async_op=True)])
    received = memory(request.received_address, request.received_length, torch.uint8)
    work = dist.all_to_all_single(received, sent, request.received_lens, request.lens, group=group, async_op=True)
    return _All([work])


def _broadcasts(parts: Sequence[torch.Tensor], group: dist.ProcessGroup) -> Started:
    """Starts a broadcast of each rank's part."""
    return _All([
        dist.broadcast(part, group_src=rank, group=group, async_op=True) for rank, part in enumerate(parts) if part.numel() > 0
    ])


def complete(request: Request, group: dist.ProcessGroup) -> None:
    """Performs a collective on copies of the requested memory. The copies live until the collective is done, even if an
    interrupt ends the wait."""
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def copied(address: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        place = memory(address, length, dtype)
        copies.append((place, place.clone()))
        return copies[-1][1]

    start(request, group, copied).wait()
    for place, copy in copies:
        place.copy_(copy)


def reduce_scatter(own: torch.Tensor, parts: torch.Tensor, group: dist.ProcessGroup) -> Started:
    """Starts a reduce-scatter of equal parts. ``own`` receives the sums of this rank's part."""
    return _All([dist.reduce_scatter_tensor(own, parts.view(-1), group=group, async_op=True)])


def all_to_all(received: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup) -> Started:
    """Starts an all-to-all of equal parts."""
    received, sent = (values.view(torch.uint8).view(-1) for values in (received, sent))
    return _All([dist.all_to_all_single(received, sent, group=group, async_op=True)])


def all_gather(parts: torch.Tensor, own: torch.Tensor, group: dist.ProcessGroup) -> Started:
    """Starts an all-gather of equal parts into ``parts``. ``own`` is this rank's part."""
    parts, own = (values.view(torch.uint8).view(-1) for values in (parts, own))
    return _All([dist.all_gather_into_tensor(parts, own, group=group, async_op=True)])


def copy_from_rank_0(values: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    """Replaces values by rank 0's values. The memory order of ``values`` may differ between ranks, and may have gaps."""
    # A broadcast would send values in their memory order, so a contiguous copy is sent.
    sent = values.contiguous()
    dist.broadcast(sent, group=group, group_src=0)
    if not values.is_contiguous():
        values.copy_(sent)


def gather(parts: torch.Tensor, group: dist.ProcessGroup) -> Started:
    """Starts the all-gather of equal parts. This rank's part is already in place."""
    own = parts.chunk(group.size())[group.rank()].clone()
    return _All([dist.all_gather_into_tensor(parts, own, group=group, async_op=True)])
