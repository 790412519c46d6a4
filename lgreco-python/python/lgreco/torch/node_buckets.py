"""The buckets of one process on its GPU, in training over nodes of several GPUs.

The ranks of a node sum the gradients of a bucket. This rank's shards of the sums form a bucket of ``device.py``, which
the rank exchanges with its peers. Peers are the ranks with the same local rank on other nodes. If a rank of the node or
the exchange of one group of peers fails, the bucket fails on all ranks. Groups of peers whose exchange has succeeded
undo the bucket's new residuals when the next step begins.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist

from lgreco._lgreco import Controller, LgrecoError
from lgreco.torch.cuda import Cuda
from lgreco.torch.device import Buckets
from lgreco.torch.device_exchange import ResidentBucket
from lgreco.torch.groups import part_of, release_with
from lgreco.torch.node_bucket import NodeBucket
from lgreco.torch.node_exchange import NodeExchange, NodeOutcome
from lgreco.torch.nodes import Nodes


class _Bucket(NamedTuple):
    memory: NodeBucket
    outcome: NodeOutcome


class NodeBuckets(Buckets):
    """The buckets of one process on its GPU, in training over nodes."""

    def __init__(
        self,
        cuda: Cuda,
        controller: Controller,
        nodes: Nodes,
        everyone: dist.ProcessGroup,
        names: list[str],
        reduce_dtype: torch.dtype,
        is_scaled: bool,
        is_timed: bool,
        metrics_every: int,
    ) -> None:
        """``everyone`` is the group of all ranks, for collectives in the host's memory."""
        group = part_of(nodes.by_local_rank, everyone, cuda.backend)
        super().__init__(cuda, controller, group, nodes.peers, is_scaled, is_timed, metrics_every)
        self.node = part_of(nodes.ranks, everyone, cuda.backend)
        """The group of this node's ranks, for collectives in the GPUs' memory."""
        release_with(self, self.node)
        self.peers = nodes.peers
        """The group of this rank's peers, for collectives in the host's memory."""
        self.controller = controller
        self._everyone = everyone
        ranks = dist.get_process_group_ranks(everyone)
        by_node = [rank for node in nodes.ranks for rank in node]
        self._numbers = [by_node.index(rank) for rank in ranks]
        """The number of each rank of ``everyone``, counted node by node."""
        _, _, self._per_node, self._local = nodes.place
        self._names = names
        self._halves = reduce_dtype == torch.bfloat16
        self._whole: dict[tuple[int, ...], _Bucket] = {}
        self._on_host: set[tuple[int, ...]] = set()
        """The buckets that are averaged in two levels on the host, because some rank lacks GPU memory. Excludes buckets of which
        the host exchanges only the shards."""

    def exchange(self, layers: list[int], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> NodeExchange | None:
        key = tuple(layers)
        bucket = self._whole.get(key)
        if bucket is None and key not in self._on_host:
            bucket = self._reserve(key, buffer, gradients)
        if bucket is None:
            return None
        bucket.outcome.forget()
        return NodeExchange(self, layers, *bucket, buffer)

    def _reserve(self, key: tuple[int, ...], buffer: torch.Tensor, gradients: list[torch.Tensor]) -> _Bucket | None:
        """Allocates the memory for messages inside the node. Returns None, on all ranks, if some rank lacks memory."""
        for other in [other for other in self._whole if not set(other).isdisjoint(key)]:
            del self._whole[other]
        memory, why = None, "another rank cannot"
        try:
            shards = [self.controller.shard_lens(layer) for layer in key]
            memory = NodeBucket(self.cuda, buffer, gradients, shards, self._local, self._halves)
        except (LgrecoError, MemoryError, RuntimeError) as error:
            why = str(error)
        could = torch.tensor(int(memory is not None), device="cpu")
        dist.all_reduce(could, dist.ReduceOp.MIN, group=self._everyone)
        if memory is None or could.item() == 0:
            self._take_home(key)
            self._refuse(key, why)
            self._on_host.add(key)
            return None
        names = [self._names[layer] for layer in key]
        self._whole[key] = _Bucket(memory, NodeOutcome(names, [gradient.numel() for gradient in gradients]))
        return self._whole[key]

    def found_inf(self, bucket: ResidentBucket) -> torch.Tensor:
        """A tensor of one number: 1 if the peers' last exchange of a bucket failed, else 0."""
        return self.cuda.part(bucket.memory, bucket.bucket.found_inf, 4, torch.float32)

    def _number(self, rank: int) -> int:
        return self._numbers[rank]

    def _read_outcomes(self) -> None:
        # All ranks list the same failures in the same order.
        for key, (_, outcome) in sorted(self._whole.items(), key=lambda item: item[0]):
            if outcome.told is None:
                continue
            (has_own, index, has_mates, *of_peers), outcome.told = outcome.told().tolist(), None
            failed, first, found = any(of_peers), None, outcome.found
            if (resident := outcome.resident) is not None:
                self._has_failed(key, resident, failed)
                first, found, _ = resident.fault
                if failed:
                    found, resident.refusal = resident.refusal or found, None
            # After a failure inside a node, the peers' error is only the NaN that reports this failure.
            error = outcome.of_own(index) if has_own else outcome.refusal or (None if has_mates or not failed else found)
            if failed:
                outcome.fault, outcome.refusal = (None if first is None else self._number_of_peer(first), None, False), error
                self._failed.append(outcome)
            else:
                # A bucket without elements has no message that reports an error.
                self._alone = self._alone or error

    def _number_of_peer(self, node: int) -> int:
        return node * self._per_node + self._local

    def forget(self) -> None:
        super().forget()
        for _, outcome in self._whole.values():
            outcome.forget()
