"""The memory of one bucket for the collectives inside a node, on a GPU: a reduce-scatter of gradients, and an all-gather of means.

The messages have the same contents as on the host (``controller/two_level`` in lgreco-train), and sums have the same
bits. A *row* has the shards of all layers that one rank of the node exchanges with its peers, one after the other. A
few numbers follow at the end of a row. In the first message, these numbers are the number of ranks with a gradient, for
each layer, and the number of ranks that have failed. In the second message, the last number says whether the exchange
with the peers has failed.

Every method only enqueues work.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from lgreco._lgreco import LgrecoError
from lgreco.torch.collectives import Started, all_gather, all_to_all, reduce_scatter
from lgreco.torch.cuda import Cuda

_ALIGN = 8
"""Rows have a multiple of this many elements."""


class NodeBucket:
    """The rows of all ranks of the node, and this rank's own row."""

    def __init__(
        self, cuda: Cuda, buffer: torch.Tensor, gradients: Sequence[torch.Tensor], shards: Sequence[list[int]], local: int, halves: bool
    ) -> None:
        """``shards`` has, for each layer, the lengths of all local ranks' shards. With ``halves``, gradients travel as bfloat16, and
        each rank sums its row in float32.

        Raises LgrecoError if the gradients do not fill the buffer one after the other.
        """
        at = buffer.data_ptr()
        for gradient, lens in zip(gradients, shards, strict=True):
            if gradient.numel() != sum(lens) or (gradient.nbytes > 0 and gradient.data_ptr() != at):
                raise LgrecoError("its gradients do not follow one another without gaps")
            at += gradient.nbytes
        self._cuda = cuda
        self._local = local
        self._ranks = ranks = len(shards[0]) if shards else 1
        self._lens = list(itertools.chain.from_iterable(shards))
        self.own = [lens[local] for lens in shards]
        """Number of elements of this rank's shards."""
        layers, values = len(shards), max(sum(lens[rank] for lens in shards) for rank in range(ranks)) if shards else 0
        width = -(-(values + layers + 1) // _ALIGN) * _ALIGN
        # Gradients are multiplied by this factor, so that sums of finite values stay finite, also in bfloat16.
        self._share = 1 / ((2 if halves else 1) * (1 << (ranks - 1).bit_length()))

        def allocated(elements: int, dtype: torch.dtype) -> torch.Tensor:
            return cuda.allocate(elements * dtype.itemsize).view(dtype)

        with cuda.stream():
            self._rows = allocated(ranks * width, torch.float32).view(ranks, width)
            self._sums = allocated(width, torch.float32)
            self._halves = [allocated(ranks * width, torch.bfloat16).view(ranks, width) for _ in range(2 * int(halves))]
            self._row = self._sums if buffer.dtype == torch.float32 else allocated(width, buffer.dtype)
            # The divisor is a tensor. For a Python number, torch would multiply by its reciprocal, which rounds
            # differently.
            self._divisor = allocated(1, torch.float32).fill_(ranks * self._share)
            self._told = allocated(3 + ranks, torch.int64)
        # The second message reuses the memory of the first message, whose rows are read before the second message arrives.
        # The second message has the gradients' type.
        self._means = self._rows.view(buffer.dtype).flatten()[: ranks * width].view(ranks, width)
        self._at_end = slice(width - layers - 1, width - 1)
        self._sent, self._gathered = (self._by_layer(rows, shards) for rows in (self._rows, self._means))

    def _by_layer(self, rows: torch.Tensor, shards: Sequence[list[int]]) -> list[torch.Tensor]:
        """All shards in the rows, ordered by layer and then by rank."""
        by_rank = []
        for rank, row in enumerate(rows):
            lens = [of[rank] for of in shards]
            by_rank.append(torch.split(row[: sum(lens)], lens))
        return [by_rank[rank][layer] for layer in range(len(shards)) for rank in range(self._ranks)]

    def fill(self, buffer: torch.Tensor, gradients: Sequence[torch.Tensor], hold_zeros: bool) -> None:
        """Writes this rank's gradients for the first message."""
        wrong = buffer.isfinite().logical_not_()
        has_failed = wrong.any()
        torch._foreach_copy_(self._sent, torch.split(buffer, self._lens))
        self._rows.mul_(self._share)
        self._rows[:, self._at_end] = torch.stack([gradient.any() for gradient in gradients]) if hold_zeros else 1.0
        self._rows[:, -1] = has_failed
        self._told[0].copy_(has_failed)
        if len(wrong) > 0:
            self._told[1].copy_(wrong.view(torch.uint8).argmax())

    def fail(self) -> None:
        """Writes the first message of a rank that has failed."""
        self._rows.zero_()
        self._rows[:, -1] = 1.0
        self._told.zero_()

    def reduce(self, group: dist.ProcessGroup) -> Started:
        """Starts the first message."""
        if not self._halves:
            return reduce_scatter(self._sums, self._rows, group)
        sent, received = self._halves
        sent.copy_(self._rows)
        return all_to_all(received, sent, group)

    def average(self) -> torch.Tensor:
        """After the first message: turns the sums into means over the node. Returns the means in this rank's row.

        If a rank of the node has failed, a mean becomes NaN, which informs the peers of the failure.
        """
        if self._halves:
            self._sums.copy_(self._rows[self._local])
            for rank, row in enumerate(self._halves[1]):
                if rank != self._local:
                    self._sums.add_(row)
        has_failed = self._sums[-1] > 0
        self._told[2].copy_(has_failed)
        self._is_zero = list((self._sums[self._at_end] <= 0).unbind())
        means = self._sums[: sum(self.own)]
        means.div_(self._divisor)
        means[:1].masked_fill_(has_failed, torch.nan)
        if self._row is self._sums:
            return means
        return self._row[: len(means)].copy_(means)

    def clear(self) -> None:
        """Replaces the means in this rank's row by zeros."""
        self._row.zero_()

    @property
    def is_zero(self) -> list[torch.Tensor]:
        """After ``average``: for each layer, whether no rank of the node has a gradient."""
        return self._is_zero

    def gather(self, has_failed: torch.Tensor, group: dist.ProcessGroup) -> Started:
        """Starts the second message. ``has_failed`` says whether the exchange with the peers has failed."""
        self._row[-1:].copy_(has_failed)
        return all_gather(self._means, self._row, group)

    def deliver(self, buffer: torch.Tensor) -> Callable[[], torch.Tensor]:
        """After the second message: copies the means of all layers to the buffer.

        Returns a function that waits for these numbers: whether a gradient of this rank was not finite, and its position in the
        buffer; whether a rank of the node had failed before the exchange with the peers; and for each local rank, whether the
        exchange with that rank's peers failed.
        """
        torch._foreach_copy_(torch.split(buffer, self._lens), self._gathered)
        self._told[3:].copy_(self._means[:, -1] != 0)
        return self._cuda.later(self._told)
